"""A row is compared with its record and its deliveries, value by value."""

import asyncio
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.gateway.builtin import row_comparison
from headwater.gateway.builtin.row_comparison import (
    RowComparison,
    _difference,
    _Sample,
    is_same,
)
from headwater.processors.auditor.state import RowState
from headwater.processors.columns import RowUpdate
from headwater.projections.deliveries.lineage import Source, SourcedRow
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.records import Stamp, WebhookReceived
from headwater.schemas.tables import DAILY_SUMMARY, Row
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline import delivery_lookup

STAMP = Stamp(0, 5, 0, "e", 0, 3)
KEY = ("user_1", "garmin", "2026-07-01")
VALUES = {"steps": 10, "resting_heart_rate": 50.5}


def sample(is_newest: bool = True) -> _Sample:
    names = DAILY_SUMMARY.column_names
    row = Row(
        KEY,
        tuple(VALUES.get(name) for name in names),
        tuple(STAMP if name in VALUES else None for name in names),
    )
    value = encode_row(DAILY_SUMMARY, row)
    record = Outgoing(DAILY_SUMMARY.topic, 0, b"k", value).as_read()
    return _Sample(DAILY_SUMMARY, record, row, is_newest)


def stored(event_id: str = "e", **changed: Any) -> SourcedRow:  # noqa: ANN401 (Postgres's)
    values = dict.fromkeys(DAILY_SUMMARY.column_names) | VALUES | changed
    source = Source(event_id, "webhooks/0@3", datetime(2026, 7, 1, tzinfo=UTC))
    return SourcedRow(
        dict(zip(DAILY_SUMMARY.key_names, KEY, strict=True)), values, dict.fromkeys(VALUES, source)
    )


def test_equal_rows_do_not_differ():
    assert _difference(sample(), stored(), []) == ""
    update = RowUpdate(DAILY_SUMMARY, KEY, VALUES, STAMP)
    assert _difference(sample(), stored(), [update]) == ""


def test_a_value_that_was_changed_is_named():
    assert "values of the record, found others in steps" in _difference(
        sample(), stored(steps=11), []
    )


def test_a_row_of_other_deliveries_is_compared_with_these():
    assert _difference(sample(), stored("later", steps=11), []) == ""
    later = RowUpdate(DAILY_SUMMARY, KEY, {"steps": 12}, Stamp(0, 6, 0, "later", 0, 4))
    found = _difference(sample(), stored("later", steps=11), [later])
    assert "values of the deliveries, found others in steps" in found
    assert _difference(sample(), stored("later", steps=12), [later]) == ""


@pytest.mark.parametrize(
    ("value", "other", "same"),
    [
        ("2026-07-01T10:00:00Z", datetime(2026, 7, 1, 10, tzinfo=UTC), True),
        ("2026-07-01T12:00:00+02:00", datetime(2026, 7, 1, 10, tzinfo=UTC), True),
        ("2026-07-01T10:00:01Z", datetime(2026, 7, 1, 10, tzinfo=UTC), False),
        ("2026-07-01", date(2026, 7, 1), True),
        ("2026-07-02", date(2026, 7, 1), False),
        ("a\0b", "a\ufffdb", True),
        (None, None, True),
        (None, 0, False),
        (1.5, 1.5, True),
        ("x", None, False),
    ],
)
def test_values_are_compared_as_postgres_stores_them(value: Any, other: Any, same: bool):  # noqa: ANN401 (theirs)
    column = DAILY_SUMMARY.columns[0]
    assert is_same(column, value, other) == same


def comparison_of_nothing() -> RowComparison:
    return RowComparison(
        cluster=Cluster("nowhere:1"),
        reader=cast("Any", None),
        providers=cast("Any", None),
        rows=6,
        clock=lambda: 0,
    )


def test_rows_without_a_topic_or_a_partition_are_forgotten():
    comparison = comparison_of_nothing()
    gone = ("removed/0@3", f"{DAILY_SUMMARY.topic}/4@3")
    state = RowState(differing=dict.fromkeys(gone, "expected a row in Postgres, found none"))
    for ends in ({}, {DAILY_SUMMARY.topic: (9, 9)}):
        asyncio.run(comparison._compare_again(state, ends))
    assert state.differing == {}


def test_a_delivery_that_was_moved_to_an_added_partition_is_compared(
    monkeypatch: pytest.MonkeyPatch,
):
    delivery = WebhookReceived(
        event_id="e",
        request_id="r",
        source="terra",
        type="daily",
        subject="t1",
        sent_at_ms=1,
        updated_at_ms=0,
        received_at_ms=1,
        body=b"{}",
    )
    moved = Outgoing(WEBHOOKS, 2, b"e", encode(delivery)).as_read()

    async def located(*_: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(partition=0, offset=3, user_id="user_1")]

    async def read(*args: Any, **_: object) -> dict[tuple[int, int], Incoming]:  # noqa: ANN401
        return {(2, 3): moved} if (2, 3) in args[2] else {}

    async def growths(_: object) -> list[tuple[int, list[int]]]:
        return [(2, [10, 10])]

    async def ends_of(_: object) -> dict[str, tuple[int, ...]]:
        return {WEBHOOKS: (10,) * 4}

    update = RowUpdate(DAILY_SUMMARY, KEY, VALUES, STAMP)
    monkeypatch.setattr(row_comparison, "deliveries_by_id", located)
    monkeypatch.setattr(row_comparison, "topic_growths", growths)
    monkeypatch.setattr(delivery_lookup, "read_records_at", read)
    monkeypatch.setattr(row_comparison, "admitted", lambda *args: args[-2:])
    monkeypatch.setattr(row_comparison, "updates_of", lambda at, _: [update] * (at == (0, 3)))
    comparison = comparison_of_nothing()
    monkeypatch.setattr(comparison._offsets, "ends_of", ends_of)
    assert asyncio.run(comparison._computed([stored()])) == [update]
