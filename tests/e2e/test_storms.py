"""Goal: whatever comes and goes, and whatever clocks say, nothing is lost, doubled or stands still.

Method: as in `test_workflows_killing` and `test_killing`, for minutes: under load that never ends,
workers of both kinds join, leave in order and die, ten of them; or the clocks of single processes
jump by an hour, to and fro. Everything is accounted for as there. Besides, work that is not done
may not rest for a minute without a warning in the log of some part.

TEST_STORM_S says for how many seconds; 300 without it.
"""

import asyncio
import itertools
import os
import random
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest
from typing_extensions import override

from tests.e2e.system import System
from tests.e2e.system import opened as opened_system
from tests.e2e.system import under_load as deliveries
from tests.e2e.test_workflows_killing import INSTANCES, under_load
from tests.e2e.workflow_books import BookSystem
from tests.e2e.workflow_system import ROOT, Story, opened

STORM_S: Final = float(os.environ.get("TEST_STORM_S", "300"))
#: What comes behind the storm is a matter of the machine.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(STORM_S + 1_800)]

#: Workers of each kind.
WORKERS: Final = 5
STANDSTILL_S: Final = 60.0
#: For an answer to a command: on a busy machine its partition may change hands many times before.
ANSWERED_WITHIN_S: Final = 900.0
HOUR_S: Final = 3_600
CLOCKS: Final = Path(__file__).parent / "clocks"
_WARNING: Final = re.compile(r" (WARNING|ERROR|CRITICAL) ")


class Standstill:
    """Fails when nothing was done for a minute and no part has warned of anything meanwhile."""

    def __init__(self, directory: Path, done: Callable[[], int]) -> None:
        self._logs, self._done = directory, done
        self._since_s, self._known = time.monotonic(), -1
        self._warnings = self._count()

    def _count(self) -> int:
        return sum(
            len(_WARNING.findall(file.read_text(errors="replace")))
            for file in self._logs.glob("*.log")
        )

    def look(self) -> None:
        done, now_s = self._done(), time.monotonic()
        if done != self._known:
            self._since_s, self._known, self._warnings = now_s, done, self._count()
        elif now_s - self._since_s > STANDSTILL_S:
            assert self._count() > self._warnings, (
                f"expected work or a warning within {STANDSTILL_S} s, found {done} done since "
                f"{now_s - self._since_s:.0f} s"
            )
            self._since_s, self._warnings = now_s, self._count()


def moved(done: Callable[[], int], known: int) -> int:
    """Wait until more is done than was known, or for a minute; return how much is.

    On a busy machine workers would else come and go before they are able to do anything.
    """
    until_s = time.monotonic() + STANDSTILL_S
    while (result := done()) == known and time.monotonic() < until_s:
        time.sleep(0.2)
    return result


# -- workers that come and go


async def workflows_in_a_storm(system: BookSystem, seed: int) -> int:
    """Plays rounds of instances while workers come and go; gives how many rounds."""
    draw, numbers = random.Random(seed), itertools.count(1)
    over = asyncio.get_running_loop().time() + STORM_S

    def done() -> int:
        return system.trail.stat().st_size

    async def storm() -> None:
        known = 0
        while True:
            names = list(system.workers)
            if len(names) < WORKERS and (len(names) < 2 or draw.random() < 0.5):
                system.start(f"worker{next(numbers)}", member=False)
            elif draw.random() < 0.5:
                system.kill(draw.choice(names))
            else:
                # It takes its time, and others go on.
                ending = asyncio.to_thread(system.stop, draw.choice(names))
                leaving.append(asyncio.create_task(ending))
            await asyncio.sleep(draw.uniform(0.5, 6))
            known = await asyncio.to_thread(moved, done, known)

    system.patience_s = ANSWERED_WITHIN_S
    leaving: list[asyncio.Task[None]] = []
    storming = asyncio.create_task(storm())
    try:
        return await rounds(system, over)
    except Exception as error:
        error.add_note(system.logs())
        raise
    finally:
        storming.cancel()
        await asyncio.gather(storming, *leaving, return_exceptions=True)


async def rounds(system: BookSystem, over: float) -> int:
    """Plays rounds of instances until a time; gives how many."""
    for played in itertools.count(1):
        await under_load(system, lambda story: ended(system, story))
        if asyncio.get_running_loop().time() > over:
            return played
    raise AssertionError


async def ended(system: BookSystem, story: Story) -> None:
    """Waits for the instances of a round, of which something has to happen within a minute."""
    standstill = Standstill(system.directory, lambda: len(story.told))

    def count() -> int:
        keys = [key.partition("/") for key in list(story.runs)]
        return sum(
            story.ended(f"{shape}/{name}") for shape, _, name in keys if system.concerns(name)
        )

    while count() < INSTANCES:
        standstill.look()
        system.restart_ended()
        await asyncio.sleep(1)


def deliveries_in_a_storm(system: System, seed: int) -> None:
    """Posts deliveries while workers come and go."""
    draw, numbers = random.Random(seed), itertools.count(2)
    standstill = Standstill(system.directory, lambda: outcomes(system))
    over, leaving, known = time.monotonic() + STORM_S, [], 0

    def done() -> int:
        system.start_crashed()
        standstill.look()
        return outcomes(system)

    with deliveries(system, seed):
        while time.monotonic() < over:
            names = [name for name in system.parts if name.startswith("worker")]
            if len(names) < WORKERS and (len(names) < 2 or draw.random() < 0.5):
                system.start(f"worker{next(numbers)}")
            elif draw.random() < 0.5:
                system.kill(draw.choice(names))
            else:
                # It takes its time, and others go on.
                leaving.append(system.parts.pop(draw.choice(names)))
                leaving[-1].send_signal(signal.SIGTERM)
            time.sleep(draw.uniform(0.5, 6))
            known = moved(done, known)
    system.check()
    for part in leaving:
        # One that was still being loaded has nothing to end in order.
        assert part.wait(60) in (0, -signal.SIGTERM)


def outcomes(system: System) -> int:
    with psycopg.connect(system.dsn) as connection:
        row = connection.execute("select count(*) from webhook_outcomes").fetchone()
    return row[0] if row else 0


def test_ten_workers_that_come_and_go_lose_double_and_stall_nothing(
    scratch: Path, fresh_database: str, seed: int
):
    of_workflows = scratch / f"storm-workflows-{seed}"
    of_deliveries = scratch / f"storm-deliveries-{seed}"
    of_workflows.mkdir()
    of_deliveries.mkdir()
    with (
        opened(BookSystem(of_workflows, "tests.e2e.graph_app")) as books,
        opened_system(System(of_deliveries, fresh_database)) as system,
        ThreadPoolExecutor(1) as pool,
    ):
        delivering = pool.submit(deliveries_in_a_storm, system, seed)
        asyncio.run(workflows_in_a_storm(books, seed))
        delivering.result()


# -- clocks that jump


class Clocks:
    """The clocks of the parts of a system; each jumps by itself (see `clocks/sitecustomize.py`)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir()

    def environment(self, name: str) -> dict[str, str]:
        for item in (name, f"{name}-host"):
            if not (self._directory / item).exists():
                (self._directory / item).write_bytes(struct.pack("d", 0))
        path = os.pathsep.join(map(str, (CLOCKS, ROOT)))
        return {"TEST_CLOCKS": str(self._directory), "TEST_CLOCK": name, "PYTHONPATH": path}

    def jump(self, name: str, by_s: float) -> None:
        # In place: the part has mapped the file.
        with (self._directory / name).open("r+b") as file:
            file.write(struct.pack("d", by_s))

    @contextmanager
    def jumping(self, seed: int, *names: str) -> Iterator[None]:
        """Has one clock after the other jump, from another thread; at last all are right again."""
        draw, over = random.Random(seed), threading.Event()

        def jump() -> None:
            while not over.wait(draw.uniform(1, 8)):
                self.jump(draw.choice(names), draw.choice([-HOUR_S, 0, HOUR_S]))
            for name in names:
                self.jump(name, 0)

        with ThreadPoolExecutor(1) as pool:
            jumping = pool.submit(jump)
            try:
                yield
            finally:
                over.set()
                jumping.result()


class ShiftedBooks(BookSystem):
    def __init__(self, directory: Path, *apps: str) -> None:
        super().__init__(directory, *apps)
        self.clocks = Clocks(directory / "clocks")

    @override
    def launch(self, name: str, arguments: list[str], told: dict[str, str]) -> None:
        super().launch(name, arguments, {**told, **self.clocks.environment(name)})


class ShiftedSystem(System):
    def __init__(self, directory: Path, dsn: str) -> None:
        super().__init__(directory, dsn)
        self.clocks = Clocks(directory / "clocks")

    @override
    def start(self, name: str, *arguments: str) -> None:
        self.settings = self.clocks.environment(name)
        super().start(name, *arguments)


def test_workflows_lose_double_and_stall_nothing_while_clocks_jump(scratch: Path, seed: int):
    directory = scratch / f"clocks-workflows-{seed}"
    directory.mkdir()

    async def play(system: BookSystem) -> None:
        await rounds(system, asyncio.get_running_loop().time() + STORM_S)

    with opened(ShiftedBooks(directory, "tests.e2e.graph_app")) as system:
        for name in ("one", "two", "three"):
            system.start(name)
        names = [f"{name}{end}" for name in ("one", "two", "three") for end in ("", "-host")]
        with system.clocks.jumping(seed, *names, "project"):
            asyncio.run(play(system))


def test_deliveries_lose_double_and_stall_nothing_while_clocks_jump(
    scratch: Path, fresh_database: str, seed: int
):
    directory = scratch / f"clocks-deliveries-{seed}"
    directory.mkdir()
    with opened_system(ShiftedSystem(directory, fresh_database)) as system:
        system.start("worker2")
        standstill = Standstill(system.directory, lambda: outcomes(system))
        over = time.monotonic() + STORM_S
        with system.clocks.jumping(seed, "worker", "worker2", "project"), deliveries(system, seed):
            while time.monotonic() < over:
                system.start_crashed()
                standstill.look()
                time.sleep(1)
        system.check()
