"""Gapless sequences and one result for each step: every violation is found, and nothing else."""

from typing import Any

import msgspec
import pytest

from headwater.processors.auditor import histories
from headwater.processors.auditor.histories import HistoryFold, HistoryState
from headwater.processors.runs.claims import claim_of
from headwater.schemas.auditor import Law
from headwater.schemas.history import (
    Failure,
    InstanceDeleted,
    LogEvent,
    PostsSent,
    RunCompleted,
    RunStarted,
    RunSuspended,
    StepCompleted,
    StepFailed,
    TokenCompleted,
)
from tests.fakes.records import appended


def step(key: str) -> StepCompleted:
    return StepCompleted(key, key, 0, 0, 1, 1, 0, "null")


STARTED = RunStarted("null", "seed")


class History:
    """A partition that one owner has claimed, and the fold that reads it."""

    def __init__(self, state: HistoryState | None = None) -> None:
        self.fold = HistoryFold(3, state or HistoryState())
        self.offset = -1
        self.epoch = -1
        if state is None:
            self.claim()

    def claim(self) -> None:
        self.offset += 1
        self.epoch = self.offset
        self.fold.apply(self.offset, claim_of("owner", {}, 0))

    def add(self, *events: LogEvent, **said: Any) -> "History":  # noqa: ANN401 (its fields)
        self.offset += 1
        self.fold.apply(self.offset, appended(*events, **{"epoch": self.epoch, **said}))
        return self

    def laws(self) -> list[tuple[Law, str]]:
        return [(violation.law, violation.subject) for violation in self.fold.violations()]


def test_a_history_in_order_violates_nothing():
    history = History().add(STARTED, RunSuspended()).add(step("a"), sequence=2)
    history.add(PostsSent(0), sequence=0).add(RunCompleted("null"), sequence=3)
    history.add(STARTED, run_number=1).add(step("a"), run_number=1, sequence=1)
    assert history.laws() == []
    assert history.fold.state.results == 2


@pytest.mark.parametrize(
    "said",
    [{"sequence": 2}, {"sequence": 0}, {"sequence": 1, "run_number": 1}],
    ids=["gap", "repeated", "another run"],
)
def test_a_record_out_of_sequence_is_found(said: dict[str, Any]):
    history = History().add(STARTED).add(step("a"), **said)
    assert history.laws() == [(Law.SEQUENCE_BROKEN, "order/o-1")]


def test_a_run_that_was_skipped_and_a_history_without_its_beginning_are_found():
    assert History().add(STARTED).add(STARTED, run_number=2).laws() == [
        (Law.SEQUENCE_BROKEN, "order/o-1")
    ]
    assert History().add(step("a"), sequence=4).laws() == [(Law.SEQUENCE_BROKEN, "order/o-1")]


def test_a_gap_is_reported_once_and_ends_with_the_instance():
    history = History().add(STARTED).add(step("a"), sequence=5).add(step("b"), sequence=6)
    assert len(history.laws()) == 1
    assert "sequence 5" in next(history.fold.violations()).detail
    history.add(InstanceDeleted())
    assert history.laws() == []
    assert history.add(STARTED).laws() == []


def test_a_second_result_of_a_step_is_found():
    history = History().add(STARTED).add(step("a"), sequence=1).add(step("a"), sequence=2)
    assert history.laws() == [(Law.RESULT_REPEATED, "order/o-1")]


def test_a_result_after_a_final_failure_is_found_and_after_a_retry_is_not():
    failed = StepFailed("a", "a", 0, 0, 1, 2, 0, Failure("Error", "no"), None)
    again = msgspec.structs.replace(failed, retry_at_ms=5)
    fine = History().add(STARTED).add(again, sequence=1).add(step("a"), sequence=2)
    assert fine.laws() == []
    twice = History().add(STARTED).add(failed, sequence=1).add(step("a"), sequence=2)
    assert twice.laws() == [(Law.RESULT_REPEATED, "order/o-1")]


def test_a_step_that_a_retry_has_kept_has_its_result_already():
    history = History().add(STARTED).add(step("a"), sequence=1)
    kept = RunStarted("null", "seed", kept=("a",))
    history.add(kept, run_number=1).add(step("a"), run_number=1, sequence=1)
    assert history.laws() == [(Law.RESULT_REPEATED, "order/o-1")]


def test_a_token_of_a_graph_has_one_result():
    history = History().add(STARTED).add(TokenCompleted(4, 1, "1"), sequence=1)
    assert history.add(TokenCompleted(5, 1, "1"), sequence=2).laws() == []
    history.add(TokenCompleted(4, 2, "1"), sequence=3)
    assert history.laws() == [(Law.RESULT_REPEATED, "order/o-1")]


def test_records_of_a_former_owner_are_ignored():
    history = History().add(STARTED)
    former = history.epoch
    history.claim()
    history.add(step("a"), sequence=1, epoch=former).add(step("a"), sequence=1)
    assert history.laws() == []
    assert history.fold.state.ignored == 1


def test_a_stored_state_continues_within_a_run():
    history = History().add(STARTED).add(step("a"), sequence=1)
    data = msgspec.msgpack.encode(history.fold.state)
    again = History(msgspec.msgpack.decode(data, type=HistoryState))
    again.offset, again.epoch = history.offset, history.epoch
    again.add(step("a"), sequence=2)
    assert again.laws() == [(Law.RESULT_REPEATED, "order/o-1")]


def test_what_was_forgotten_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(histories, "_INSTANCES_MAX", 2)
    history = History()
    for name in ("a", "b", "c"):
        history.add(STARTED, instance_id=name)
    history.add(step("x"), instance_id="a", sequence=7)
    assert history.laws() == []
    history.add(step("y"), instance_id="a", sequence=9)
    assert history.laws() == [(Law.SEQUENCE_BROKEN, "order/a")]


def test_results_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(histories, "_RESULTS_MAX", 10)
    history = History().add(STARTED)
    for number in range(30):
        history.add(step(str(number)), sequence=number + 1)
    assert history.fold.state.remembered <= 10
    assert history.laws() == []


def test_of_a_history_that_is_read_from_its_middle_the_latest_owner_counts():
    history = History(HistoryState(is_whole=False))
    history.offset, history.epoch = 20, 3
    history.add(step("a"), sequence=7)
    # Its owner was superseded before: the claim at offset 15 was not read.
    history.epoch = 15
    history.add(step("a"), sequence=4).add(step("b"), sequence=5)
    history.epoch = 3
    history.add(step("c"), sequence=8)
    assert history.laws() == []
    assert history.fold.state.ignored == 1
    history.epoch = 15
    assert history.add(step("c"), sequence=8).laws() != []
