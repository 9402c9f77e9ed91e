"""What comes of a seed does not depend on the order of sets, which differs between processes.

The parts that a test process forks have one order of sets (ADR 0068), as two parts of a system that
was started have not. Here worlds are played in two processes whose hashes differ: they must append
the same records, and go the same way.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Final

from headwater.schemas.codec import encode
from tests.property.graph_playing import Player
from tests.simulation.engine import graph_shapes, run
from tests.simulation.test_pipeline import played

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = range(5)
GRAPHS: Final = 15
PROGRAM: Final = f"from {__name__} import print_digests; print_digests()"


def print_digests() -> None:
    """Print what the worlds come to, and whether this process orders sets as another one."""
    result = {"order of a set": _digest([str({str(number) for number in range(20)}).encode()])}
    for seed in SEEDS:
        result[f"code {seed}"] = _workflows(seed)
        result[f"graphs {seed}"] = _workflows(seed, graph_shapes(seed))
        result[f"deliveries {seed}"] = _deliveries(seed)
    for seed in range(GRAPHS):
        result[f"drawn graph {seed}"] = _digest(map(encode, Player(Random(seed)).play()))
    sys.stdout.write(json.dumps(result))


def _workflows(seed: int, shapes: Iterable[str] = ()) -> str:
    world = run(seed, shapes=list(shapes))
    records = (encode(record) for partition in world.partitions for record in partition.history)
    return _digest([world.traced().encode(), *records])


def _deliveries(seed: int) -> str:
    world = played(seed)
    lines = ["\n".join(world.trace)]
    for (topic, partition), records in sorted(world.log.records.items()):
        lines += [f"{topic}/{partition} {record}" for record in records]
    return _digest(line.encode() for line in lines)


def _digest(parts: Iterable[bytes]) -> str:
    result = hashlib.sha256()
    for part in parts:
        result.update(part)
    return result.hexdigest()


def test_worlds_are_the_same_whatever_the_order_of_sets():
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
        )
        for hash_seed in ("1", "2")
    ]
    one, two = (json.loads(process.communicate()[0]) for process in processes)
    assert one.pop("order of a set") != two.pop("order of a set")
    assert one == two
