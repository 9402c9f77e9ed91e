"""Goal: a part that stands still for a while and then goes on changes nothing that it should not.

Method: as in `test_killing`, with SIGSTOP and SIGCONT instead: two workers under load, and a part
is suspended at moments drawn from a seed, for less and for longer than a member may be silent.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.streams.ownership.deadlines import SESSION_S
from tests.e2e.deliveries import mixed
from tests.e2e.system import System, opened, under_load

PARTS = ("worker", "project", "gateway", "broker")
#: Seconds: hiccups, and so long that others have taken over.
PAUSES = (0.3, 2.0, SESSION_S + 3)


@pytest.fixture
def system(scratch: Path, fresh_database: str, request: pytest.FixtureRequest) -> Iterator[System]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with opened(System(directory, fresh_database)) as system:
        system.start("worker2")
        # A worker that has yet to start could be suspended for as long as anybody likes.
        system.deliver(mixed(5, 300))
        system.check()
        yield system


def suspend(system: System, part: str, seconds: float) -> None:
    pid = system.broker.pid if part == "broker" else system.parts[part].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    # A worker whose partitions went to another ends; somebody starts it again.
    system.start_crashed()


@pytest.mark.soak
def test_a_worker_that_was_suspended_hides_and_loses_nothing(system: System):
    with under_load(system, 9):
        suspended = system.parts["worker"].pid
        for seconds in PAUSES:
            suspend(system, "worker", seconds)
        # What it still holds in memory is old: it ends, and another process takes its place.
        system.wait(lambda: system.parts["worker"].pid != suspended, "the suspended worker to end")
    system.check()


@pytest.mark.soak
@pytest.mark.parametrize("part", PARTS)
def test_suspending_a_part_hides_and_loses_nothing(system: System, part: str, seed: int):
    draw = random.Random(f"{part} {seed}")
    with under_load(system, seed):
        for _ in range(6):
            time.sleep(draw.uniform(0.2, 1.0))
            suspend(system, part, draw.choice(PAUSES))
    system.check()


@pytest.mark.soak
def test_all_parts_suspended_now_and_then_hide_and_lose_nothing(system: System, seed: int):
    draw = random.Random(seed)
    with under_load(system, seed):
        for _ in range(12):
            part = draw.choice([*PARTS, "worker2"])
            if part == "broker" or system.parts[part].poll() is None:
                suspend(system, part, draw.choice(PAUSES))
    system.check()
