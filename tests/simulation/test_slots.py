"""Goal: no slot of a limit of concurrency is ever lost, or given twice, and nobody waits for ever.

Method: worlds as those of `test_engine`, in which limited runs are created, paused, ended, deleted
and restarted, limits change, and owners of either side crash, supersede each other, and send again
what they had sent. Then worlds that lack a rule, which must fail. More seeds:
`python -m tests.simulation.engine --slots --seeds 5000`.
"""

import pytest

import headwater.processors.slots.queue as counting
import headwater.streams.engine.commands as owning
import headwater.streams.engine.driver as driving
from headwater.processors.runs import outbox
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.state import Run
from headwater.schemas.history import CommandSent, GrantSlot, Post
from tests.simulation.engine import limited_shapes, run
from tests.simulation.shapes import Violation

#: Owners that go on without knowing that they are none send late what they had to send.
ZOMBIES = {"supersede": 0.05, "bury": 0.01}


def test_no_slot_is_lost_or_given_twice_and_whoever_waits_has_one_in_the_end():
    provided = waited = deleted = 0
    for seed in range(24):
        world = run(seed, shapes=limited_shapes(seed), rates=ZOMBIES if seed % 2 else None)
        provided += world.slots.given
        waited += world.slots.waited
        deleted += sum(len(partition.reader.forgotten) for partition in world.partitions)
    assert provided > 200
    assert waited > 40
    assert deleted > 20


def fails(message: str, seeds: range = range(4)) -> None:
    """Expects that a world that lacks a rule does not come to its end."""
    said = []
    for seed in seeds:
        try:
            run(seed, shapes=limited_shapes(seed), rates=ZOMBIES)
        except Violation as violation:
            said.append(str(violation))
    assert any(message in item for item in said), said


def test_a_run_that_keeps_its_slot_when_it_ends_is_found_out(monkeypatch: pytest.MonkeyPatch):
    def nothing(_: Run) -> list[Post]:
        return []

    monkeypatch.setattr(outbox, "slot_return", nothing)
    fails("expected every run to end")


def test_a_slot_too_many_is_found_out(monkeypatch: pytest.MonkeyPatch):
    free = counting._free
    monkeypatch.setattr(counting, "_free", lambda held, limit: free(held - 1, limit))
    fails("slots, found")


def test_a_slot_that_nobody_wants_and_that_does_not_come_back_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
):
    notice = owning.refusal_notice

    def no_return(
        sent: CommandSent, rejection: Rejection, of: Run | None, now_ms: int
    ) -> CommandSent | None:
        back = notice(sent, rejection, of, now_ms)
        return None if isinstance(sent.command, GrantSlot) else back

    monkeypatch.setattr(owning, "refusal_notice", no_return)
    monkeypatch.setattr(driving, "refusal_notice", no_return)
    fails("expected every run to end", range(40, 41))
