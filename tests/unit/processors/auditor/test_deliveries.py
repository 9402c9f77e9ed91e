"""One outcome for each delivery: every violation is found, and nothing else."""

import msgspec
import pytest

from headwater.processors.auditor import deliveries
from headwater.processors.auditor.deliveries import (
    LATE_AFTER_MS,
    DeliveryFold,
    DeliveryState,
    Unsettled,
)
from headwater.schemas.auditor import Law

NOW_MS = 1_783_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
PASSED = {0: 100}


def received(*ids: str, at_ms: int = NOW_MS, proof_until_ms: int = 0) -> DeliveryFold:
    fold = DeliveryFold(DeliveryState())
    for offset, name in enumerate(ids):
        fold.receive(0, offset, Unsettled(name, at_ms, proof_until_ms))
    return fold


def settled(fold: DeliveryFold, name: str, status: str = "processed", partition: int = 0) -> None:
    first = 0, {"a": 0, "b": 1}[name]
    fold.settle(name, status, NOW_MS, first, partition, f"webhook-outcomes/{partition}@7")


def laws(fold: DeliveryFold, passed: dict[int, int], now_ms: int = NOW_MS) -> list[tuple[Law, str]]:
    found = [
        *fold.lost(passed, now_ms),
        *fold.late(passed, now_ms, DAY_MS),
        *fold.changed_outcomes(),
    ]
    return [(violation.law, violation.subject) for violation in found]


def test_a_delivery_that_was_passed_without_an_outcome_is_lost():
    fold = received("a", "b")
    settled(fold, "a")
    assert laws(fold, PASSED) == [(Law.DELIVERY_LOST, "webhooks/0@1")]
    settled(fold, "b")
    assert laws(fold, PASSED) == []
    assert fold.state.received == 2


def test_what_the_pipeline_has_not_passed_waits_and_is_late_only_after_some_time():
    fold = received("a")
    assert laws(fold, {}) == []
    assert fold.count_waiting({}) == 1
    assert laws(fold, {}, NOW_MS + LATE_AFTER_MS + 1) == [(Law.DELIVERY_LATE, "webhooks/0")]


def test_parked_deliveries_are_counted_until_their_wait_ends():
    fold = received("a")
    settled(fold, "a", "parked")
    assert laws(fold, PASSED) == []
    assert list(fold.state.parked) == ["a"]
    assert laws(fold, PASSED, NOW_MS + 2 * DAY_MS) == [(Law.DELIVERY_LATE, "waiting")]
    settled(fold, "a")
    assert not fold.state.parked


def test_a_duplicate_ends_with_its_trace_and_is_no_delivery():
    fold = received("a", "a")
    fold.drop_copy(0, 1)
    settled(fold, "a")
    assert laws(fold, PASSED) == []
    assert fold.state.received == 1


def test_a_duplicate_whose_trace_is_read_after_the_outcome_is_no_delivery():
    fold = received("a", "a")
    settled(fold, "a")
    fold.drop_copy(0, 1)
    assert fold.state.received == 1


def test_of_a_compacted_log_the_outcome_of_the_same_id_ends_a_duplicate():
    fold = received("a")
    fold.receive(0, 5, Unsettled("a", NOW_MS))
    settled(fold, "a")
    assert laws(fold, PASSED) == []


def test_without_its_trace_a_recurring_event_is_unproven_once_traces_are_deleted():
    fold = received("a", proof_until_ms=NOW_MS + DAY_MS)
    assert laws(fold, PASSED) == [(Law.DELIVERY_LOST, "webhooks/0@0")]
    assert laws(fold, PASSED, NOW_MS + DAY_MS + 1) == []
    assert fold.state.unproven == 1


def test_a_dead_letter_ends_what_is_no_delivery():
    fold = received("a")
    fold.refuse(0, 0)
    assert laws(fold, PASSED) == []


def test_a_wipe_ends_deliveries_and_may_remove_their_outcomes():
    fold = received("a", "b")
    settled(fold, "b", "parked")
    for name in ("a", "b"):
        fold.wipe(name)
        fold.remove_outcome(name, "webhook-outcomes/0@9", by_owner=True)
    assert laws(fold, PASSED) == []
    assert not fold.state.parked


def test_an_outcome_that_somebody_else_removes_is_found_until_there_is_another():
    fold = received("a")
    settled(fold, "a")
    fold.remove_outcome("a", "webhook-outcomes/0@9", by_owner=False)
    assert laws(fold, PASSED) == [(Law.OUTCOME_REMOVED, "a")]
    settled(fold, "a")
    assert laws(fold, PASSED) == []


def test_two_outcomes_of_one_pass_in_two_partitions_are_found():
    fold = received("a", "b")
    settled(fold, "a")
    settled(fold, "a", partition=1)
    settled(fold, "b")
    # It was reprocessed, and may be at another owner since.
    fold.settle("b", "processed", 0, (0, 1), None, "webhook-outcomes/1@8")
    assert laws(fold, PASSED) == [(Law.OUTCOME_REPEATED, "a")]


def test_a_stored_state_continues():
    fold = received("a", "b")
    settled(fold, "a", "parked")
    data = msgspec.msgpack.encode(fold.state)
    again = DeliveryFold(msgspec.msgpack.decode(data, type=DeliveryState))
    assert laws(again, PASSED) == laws(fold, PASSED) == [(Law.DELIVERY_LOST, "webhooks/0@1")]
    settled(again, "b")
    assert laws(again, PASSED) == []


def test_no_part_of_the_state_grows_without_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deliveries, "_PARKED_MAX", 3)
    monkeypatch.setattr(deliveries, "_CHANGED_MAX", 3)
    fold = DeliveryFold(DeliveryState())
    for number in range(9):
        name, position = f"e{number}", f"webhook-outcomes/0@{number}"
        for partition in (0, 1):
            fold.settle(name, "parked", NOW_MS, (0, number), partition, position)
        fold.remove_outcome(f"r{number}", position, by_owner=False)
    assert list(fold.state.parked) == ["e6", "e7", "e8"]
    # Of violations the first ones: their findings are open already.
    assert list(fold.state.repeated) == ["e0", "e1", "e2"]
    assert list(fold.state.removed) == ["r0", "r1", "r2"]
