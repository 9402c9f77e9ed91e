"""What came of imports and backfills, on a real Postgres."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import psycopg

from headwater.gateway.builtin.data_requests import IMPORT_NAMES
from headwater.projections.deliveries.imports import Import, imports_of
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.queries import Reader
from headwater.projections.postgres.connections import own_dsn
from headwater.projections.projector.store import Store
from headwater.schemas.tables import ACTIVITIES, CONNECTIONS, DAILY_SUMMARY
from tests.integration.written import Written, apply, outcome, row, stamp, table_record

REQUESTED = datetime(2026, 7, 11, 9, tzinfo=UTC)
UNTIL = REQUESTED.date()
INSTANCE = """
    insert into workflow_instance (
        workflow_name, instance_id, run_number, status, params, labels, created_at, updated_at,
        started_at, partition, run_offset, "offset"
    )
    values (%s, %s, 0, 'complete', %s, %s, %s, now(), now(), 0, 0, 0)
"""
STEP = """
    insert into workflow_step (
        workflow_name, instance_id, run_number, step_key, name, type, status, attempts, result,
        error_name, ordinal, sequence, created_at, updated_at, "offset"
    )
    values ('terra-import', 'digest-1', %s, %s, %s, 'do', %s, 1, %s, %s, 0, 0, now(), now(), 0)
"""


def days_ago(number: int) -> date:
    return UNTIL - timedelta(days=number)


def day(number: int, **values: Any) -> Written:  # noqa: ANN401
    key = ("user_1", "garmin", days_ago(number).isoformat())
    return table_record(DAILY_SUMMARY, row(DAILY_SUMMARY, key, **values))


def workout(number: int) -> Written:
    key = ("user_1", "garmin", f"{days_ago(number)}T07:00:00.000Z", f"w{number}")
    return table_record(ACTIVITIES, row(ACTIVITIES, key, duration_seconds=60.0))


def received(event_id: str, type_: str, after: timedelta) -> Written:
    ms = int((REQUESTED + after).timestamp() * 1_000)
    times = {"received_at_ms": ms, "admitted_at_ms": ms, "at_ms": ms}
    return outcome(event_id, type=type_, subject="t1", rows=3, **times)


def stored(dsn: str) -> list[Import]:
    """Write rows and instances, and return what is known of the imports of user_1."""
    opened = row(
        CONNECTIONS, ("t1",), stamp("auth"), user_id="user_1", provider="GARMIN", active=True
    )
    records = [
        table_record(CONNECTIONS, opened),
        day(1, steps=1),
        day(2, steps=1, bed_time="2026-07-08T22:00:00.000Z"),
        day(3, bed_time="2026-07-07T22:00:00.000Z"),
        day(40, steps=1),
        workout(1),
        workout(4),
        received("before", "daily", timedelta(hours=-1)),
        received("first", "daily", timedelta(minutes=1)),
        received("second", "daily", timedelta(hours=2)),
        received("much later", "daily", timedelta(days=8)),
    ]

    async def run() -> list[Import]:
        store = Store(dsn, projection=DELIVERIES, clock=lambda: 0)
        async with Reader(dsn) as reader:
            try:
                await apply(store, records)
                return await imports_of(reader, IMPORT_NAMES, "user_1", "digest")
            finally:
                await store.close()

    with psycopg.connect(own_dsn(dsn)) as database:
        params = {"user_id": "user_1", "until": UNTIL.isoformat()}
        imported = {**params, "days": 10, "connections": ["t1"]}
        connected = {**params, "terra_user_id": "t1"}
        other = {**connected, "user_id": "user_9"}
        for workflow, id_, content, label in (
            ("terra-import", "digest-1", imported, "digest"),
            ("terra-import", "other-1", imported, "other"),
            ("terra-backfill", "t1-0", connected, None),
            ("terra-backfill", "t1-7", other, None),
        ):
            labels = {"user": label} if label else {}
            created = REQUESTED if workflow == "terra-import" else REQUESTED - timedelta(days=1)
            values = (msgspec.json.encode(content).decode(), msgspec.json.encode(labels).decode())
            database.execute(INSTANCE, (workflow, id_, *values, created))
        for number, type_, status, result, error in (
            (0, "activity", "completed", '"taken"', None),
            (0, "sleep", "errored", None, "TerraRefused"),
            (0, "daily", "errored", None, "TerraFailed"),
            (1, "daily", "completed", '"taken"', None),
        ):
            name = f"{type_} t1"
            database.execute(STEP, (number, f"requests/{name}", name, status, result, error))
    return asyncio.run(run())


def test_an_import_shows_what_was_requested_what_came_and_what_is_missing(migrated: str):
    imported, connected = stored(migrated)
    assert (imported.workflow, imported.id, imported.status) == (
        "terra-import", "digest-1", "complete",
    )  # fmt: skip
    assert (imported.first_day, imported.last_day) == (days_ago(10), UNTIL)
    numbers = {
        one.type: (one.answer, one.deliveries, one.rows, one.days_with_data, one.missing_days)
        for one in imported.requests
    }
    assert numbers == {
        "activity": ("taken", 0, 0, 2, None),
        "sleep": ("refused", 0, 0, 2, 8),
        "daily": ("taken", 2, 6, 2, 8),
        "body": ("pending", 0, 0, 0, None),
    }
    assert {(one.terra_user_id, one.provider) for one in imported.requests} == {("t1", "garmin")}
    assert (connected.workflow, connected.id) == ("terra-backfill", "t1-0")
    assert connected.first_day == days_ago(90)
    daily = next(one for one in connected.requests if one.type == "daily")
    assert (daily.deliveries, daily.days_with_data, daily.missing_days) == (3, 3, 87)
