"""Goal: one owner acts at a time, and whatever goes wrong every command gets one outcome.

Method: four thousand worlds, each from one seed: two or three processes that take the partition
from each other, crash, come back late, and whose batches and claims are delayed, repeated or lost.
Then worlds in which one rule of ADR 0006 is left out: each must fail, or the model proves nothing.
"""

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from typing_extensions import override

from headwater.processors.runs.claims import Claims
from headwater.schemas.history import HistoryAppended, PartitionClaimed
from tests.simulation.claims_model import Rules, Violation, World

SEEDS = range(4_000)
#: A world that lacks a rule fails within so many seeds; most do at the first.
SEEDS_TO_FAIL = range(1_000)


def run(seed: int, rules: Rules | None = None) -> World:
    world = World(seed, rules)
    try:
        world.run(steps=random.Random(seed).randint(20, 300))
    except Violation as violation:
        violation.add_note(f"seed {seed}\n" + "\n".join(world.trace))
        raise
    return world


def run_all(seeds: Iterable[int], rules: Rules | None = None) -> None:
    for seed in seeds:
        run(seed, rules)


@pytest.mark.parametrize("block", range(10))
def test_every_command_has_one_outcome_and_nobody_acts_on_what_does_not_count(block: int):
    run_all(SEEDS[block::10])


def test_the_worlds_are_as_bad_as_they_should_be():
    seen: Counter[str] = Counter()
    for seed in SEEDS[:300]:
        world = run(seed)
        for record, counts in zip(world.history, world.counts, strict=True):
            is_claim = isinstance(record.events[0], PartitionClaimed)
            seen["claims" if is_claim else "counted" if counts else "void"] += 1
        seen["replies"] += sum(map(len, world.replies.values()))
        seen["commands"] += len(world.commands)
        seen["lost epochs"] += sum("has lost epoch" in line for line in world.trace)
        seen["lost commands"] += sum("has lost commands" in line for line in world.trace)
        seen["claims of the gone"] += sum(
            isinstance(record.events[0], PartitionClaimed) for record in world.history
        ) - sum("has claimed" in line for line in world.trace)
    often = ("void", "lost epochs", "lost commands", "claims of the gone")
    assert all(seen[what] > 100 for what in often), seen
    assert seen["replies"] > seen["commands"], "some are sent again"


class EverythingCounts(Claims):
    """The fold without its rule."""

    @override
    def admit(self, offset: int, record: HistoryAppended) -> bool:
        super().admit(offset, record)
        self.cause = max(self.cause, record.cause)
        return not isinstance(record.events[0], PartitionClaimed)


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        (Rules(claims=EverythingCounts), "expected|outcome|after its end|while it is running"),
        (Rules(checks_gaps=False), "acts on offset .* which does not count"),
        (Rules(stays_stopped=False), "acts on offset .* which does not count"),
        (Rules(knows_its_claim_by_offset=False), "acts on offset .* which does not count"),
        (Rules(reads_to_own_claim=False), "remembers what the log up to .* does not say"),
        (Rules(begins_after_cause=False), "outcome"),
        (Rules(producers_refuse_holes=False), "expected|outcome|after its end"),
        (Rules(sends_replies_again=False), "no rest"),
        (Rules(notes_leaders=False), "no rest|outcome"),
        (Rules(compares_commands=False), "no rest|outcome"),
        (Rules(watches_leaders=False), "no rest|outcome"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else _name(value),
)
def test_no_rule_can_be_left_out(left_out: Rules, expected: str):
    with pytest.raises(Violation, match=expected):
        run_all(SEEDS_TO_FAIL, left_out)


def _name(rules: Rules) -> str:
    every = Rules()
    return next(name for name in vars(every) if getattr(rules, name) != getattr(every, name))
