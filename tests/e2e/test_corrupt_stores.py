"""Goal: a store on disk that is damaged is noticed, and made again from the topics.

A worker is killed while it writes; bytes of its files are changed, files are cut or removed. The
worker that takes its place must end up with the rows of the pure fold over the raw topic.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.campaigns import never_silent
from tests.e2e.system import System, opened, under_load

pytestmark = pytest.mark.soak

ROUNDS = 5
#: Which part of a store's files is damaged each time.
DAMAGED = 0.5


@pytest.fixture
def system(scratch: Path, fresh_database: str, request: pytest.FixtureRequest) -> Iterator[System]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    # Little memory, so that rows are read from files and not from memory.
    with opened(System(directory, fresh_database, HEADWATER_STATE_MEMORY_MIB="8")) as system:
        yield system


def damage(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    how = draw.choice(["bytes", "cut", "zeros", "removed"])
    if how == "removed":
        file.unlink()
        return
    if how == "cut" or not content:
        del content[len(content) // 2 :]
    for _ in range(8 if content else 0):
        at = draw.randrange(len(content))
        if how == "zeros":
            content[at : at + 512] = bytes(len(content[at : at + 512]))
        else:
            content[at] ^= 0xFF
    file.write_bytes(content)


def test_damaged_stores_lose_nothing(system: System, seed: int):
    draw = random.Random(seed)
    damaged = 0
    with under_load(system, seed), never_silent(system):
        for _ in range(ROUNDS):
            time.sleep(draw.uniform(2.0, 5.0))
            system.kill("worker")
            files = sorted((system.directory / "data").rglob("data/*"))
            for file in files:
                if file.is_file() and draw.random() < DAMAGED:
                    damage(file, draw)
                    damaged += 1
            system.start("worker")
    system.check()
    assert damaged
