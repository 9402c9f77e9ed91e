"""Goal: the auditor finds what is lost, and nothing in a world where nothing is.

Method: the worlds of the pipeline's simulation, with crashes, superseded workers and compaction.
The auditor reads them in rounds while they change, and forgets in between all but its state.
"""

import random

import pytest

from headwater.schemas.auditor import Law
from headwater.schemas.topics import UNRESOLVED, WEBHOOKS
from tests.simulation.auditing import WorldAuditor, copied, remove_outcome
from tests.simulation.pipeline import PARTITIONS, World
from tests.simulation.test_pipeline import _deliveries
from tests.simulation.test_wipes import run

SEEDS = range(200)


def audited(seed: int) -> tuple[World, WorldAuditor]:
    """The world of a seed to its end, with an auditor that has read a part of it."""
    draw, auditor = random.Random(seed), WorldAuditor()
    world = World(seed, _deliveries(draw))
    for _ in range(draw.randint(0, 80)):
        world.step(faults=True)
        if draw.random() < 0.2:
            assert auditor.round(world) == [], f"seed {seed}\n" + "\n".join(world.trace)
    world.drain()
    return world, auditor


@pytest.mark.parametrize("block", range(4))
def test_where_nothing_is_lost_nothing_is_found(block: int):
    for seed in SEEDS[block::4]:
        world, auditor = audited(seed)
        late = WorldAuditor()  # It reads the compacted log.
        for one in (auditor, late):
            assert one.round(world) == [], f"seed {seed}\n" + "\n".join(world.trace)
            waiting = sum(map(len, one.state.deliveries.waiting.values()))
            parked = {key for key, (status, _) in world.outcomes().items() if status == "parked"}
            assert waiting == 0, f"seed {seed}"
            assert set(one.state.deliveries.parked) == parked, f"seed {seed}"


def test_an_outcome_that_was_removed_is_the_only_finding():
    for seed in SEEDS[:50]:
        world, _ = audited(seed)
        draw = random.Random(seed)
        # The record that compaction has left may be a copy, which its trace says.
        ids = sorted(world.outcomes().keys() - copied(world))
        if not ids:
            continue
        removed = draw.choice(ids)
        remove_outcome(world, removed)
        for topic in (WEBHOOKS, UNRESOLVED):
            for number in range(PARTITIONS):
                world.committed[topic, number] = world.log.end(topic, number)
        found = WorldAuditor().round(world)
        assert {violation.law for violation in found} == {Law.DELIVERY_LOST}, f"seed {seed}"
        assert all(removed in violation.detail for violation in found), f"seed {seed}"


def test_a_wipe_is_no_finding():
    for seed in SEEDS[:100]:
        ended = run(seed)
        assert WorldAuditor().round(ended.world) == [], f"seed {seed}\n{ended.told}"
