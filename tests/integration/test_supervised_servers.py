"""The supervisor with a real server: it returns after a death, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.waiting import wait_until

PATIENCE_S = 60

SYSTEM = """
import pathlib, sys
from headwater.gateway.local.supervisor import Supervisor
from headwater.projections.postgres.embedded import EmbeddedPostgres

def report(line):
    print(line, flush=True)

data = pathlib.Path(sys.argv[1])
with Supervisor(data_dir=data, report=report) as system:
    server = EmbeddedPostgres(data / "postgres", report=report)
    report("dsn " + system.start_embedded(server))
    report(f"pid {server.pid}")
    system.watch()
"""


@pytest.fixture
def system(scratch: Path) -> Iterator[subprocess.Popen[str]]:
    directory = scratch / "supervised"
    directory.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", SYSTEM, str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def said_after(system: subprocess.Popen[str], sign: str) -> str:
    assert system.stdout is not None
    for line in system.stdout:
        if line.startswith(sign):
            return line.removeprefix(sign).strip()
    raise AssertionError(f"never said {sign!r}")


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_server_that_dies_is_back_at_the_same_address(system: subprocess.Popen[str]):
    dsn = said_after(system, "dsn ")
    os.kill(int(said_after(system, "pid ")), signal.SIGKILL)
    assert said_after(system, "postgres died (killed by SIGKILL)")
    said_after(system, "postgres is back")
    assert answers(dsn)
    system.send_signal(signal.SIGTERM)
    assert said_after(system, "postgres stopped")
    assert system.wait(PATIENCE_S) == 0
    assert not answers(dsn)


def test_a_killed_supervisor_leaves_no_server_behind(system: subprocess.Popen[str]):
    dsn = said_after(system, "dsn ")
    assert answers(dsn)
    system.kill()
    wait_until(lambda: not answers(dsn), "the server to be silent")
