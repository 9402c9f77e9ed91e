"""The quality of the data by week, on a real Postgres."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.quality import Quality, quality
from headwater.projections.deliveries.queries import Reader
from headwater.projections.projector.store import Store
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY
from tests.integration.written import (
    Written,
    answer,
    apply,
    duplicate,
    outcome,
    row,
    stamp,
    table_record,
)

NOW = datetime.now(UTC)
TODAY = NOW.date()
MONDAY = TODAY - timedelta(days=TODAY.weekday())


def at(day: date, hour: int = 12) -> int:
    return int(datetime(day.year, day.month, day.day, hour, tzinfo=UTC).timestamp() * 1_000)


def connection(subject: str, user: str, provider: str, since: date) -> Written:
    by = stamp(f"auth-{subject}", at(since))
    values: dict[str, Any] = {"user_id": user, "provider": provider, "active": True}
    return table_record(CONNECTIONS, row(CONNECTIONS, (subject,), by, **values))


def day(user: str, when: date, sent: date, event_id: str) -> Written:
    by = stamp(event_id, at(sent))
    return table_record(
        DAILY_SUMMARY, row(DAILY_SUMMARY, (user, "garmin", when.isoformat()), by, steps=1)
    )


def received(event_id: str, when: date, **values: object) -> Written:
    ms = at(when)
    times = {"received_at_ms": ms, "admitted_at_ms": ms, "at_ms": ms}
    return outcome(event_id, **{**times, **values})


def read(
    dsn: str, records: list[Written], then: Callable[[Reader], Awaitable[Quality]]
) -> list[dict[str, Any]]:
    async def run() -> Quality:
        store = Store(dsn, projection=DELIVERIES, clock=lambda: int(NOW.timestamp() * 1_000))
        async with Reader(dsn) as reader:
            try:
                await apply(store, records)
                return await then(reader)
            finally:
                await store.close()

    answered = asyncio.run(run())
    return msgspec.to_builtins(answered)


def test_weeks_count_what_came_and_what_is_missing(migrated: str):
    last = MONDAY - timedelta(days=7)
    fields = json.dumps(
        [
            {"path": "data[0].heart.resting", "reason": "not_measured", "count": 2},
            {"path": "data[1].heart.resting", "reason": "not_measured", "count": 1},
            {"path": "data[0].stress", "reason": "out_of_range", "count": 1},
        ]
    )
    late = last + timedelta(days=5)
    records = [
        connection("t1", "user_1", "GARMIN", last - timedelta(days=1)),
        received("e1", last, rows=3, rejected=1, rejected_fields=fields, rejected_fields_total=4),
        received("e2", last, status="dead", reason="no_usable_record", rows=0),
        received("e3", last, subject="unknown", status="parked", rows=0),
        received("late", late, rows=1),
        received("old", MONDAY - timedelta(days=28)),
        duplicate("req-again", received_at_ms=at(last)),
        answer("req-answered", code="duplicate", event_id="e2"),
        # Two days of the week have data; one of them came five days later.
        day("user_1", last, late, "late"),
        day("user_1", last + timedelta(days=1), last + timedelta(days=2), "e1"),
    ]
    result = read(migrated, records, lambda reader: quality(reader, weeks=2))
    by_key = {(row["week"], row["source"], row["provider"]): row for row in result["weeks"]}
    garmin = by_key[last.isoformat(), "terra", "garmin"]
    names = ("deliveries", "processed", "dead", "rows", "rejected_records", "rejected_values")
    assert [garmin[name] for name in names] == [3, 2, 1, 4, 1, 4]
    assert garmin["late_days"] == 1
    last_known = min(TODAY - timedelta(days=2), last + timedelta(days=6))
    assert garmin["missing_days"] == (last_known - last).days + 1 - 2
    assert by_key[last.isoformat(), "terra", ""]["parked"] == 1
    assert garmin["duplicates"] >= 1
    assert all(row["week"] >= last.isoformat() for row in result["weeks"])
    assert result["rejected_values"] == [
        {
            "week": last.isoformat(),
            "source": "terra",
            "provider": "garmin",
            "field": field,
            "reason": reason,
            "number": number,
        }
        for field, reason, number in [
            ("data[].heart.resting", "not_measured", 3),
            ("data[].stress", "out_of_range", 1),
        ]
    ]


def test_other_sources_are_left_out(migrated: str):
    records = [received("e1", MONDAY), received("e2", MONDAY, source="github", subject="repo")]
    result = read(migrated, records, lambda reader: quality(reader, weeks=1, source="github"))
    assert [row["source"] for row in result["weeks"]] == ["github"]
    assert result["weeks"][0]["deliveries"] == 1
