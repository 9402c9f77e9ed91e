"""Goal: a single broker that loses the end of its log costs what it lost, and nothing else.

The broker is killed and the newest segment of some partitions is cut, as a power failure does to
what had not reached the disk. What was lost is named, an operator accepts it, and every delivery
that comes afterwards is processed.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.campaigns import OwnPostgresHouse, never_silent
from tests.e2e.deliveries import daily, mixed
from tests.e2e.house import opened

pytestmark = pytest.mark.soak

#: What a campaign cuts: the source, what was made of it, and the memory of the worker.
TOPICS = ("webhooks", "webhook-outcomes", "daily-summary", "admissions", "traces", "waiting")


@pytest.fixture
def house(scratch: Path, request: pytest.FixtureRequest) -> Iterator[OwnPostgresHouse]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with opened(OwnPostgresHouse(directory)) as house:
        yield house


def cut(house: OwnPostgresHouse, draw: random.Random) -> list[str]:
    """Cut the newest segment of some partitions; return which."""
    cut_ones = []
    for topic in TOPICS:
        for folder in sorted((house.directory / "kafka").rglob(f"{topic}-[0-9]*")):
            segments = sorted(folder.glob("*.log"))
            size = segments[-1].stat().st_size if segments else 0
            if size and draw.random() < 0.5:
                with segments[-1].open("r+b") as file:
                    file.truncate(draw.randrange(size // 2, size))
                cut_ones.append(folder.name)
    return cut_ones


def accept_loss(house: OwnPostgresHouse) -> str:
    command = [sys.executable, "-m", "headwater", "topics", "accept-loss", "--yes"]
    where = ["--kafka", house.bootstrap, "--postgres", house.dsn]
    return subprocess.run([*command, *where], check=True, capture_output=True, text=True).stderr


def test_what_a_broker_lost_is_named_and_nothing_else_breaks(house: OwnPostgresHouse, seed: int):
    draw = random.Random(seed)
    house.deliver(mixed(seed, 1_500))
    house.check()
    house.broker.kill()
    names = cut(house, draw)
    assert names
    house.broker.start()
    with never_silent(house):
        house.wait(
            lambda: house.says("project", "Kafka has lost records that Postgres has"),
            "the projector to name what was lost",
        )
        accepted = accept_loss(house)
        assert "Lost: " in accepted
        # Users of their own, so that no lost connection decides what becomes of these.
        later = [daily(100 + n % 20, 1 + n // 20, 5_000 + n, known=True) for n in range(500)]
        house.deliver(later)
        ids = {event.event_id for _, _, event in house.raw()[-1:]}
        house.wait(lambda: ids <= house.outcomes().keys(), "the last delivery to be processed")
        expected = {event.event_id for _, _, event in house.raw()}
        house.wait(
            lambda: expected <= house.outcomes().keys(),
            "every delivery that Kafka has to have an outcome",
        )
