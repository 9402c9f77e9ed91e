"""Goal: whatever goes wrong, a run ends as it would have ended, and nothing that is done is redone.

Method: hundreds of worlds, each from one seed: workflows of every shape on two or three partitions,
whose owners crash before, in and after appends, supersede each other, evict, restore from snapshots
and lose their hosts. Then worlds that lack a rule, or whose engine has a fault: each must fail, or
the simulation proves nothing. More seeds: `python -m tests.simulation.engine --seeds 10000`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import pytest
from typing_extensions import override

import headwater.processors.code.decide as deciding
from headwater.processors.code.host_messages import Return, Suspend
from headwater.processors.code.lifecycle import end_run
from headwater.processors.code.state import CodeRun
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import STALE, Decision, Request, StepUnderWay
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    CommandSent,
    HistoryAppended,
    PartitionClaimed,
    RunCompleted,
    RunSuspended,
)
from headwater.schemas.statuses import RunStatus
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.effects import Batch, Queued
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.turns import Flight, Partition, Turn
from tests.simulation.engine import CANCELS, cancelled_shapes, expected, run
from tests.simulation.engine_world import Rules, World
from tests.simulation.shapes import SHAPES, Violation

SEEDS = range(80)
#: Seeds that found a fault, and what it was.
FOUND = {
    19: "an instance that was restored from the log had no snapshot at the next checkpoint",
    302: "the same, of a run that is paused",
    57: "an active instance that was restored from its snapshot was never given to the host",
    301: "the same, of a child and its parent",
    26: "memory had another time than the record of what two calls had staged",
    254: "the same, of a second run",
}


def left(world: World) -> list[str]:
    """What has not ended in a world that has; all other laws are checked while it runs."""
    return [key for key, state in world.runs().items() if not state.ended]


@cache
def played(seed: int) -> tuple[list[str], Counter[str]]:
    """What has not ended in the world of a seed, and what went wrong there; it is played once."""
    world = run(seed)
    seen = Counter(world.seen)
    seen["void"] = sum(
        partition.reader.void - _claims(partition.history) for partition in world.partitions
    )
    seen["retries"] = sum(len(partition.reader.retried) for partition in world.partitions)
    seen["calls again"] = world.calls - len(world.ended)
    return left(world), seen


@pytest.mark.parametrize("block", range(10))
def test_runs_end_as_they_would_without_faults_and_nothing_completed_runs_again(block: int):
    for seed in SEEDS[block::10]:
        unended, _ = played(seed)
        assert unended == []


@pytest.mark.soak
def test_runs_end_as_they_would_without_faults_in_thousands_of_worlds():
    for seed in range(5_000):
        assert left(run(seed)) == []


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_stays_mended(seed: int):
    assert left(run(seed)) == []


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_without_faults_a_shape_ends_the_same_in_every_order_of_events(name: str):
    for order in range(1, 4):
        assert expected(name, 0, order) == expected(name, 0)


@pytest.mark.parametrize("block", range(2))
def test_what_is_cancelled_ends_as_that_and_leaves_nothing_standing(block: int):
    seen: Counter[str] = Counter()
    for seed in range(block, 60, 2):
        world = run(seed, shapes=cancelled_shapes(seed), rates=CANCELS)
        assert left(world) == []
        seen += world.seen
    assert seen["cancelled"] > 25


def test_an_engine_that_completes_a_cancelled_run_is_found_out(monkeypatch: pytest.MonkeyPatch):
    def complete(run: CodeRun, asked: Return, _: int) -> Decision:
        return end_run(run, RunCompleted(asked.output))

    monkeypatch.setitem(deciding._DECIDERS, Return, complete)
    messages = shown(LeftOut(None, 12, ["refused"] * 3, "", {"cancel": 0.1}))
    assert any("was cancelled, and ends by" in message for message in messages)


def test_a_seed_gives_the_same_world_again():
    assert run(3).traced() == run(3).traced()


def test_the_worlds_are_as_bad_as_they_should_be():
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += played(seed)[1]
    often = ("crash", "supersede", "host", "reread", "strays", "evict", "checkpoint", "torn")
    assert all(
        seen[what] > 20
        for what in (*often, "twice", "jump", "operator", "void", "retries", "signal")
    ), seen


def _claims(history: list[HistoryAppended]) -> int:
    return sum(isinstance(record.events[0], PartitionClaimed) for record in history)


class EverythingCounts(Claims):
    """The fold without its rule."""

    @override
    def admit(self, offset: int, record: HistoryAppended) -> bool:
        super().admit(offset, record)
        self.cause = max(self.cause, record.cause)
        return not isinstance(record.events[0], PartitionClaimed)


class DecidesAgain(Owner):
    """An owner that does not know which commands have their outcome."""

    @override
    def receive(self, offset: int, sent: CommandSent, now_ms: int) -> None:
        self.claims.cause = min(self.claims.cause, offset - 1)
        super().receive(offset, sent, now_ms)


class KeepsEarly(Owner):
    """An owner that keeps states whose events are not durable yet."""

    @override
    def evict(self, before_ms: int, acknowledged: int, position: int) -> int:
        return super().evict(before_ms, self.batch_number, position)


class KeepsAhead(Owner):
    """An owner that says of states that they have what comes after them."""

    @override
    def evict(self, before_ms: int, acknowledged: int, position: int) -> int:
        return super().evict(before_ms, acknowledged, position + 5)


class ForgetsPosts(Owner):
    """An owner that does not send what its predecessor has left unsent."""

    @override
    def take_batch(self) -> Batch:
        batch = super().take_batch()
        if batch.number == 1:
            batch.effects = [effect for effect in batch.effects if not isinstance(effect, Queued)]
        return batch


class ForgetsTime(Owner):
    """An owner that does not look at what waits for time."""

    @override
    def wake(self, now_ms: int, reached_ms: int | None = None, *, complete: bool = False) -> None:
        pass

    @override
    def next_due_ms(self) -> None:
        return None


class HidesFirstAttempts(Owner):
    """An owner that records an attempt only when it has ended."""

    @override
    def _request(self, live: LiveInstance, request: Request, now_ms: int) -> None:
        if not isinstance(request, StepUnderWay):
            super()._request(live, request, now_ms)


class ReleasesEarly(Driver):
    """A driver that lets go what follows from a batch before that is durable."""

    @override
    def turn(self, now_ms: int, limit: int | None = None, **more: Any) -> Turn:
        turn = super().turn(now_ms, limit, **more)
        for partition, batch in turn.flights:
            self._release_effects(partition, batch, 0)
            batch.effects.clear()
        return turn


class ReleasesInAnyOrder(Driver):
    """A driver that does not wait for the batches before."""

    @override
    def appended(self, flight: Flight, first: int | None) -> None:
        partition, batch = flight
        partition.in_flight.remove(batch)
        self._release_effects(partition, batch, first or 0)


class CountsTheBatchBefore(Driver):
    """A driver that says of a partition where its latest batch begins, not where it ends."""

    @override
    def _release_effects(self, partition: Partition, batch: Batch, first: int) -> None:
        super()._release_effects(partition, batch, first)
        if batch.records:
            partition.position = first


class SendsToTheNextHost(Driver):
    """A driver that gives a host what was for the one before it."""

    @override
    def host_started(self, host: int = 0) -> None:
        pass


class TakesBackFromAll(Driver):
    """A driver that does not know which host is gone."""

    @override
    def host_lost(self, reason: str, turn: int | None = None, *, host: int = 0) -> None:
        for number in range(2):
            super().host_lost(reason, turn, host=number)


class AnswersOnce(Driver):
    """A driver that does not answer a command again whose outcome was recorded by another."""

    @override
    def _receive(self, partition: Partition, offset: int, sent: CommandSent, now_ms: int) -> None:
        partition.owner.receive(offset, sent, now_ms)


class WakesBeforeItHasRead(Driver):
    """A driver that lets time pass over commands that it has not read."""

    @override
    @staticmethod
    def _reached_ms(partition: Partition) -> int:
        return partition.now_ms


class LeftOut(NamedTuple):
    """A rule that is left out, and the worlds that show it.

    Shape:  `found` is how many of SHOWN seeds did when this was written. ENOUGH of them must: a
            change of records or draws moves the seeds, and not what they show.
    """

    rules: Rules | None
    found: int
    shapes: Sequence[str]
    message: str
    rates: Mapping[str, float] = {}
    released: bool = False


SHOWN: Final = 40
ENOUGH: Final = 3


def shown(left_out: LeftOut) -> list[str]:
    """What the worlds say that fail, with what they print; no more than are enough."""
    messages: list[str] = []
    for seed in range(SHOWN):
        try:
            run(
                *(seed, left_out.rules, left_out.shapes, left_out.rates), released=left_out.released
            )
        except (Violation, InvariantViolation) as violation:
            notes = "".join(violation.__notes__)
            assert notes.startswith(f"seed {seed}: "), notes
            assert len(notes.splitlines()) > 3, "a trace that can be read"
            messages.append(str(violation))
        if len(messages) == ENOUGH:
            return messages
    pytest.fail(f"expected {ENOUGH} of {SHOWN} worlds to fail, found {len(messages)}: {messages}")


_CRASHES: Final = {"crash": 0.1, "torn": 0}
_EVICTS: Final = {"evict": 0.5, "crash": 0.05, "checkpoint": 0.2}
_LOSES_HOSTS: Final = {"host": 0.1}
_HURRIES: Final = {"haste": 0.05, "script": 0, "skew": 0}


@pytest.mark.parametrize(
    "left_out",
    [
        LeftOut(Rules(driver=ReleasesEarly), 40, ["line"], "what the log does not say"),
        LeftOut(
            Rules(driver=ReleasesInAnyOrder), 13, ["crowd", "children"], "what the log does not say"
        ),
        LeftOut(Rules(driver=CountsTheBatchBefore), 34, ["line"], "expected", _EVICTS),
        LeftOut(
            Rules(driver=SendsToTheNextHost),
            15,
            ["children", "family", "refused"],
            "for nobody",
            _LOSES_HOSTS,
        ),
        LeftOut(
            Rules(driver=TakesBackFromAll), 21, ["children", "family"], "for nobody", _LOSES_HOSTS
        ),
        LeftOut(Rules(driver=WakesBeforeItHasRead), 14, ["listens"] * 3, "had been sent", _HURRIES),
        LeftOut(
            Rules(checks_epoch=False),
            30,
            ["line"],
            "was .* is now|does not say|which",
            {"supersede": 0.1},
        ),
        LeftOut(Rules(driver=AnswersOnce), 24, ["refused"] * 3, "to end", _CRASHES),
        LeftOut(Rules(commits_after_notices=False), 9, ["refused"] * 4, "to end", _CRASHES),
        LeftOut(Rules(owner=KeepsEarly), 16, ["line"] * 3, "expected sequence", _EVICTS),
        LeftOut(Rules(owner=KeepsAhead), 19, ["line"] * 3, "expected", _EVICTS),
        LeftOut(
            Rules(claims=EverythingCounts), 33, ["line"], "outcome|expected", {"supersede": 0.05}
        ),
        LeftOut(Rules(owner=DecidesAgain), 36, ["line"], "outcome", {"reread": 0.1}),
        LeftOut(Rules(owner=ForgetsPosts), 17, ["transactions"], "expected", {"crash": 0.05}),
        LeftOut(Rules(owner=ForgetsTime), 40, ["line"], "to end"),
        LeftOut(Rules(owner=HidesFirstAttempts), 32, ["line"] * 3, "and nobody sees it"),
    ],
    ids=lambda left_out: _name(left_out.rules),
)
def test_no_rule_can_be_left_out(left_out: LeftOut):
    assert any(re.search(left_out.message, message) for message in shown(left_out))


def _name(rules: Rules) -> str:
    every = Rules()
    left_out = next(name for name in vars(every) if getattr(rules, name) != getattr(every, name))
    return getattr(getattr(rules, left_out), "__name__", left_out)


def test_an_engine_that_takes_a_stale_result_is_found_out(monkeypatch: pytest.MonkeyPatch):
    def fresh(run: CodeRun, key: str, attempt: int) -> bool:
        return False

    monkeypatch.setattr(deciding, "is_stale", fresh)
    shown(LeftOut(None, 31, ["hurried"] * 3, "", {"tick": 0.2}))


def test_an_engine_that_suspends_a_run_whose_step_is_tried_again_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
):
    def suspend(run: CodeRun, asked: Suspend, _: int) -> Decision:
        late = run.resolved > asked.seen or run.status is not RunStatus.ACTIVE
        return STALE if late else [RunSuspended()]

    monkeypatch.setitem(deciding._DECIDERS, Suspend, suspend)
    messages = shown(LeftOut(None, 33, ["family", "mended", "children"], ""))
    assert any("is under way" in message for message in messages)
