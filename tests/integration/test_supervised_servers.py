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

HOUSE = """
import pathlib, sys
from headwater.gateway.local.supervisor import Supervisor
from headwater.projections.postgres.embedded import EmbeddedPostgres

def report(line):
    print(line, flush=True)

data = pathlib.Path(sys.argv[1])
with Supervisor(data_dir=data, report=report) as house:
    server = EmbeddedPostgres(data / "postgres", report=report)
    report("dsn " + house.start_embedded(server))
    report(f"pid {server.pid}")
    house.watch()
"""


@pytest.fixture
def house(scratch: Path) -> Iterator[subprocess.Popen[str]]:
    directory = scratch / "supervised"
    directory.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOUSE, str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def said_after(house: subprocess.Popen[str], sign: str) -> str:
    assert house.stdout is not None
    for line in house.stdout:
        if line.startswith(sign):
            return line.removeprefix(sign).strip()
    raise AssertionError(f"never said {sign!r}")


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_server_that_dies_is_back_at_the_same_address(house: subprocess.Popen[str]):
    dsn = said_after(house, "dsn ")
    os.kill(int(said_after(house, "pid ")), signal.SIGKILL)
    assert said_after(house, "postgres died (killed by SIGKILL)")
    said_after(house, "postgres is back")
    assert answers(dsn)
    house.send_signal(signal.SIGTERM)
    assert said_after(house, "postgres stopped")
    assert house.wait(PATIENCE_S) == 0
    assert not answers(dsn)


def test_a_killed_supervisor_leaves_no_server_behind(house: subprocess.Popen[str]):
    dsn = said_after(house, "dsn ")
    assert answers(dsn)
    house.kill()
    wait_until(lambda: not answers(dsn), "the server to be silent")
