"""The quality of the data by week, on a real Postgres."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.quality import (
    ConnectionStates,
    Quality,
    connection_states,
    quality,
    store_silence_limits,
)
from headwater.projections.deliveries.queries import Reader
from headwater.projections.postgres.connections import own_dsn
from headwater.projections.projector.store import Store
from headwater.schemas.tables import BIOMARKERS, CONNECTIONS, DAILY_SUMMARY, Value
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
NONE = ConnectionStates()


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
    result = read(migrated, records, lambda reader: quality(reader, NONE, weeks=2))
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
    result = read(migrated, records, lambda reader: quality(reader, NONE, weeks=1, source="github"))
    assert [row["source"] for row in result["weeks"]] == ["github"]
    assert result["weeks"][0]["deliveries"] == 1


def test_what_is_skipped_is_counted_by_type(migrated: str):
    skipped = {"status": "skipped", "rows": 0}
    records = [
        connection("t1", "user_1", "GARMIN", MONDAY),
        *(received(f"n{number}", MONDAY, type="nutrition", reason="nutrition", **skipped)
          for number in range(2)),
        received("s3", MONDAY, type="s3_payload", reason="s3_payload", subject="", **skipped),
        received("done", MONDAY),
    ]  # fmt: skip
    result = read(migrated, records, lambda reader: quality(reader, NONE, weeks=1))
    assert [tuple(row.values()) for row in result["skipped"]] == [
        (MONDAY.isoformat(), "terra", "garmin", "nutrition", "nutrition", 2),
        (MONDAY.isoformat(), "terra", "", "s3_payload", "s3_payload", 1),
    ]


def test_a_connection_without_new_data_is_silent_and_one_with_an_error_is_failing(migrated: str):
    def ago(days: int) -> date:
        return TODAY - timedelta(days=days)

    def error(event_id: str, user: str | None, subject: str, when: date) -> Written:
        values = {"type": "connection_error", "status": "skipped", "reason": "connection_error"}
        return received(event_id, when, user_id=user, subject=subject, rows=0, **values)

    weight = row(
        BIOMARKERS, ("user_3", "withings_body", ago(6).isoformat(), "weight_kg"), value=70.0
    )
    records = [
        *(
            connection(f"t{number}", f"user_{number}", "GARMIN", ago(90))
            for number in (1, 2, 4, 5, 8, 9)
        ),
        connection("t3", "user_3", "WITHINGS", ago(90)),
        connection("new", "user_6", "GARMIN", ago(1)),
        table_record(CONNECTIONS, row(CONNECTIONS, ("closed",), user_id="user_7", active=False)),
        day("user_1", ago(1), ago(1), "e1"),
        received("e1", ago(1), user_id="user_1", subject="t1"),
        # Its days are requested again every night.
        day("user_2", ago(5), ago(1), "e2"),
        received("e2", ago(1), user_id="user_2", subject="t2"),
        table_record(BIOMARKERS, weight),
        day("user_4", ago(1), ago(1), "e4"),
        received("e4", ago(1), user_id="user_4", subject="t4"),
        error("error-4", "user_4", "t4", ago(0)),
        error("error-5", "user_5", "t5", ago(2)),
        day("user_5", ago(1), ago(1), "e5"),
        received("e5", ago(1), user_id="user_5", subject="t5"),
        # Another source of Terra's, with another setting.
        day("user_8", ago(9), ago(9), "e8"),
        received("e8", ago(9), user_id="user_8", subject="t8", source="terra-eu"),
        # An error that names no user.
        day("user_9", ago(1), ago(1), "e9"),
        received("e9", ago(1), user_id="user_9", subject="t9"),
        error("error-9", None, "t9", ago(0)),
    ]
    limits = {"terra": {"withings": 14}, "terra-eu": {"default": 30}}

    async def counted(reader: Reader) -> Quality:
        await store_silence_limits(reader, limits)
        # Pages of one connection, so that there are several.
        states = await connection_states(reader, page=1)
        assert states == msgspec.structs.replace(
            await connection_states(reader), counted_at=states.counted_at
        )
        return await quality(reader, states, weeks=1)

    result = read(migrated, records, counted)
    silent, failing, nameless = result["not_receiving"]
    names = ("user_id", "state", "silent_days")
    assert [silent[name] for name in names] == ["user_2", "silent", 5]
    assert [failing[name] for name in names] == ["user_4", "failing", 1]
    assert [nameless[name] for name in names] == ["user_9", "failing", 1]
    assert (silent["last_day"], silent["last_delivery_at"][:10]) == (
        ago(5).isoformat(),
        ago(1).isoformat(),
    )
    assert failing["failing_since"][:10] == TODAY.isoformat()
    counts = {(one["provider"], one["state"]): one["connections"] for one in result["connections"]}
    assert counts == {
        ("garmin", "receiving"): 4,
        ("garmin", "silent"): 1,
        ("garmin", "failing"): 2,
        ("withings", "receiving"): 1,
    }
    with psycopg.connect(own_dsn(migrated)) as database:
        query = "select user_id, state, source, silent_after_days from connection_activity"
        rows = {user: rest for user, *rest in database.execute(query).fetchall()}
    # The view has the settings of the source that sends a connection's data.
    assert rows["user_2"] == ["silent", "terra", 3]
    assert rows["user_3"] == ["receiving", "terra", 14]
    assert rows["user_8"] == ["receiving", "terra-eu", 30]


def test_a_day_of_a_person_has_each_column_from_the_first_source_that_has_it(migrated: str):
    def recorded(source: str, **values: Value) -> Written:
        key = ("user_1", source, "2026-07-01")
        return table_record(DAILY_SUMMARY, row(DAILY_SUMMARY, key, **values))

    bed = "2026-06-30T22:00:00.000Z"
    records = [
        recorded(
            "garmin", steps=9_000, bed_time=bed, sleep_minutes=400.0, spo2=96.0,
            resting_heart_rate=52.0, active_zone_minutes=30.0, peak_active_zone_minutes=5.0,
            utc_offset_minutes=60,
        ),
        recorded(
            "oura", steps=8_000, bed_time=bed, sleep_minutes=430.0, heart_rate_variability=61.0,
            utc_offset_minutes=120,
        ),
        recorded("apple", stress_management_score=20.0, peak_active_zone_minutes=9.0),
    ]  # fmt: skip

    async def done(_reader: Reader) -> Quality:
        return Quality(
            weeks=[], rejected_values=[], skipped=[], connections=[], not_receiving=[],
            connections_counted_at=None,
        )  # fmt: skip

    read(migrated, records, done)
    columns = sql.SQL(
        "steps, sleep_minutes, spo2, resting_heart_rate, heart_rate_variability,"
        " stress_management_score, active_zone_minutes, peak_active_zone_minutes,"
        " utc_offset_minutes, sources"
    )
    with psycopg.connect(own_dsn(migrated)) as database:
        query = sql.SQL("select {} from daily_summary_by_person").format(columns)
        (by_default,) = database.execute(query)
        (other,) = database.execute(
            sql.SQL(
                "select {} from daily_summary_by_person_with(array['oura'], array['garmin'])"
                " where user_id = 'user_1'"
            ).format(columns)
        )
    # The night is Oura's, which has no oxygen; the rest is of the first that has it.
    assert by_default == (
        9_000, 430.0, None, 52.0, 61.0, 20.0, 30.0, 5.0, 120,
        {
            "steps": "garmin", "night": "oura", "resting_heart_rate": "garmin",
            "heart_rate_variability": "oura", "stress_management_score": "apple",
            "active_zone_minutes": "garmin",
        },
    )  # fmt: skip
    assert other[:4] == (8_000, 400.0, 96.0, 52.0)
    assert (other[8], other[9]["steps"], other[9]["night"]) == (60, "oura", "garmin")


#: Deliveries of one wearable since another one of the user has been silent.
_SINCE = 2_000


def _scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if plan.get("Relation Name") == "webhook_outcomes":
        yield plan
    for child in plan.get("Plans", ()):
        yield from _scans(child)


def test_a_silent_connection_costs_no_scan_of_what_another_one_of_the_user_has_sent_since(
    migrated: str,
):
    with psycopg.connect(own_dsn(migrated)) as database:
        database.execute(
            "insert into terra_connections (terra_user_id, user_id, provider, active,"
            " column_sources, updated_at) select 't' || number, 'user_' || mod(number, 20),"
            ' \'GARMIN\', true, \'{"deliveries": [{"sent_at": "2026-01-01T00:00:00Z"}],'
            ' "columns": {"active": 0}}\', now() from generate_series(1, 40) number'
        )
        database.execute(
            "insert into webhook_outcomes (event_id, request_id, source, type, subject, user_id,"
            ' status, reason, rows, rejected, partition, "offset", received_at, admitted_at, at,'
            " stage, position) select md5(number::text), md5(number::text), 'terra', 'daily',"
            " 't' || mod(number, 20), 'user_' || mod(number, 20), 'processed', '', 1, 0, 0, 0,"
            " timestamptz '2026-01-01' + number * interval '1 minute', now(), now(), '', ''"
            " from generate_series(1, 20 * %s) number",
            [_SINCE],
        )
        database.execute("analyze webhook_outcomes, terra_connections")
        query = "explain (analyze, format json) select * from connection_activity"
        (((answer,),),) = database.execute(query).fetchall()
    scans = list(_scans(answer["Plan"]))
    assert len(scans) >= 2
    for scan in scans:
        read = scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)
        assert read * scan["Actual Loops"] < _SINCE, scan
