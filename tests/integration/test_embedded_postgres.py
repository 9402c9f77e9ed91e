"""The embedded Postgres keeps committed rows through every way of ending it."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from headwater.projections.postgres import embedded
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.schemas.errors import ProcessUnavailable


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def server(
    scratch: Path, said: list[str], request: pytest.FixtureRequest
) -> Iterator[EmbeddedPostgres]:
    directory = scratch / f"postgres of {request.node.name}"
    server = EmbeddedPostgres(directory, report=said.append)
    yield server
    server.kill()


def run(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_rows_survive_a_stop_and_a_kill(server: EmbeddedPostgres):
    dsn = server.start()
    run(dsn, "CREATE TABLE kept (way text)")
    run(dsn, "INSERT INTO kept VALUES ('stop')")
    server.stop()
    assert server.pid is None

    assert server.start() == dsn, "the port is remembered"
    run(dsn, "INSERT INTO kept VALUES ('kill')")
    server.kill()

    assert server.start() == dsn
    assert run(dsn, "SELECT way FROM kept ORDER BY way") == [("kill",), ("stop",)]


def test_killing_the_first_process_alone_is_survived_too(server: EmbeddedPostgres):
    dsn = server.start()
    run(dsn, "CREATE TABLE kept ()")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert server._process is not None
    server._process.wait()
    assert server.poll() == -signal.SIGKILL
    assert server.pid is None

    assert server.start() == dsn
    assert run(dsn, "SELECT count(*) FROM kept") == [(0,)]


def test_an_open_connection_does_not_hold_up_a_stop(server: EmbeddedPostgres, said: list[str]):
    with psycopg.connect(server.start()) as connection:
        connection.execute("SELECT 1")
        server.stop()
        assert not [line for line in said if "did not stop" in line]
        connection.close()


def test_it_listens_on_loopback_alone_and_commits_durably(server: EmbeddedPostgres):
    settings = dict(
        run(
            server.start(),
            "SELECT name, setting FROM pg_settings WHERE name IN "
            "('listen_addresses', 'synchronous_commit', 'fsync', 'jit', 'server_encoding')",
        )
    )
    assert settings == {
        "listen_addresses": "127.0.0.1",
        "synchronous_commit": "on",
        "fsync": "on",
        "jit": "off",
        "server_encoding": "UTF8",
    }


def test_nobody_logs_in_without_the_password(server: EmbeddedPostgres):
    dsn = server.start()
    assert run(dsn, "SELECT current_user") == [("headwater",)]
    for wrong in ({"passfile": "/dev/null"}, {"password": "headwater"}, {"user": "postgres"}):
        with pytest.raises(psycopg.OperationalError, match=r"password|role"):
            run(conninfo.make_conninfo(dsn, **wrong), "SELECT 1")


def test_only_this_user_reads_the_password_the_log_and_the_data(server: EmbeddedPostgres):
    dsn = server.start()
    password = Path(conninfo.conninfo_to_dict(dsn)["passfile"]).read_text().split(":")[-1].strip()
    assert len(password) > 20
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in server._dir.iterdir()}
    assert (modes["pgpass"], modes["postgres.log"]) == (0o600, 0o600)
    assert stat.S_IMODE(server._dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(server._data.stat().st_mode) == 0o700
    assert password not in dsn
    assert password not in server.log_file.read_text()
    command = subprocess.run(
        ["/bin/ps", "-ww", "-p", str(server.pid), "-o", "args="], capture_output=True, check=True
    )
    assert password.encode() not in command.stdout
    assert not list(server._data.parent.glob("password"))


def test_data_of_an_earlier_release_without_a_password_are_refused(server: EmbeddedPostgres):
    server.start()
    server.stop()
    (server._dir / "pgpass").unlink()
    with pytest.raises(ProcessUnavailable, match="move the directory away and start again"):
        server.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another account")
def test_a_folder_that_is_closed_to_the_account_stays_closed(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
):
    elsewhere, closed = scratch / "elsewhere", scratch / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(embedded, "ELSEWHERE", elsewhere)
    server = EmbeddedPostgres(closed / "of mine" / "postgres", report=said.append)
    package = server._bin.parent.parent
    for name in (package.name, f"{package.name}.libs"):
        if (package.parent / name).exists():
            shutil.copytree(package.parent / name, closed / name, symlinks=True)
    server._bin = closed / package.name / server._bin.parent.name / "bin"
    try:
        dsn = server.start()
        assert run(dsn, "SELECT 1") == [(1,)]
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
        assert stat.S_IMODE((closed / "of mine").stat().st_mode) & stat.S_IRWXO in (0, 0o5)
        assert [line for line in said if f"its data are in {elsewhere}/postgres-" in line]
        server.stop()
        assert server.start() == dsn
        assert run(dsn, "SELECT 1") == [(1,)]
        assert len(list(elsewhere.iterdir())) == 2, "programs and data, each once"
    finally:
        server.kill()


def test_every_test_gets_an_empty_database_of_its_own(fresh_database: str, postgres: str):
    assert fresh_database != postgres
    assert run(fresh_database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []


def test_a_server_left_by_a_killed_owner_is_stopped_first(
    server: EmbeddedPostgres, said: list[str]
):
    owner = textwrap.dedent("""
        import os, pathlib, sys
        from headwater.projections.postgres.embedded import EmbeddedPostgres
        server = EmbeddedPostgres(pathlib.Path(sys.argv[1]), report=print)
        server.start()
        print(server.pid, flush=True)
        os.kill(os.getpid(), 9)
    """)
    ran = subprocess.run(
        [sys.executable, "-c", owner, str(server._dir)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    left = int(ran.stdout.split()[-1])
    os.kill(left, 0)  # raises if the server did not outlive its owner

    server.start()
    assert f"Stopping the Postgres of an earlier run (pid {left})" in said


def test_a_pid_file_that_names_somebody_else_harms_nobody(
    server: EmbeddedPostgres, said: list[str]
):
    dsn = server.start()
    server.kill()
    pid_file = server._data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    server._stop_stale_server()
    assert not [line for line in said if "earlier run" in line]
    assert server.start() == dsn


def test_a_remembered_port_that_was_taken_is_replaced(server: EmbeddedPostgres, scratch: Path):
    first = server.start()
    server.stop()
    with socket.create_server(("127.0.0.1", server._port)):
        again = EmbeddedPostgres(server._dir, report=print)
        try:
            assert again.start() != first
        finally:
            again.stop()


def test_a_chosen_port_that_is_taken_is_refused(scratch: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedPostgres(scratch / "refused", port=port, report=print)
        with pytest.raises(ProcessUnavailable, match=rf"127\.0\.0\.1:{port}.*--postgres-port"):
            server.start()
    assert server.pid is None


def test_data_of_another_version_is_refused(server: EmbeddedPostgres):
    server._data.mkdir(parents=True)
    (server._data / "PG_VERSION").write_text("16\n")
    with pytest.raises(ProcessUnavailable, match="belongs to Postgres 16, expected 18"):
        server.start()
