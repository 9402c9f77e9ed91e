"""Goal: whoever dies, and whenever, Postgres ends up equal to the pure fold over the raw topic.

Method: a real broker, a real Postgres and our parts as processes; deliveries are posted over HTTP
while one part is killed with kill -9 (or a worker joins and leaves) at moments drawn from a seed.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.deliveries import mixed
from tests.e2e.house import House, opened

DELIVERIES = 500
KILLS = 2
#: In a soak.
MANY_DELIVERIES = 1_500
MANY_KILLS = 3


@pytest.fixture
def house(scratch: Path, fresh_database: str, request: pytest.FixtureRequest) -> Iterator[House]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with opened(House(directory, fresh_database)) as house:
        yield house


def under_load(
    house: House,
    seed: int,
    disturb: Callable[[random.Random], None],
    deliveries: int = MANY_DELIVERIES,
    kills: int = MANY_KILLS,
) -> None:
    """Posts deliveries from another thread while this one disturbs the house."""
    draw = random.Random(seed)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(house.deliver, mixed(seed, deliveries))
        for _ in range(kills):
            time.sleep(draw.uniform(0.2, 1.5))
            disturb(draw)
        sending.result()
    expected = house.check()
    statuses = {status for status, _ in expected.outcomes.values()}
    assert statuses == {"processed", "skipped", "parked", "dead"}


@pytest.mark.soak
def test_killing_parts_loses_nothing(house: House, seed: int):
    parts = itertools.cycle(["worker", "project", "gateway"])

    def kill(draw: random.Random) -> None:
        part = next(parts)
        house.kill(part)
        time.sleep(draw.uniform(0, 0.5))
        house.start(part)

    under_load(house, seed, kill)


@pytest.mark.soak
def test_killing_the_broker_loses_nothing(house: House, seed: int):
    def kill(_: random.Random) -> None:
        house.broker.kill()
        house.broker.start()

    under_load(house, seed, kill)


@pytest.mark.soak
def test_workers_that_join_and_leave_lose_nothing(house: House):
    others: list[str] = []

    def disturb(draw: random.Random) -> None:
        if others and draw.random() < 0.5:
            draw.choice([house.kill, house.stop])(others.pop())
        else:
            others.append(f"worker{len(others) + 2}")
            house.start(others[-1])
        time.sleep(1)

    under_load(house, 3, disturb)


def test_everything_killed_at_once_loses_nothing(house: House):
    def kill(_: random.Random) -> None:
        for part in ("worker", "project", "gateway"):
            house.kill(part)
        house.broker.kill()
        house.broker.start()
        for part in ("worker", "project", "gateway"):
            house.start(part)

    under_load(house, 4, kill, DELIVERIES, KILLS)
