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

from tests.e2e.campaigns import OwnPostgresSystem, never_silent
from tests.e2e.deliveries import daily, mixed
from tests.e2e.system import opened

pytestmark = pytest.mark.soak

#: What a campaign cuts: the source, what was made of it, and the memory of the worker.
TOPICS = ("webhooks", "webhook-outcomes", "daily-summary", "admissions", "traces", "waiting")


@pytest.fixture
def system(scratch: Path, request: pytest.FixtureRequest) -> Iterator[OwnPostgresSystem]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with opened(OwnPostgresSystem(directory)) as system:
        yield system


def cut(system: OwnPostgresSystem, draw: random.Random) -> list[str]:
    """Cut the newest segment of some partitions; return which."""
    cut_ones = []
    for topic in TOPICS:
        for folder in sorted((system.directory / "kafka").rglob(f"{topic}-[0-9]*")):
            segments = sorted(folder.glob("*.log"))
            size = segments[-1].stat().st_size if segments else 0
            if size and draw.random() < 0.5:
                with segments[-1].open("r+b") as file:
                    file.truncate(draw.randrange(size // 2, size))
                cut_ones.append(folder.name)
    return cut_ones


def accept_loss(system: OwnPostgresSystem) -> str:
    command = [sys.executable, "-m", "headwater", "topics", "accept-loss", "--yes"]
    where = ["--kafka", system.bootstrap, "--postgres", system.dsn]
    return subprocess.run([*command, *where], check=True, capture_output=True, text=True).stderr


def test_what_a_broker_lost_is_named_and_nothing_else_breaks(system: OwnPostgresSystem, seed: int):
    draw = random.Random(seed)
    system.deliver(mixed(seed, 1_500))
    system.check()
    system.broker.kill()
    names = cut(system, draw)
    assert names
    system.broker.start()
    with never_silent(system):
        system.wait(
            lambda: system.says("project", "Kafka has lost records that Postgres has"),
            "the projector to name what was lost",
        )
        accepted = accept_loss(system)
        assert "Lost: " in accepted
        # Users of their own, so that no lost connection decides what becomes of these.
        later = [daily(100 + n % 20, 1 + n // 20, 5_000 + n, known=True) for n in range(500)]
        system.deliver(later)
        ids = {event.event_id for _, _, event in system.raw()[-1:]}
        system.wait(lambda: ids <= system.outcomes().keys(), "the last delivery to be processed")
        expected = {event.event_id for _, _, event in system.raw()}
        system.wait(
            lambda: expected <= system.outcomes().keys(),
            "every delivery that Kafka has to have an outcome",
        )
