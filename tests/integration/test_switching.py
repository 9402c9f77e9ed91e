"""Rows of a table that differ from those beside it are found, repaired at once, and put back."""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.writes import UPSERTS
from headwater.projections.projector.store import Store
from headwater.projections.rebuilds.rebuilds import RebuildWork, RowRecord, are_locked
from headwater.projections.rebuilds.shadow_table import ShadowTable
from headwater.projections.rebuilds.shadow_tables import Offsets
from headwater.schemas.codec import encode_row
from headwater.schemas.records import Stamp
from headwater.schemas.tables import (
    CONNECTIONS,
    DAILY_SUMMARY,
    SLEEP_SESSIONS,
    TABLES,
    Row,
    Table,
    Value,
)

STAMP = Stamp(rank=0, sent_at_ms=1, updated_at_ms=1, event_id="e", partition=0, offset=0, version=1)
DAYS = 40


def record_of(table: Table, key: tuple[str, ...], **values: Value) -> RowRecord:
    in_order = tuple(map(values.get, table.column_names))
    stamps = tuple(None if value is None else STAMP for value in in_order)
    value = encode_row(table, Row(key, in_order, stamps))
    return RowRecord(table.topic, 0, table.row_key(key), value)


def days() -> list[RowRecord]:
    return [
        record_of(
            DAILY_SUMMARY,
            ("user_1", "garmin", f"2026-{number // 28 + 1:02}-{number % 28 + 1:02}"),
            steps=number,
            strain=0.1 * number,
            bed_time="2026-07-01T23:00:00.5+02:00",
        )
        for number in range(DAYS)
    ]


def connections() -> list[RowRecord]:
    return [
        record_of(CONNECTIONS, (f"t-{number}",), user_id="user_1", active=number % 2 == 0)
        for number in range(DAYS)
    ]


def sleeps() -> list[RowRecord]:
    return [
        record_of(
            SLEEP_SESSIONS,
            ("user_1", "garmin", f"2026-07-01T{number:02}:00:00Z"),
            raw='{"b": 1.0,  "b": "\\u00e9"}',
        )
        for number in range(20)
    ]


RECORDS: dict[str, Callable[[], list[RowRecord]]] = {
    DAILY_SUMMARY.name: days,
    CONNECTIONS.name: connections,
    SLEEP_SESSIONS.name: sleeps,
}
#: What hands, or a fault, have changed, removed and invented; and what an example then shows.
SPOILED: dict[str, tuple[list[str], tuple[str, object, object]]] = {
    DAILY_SUMMARY.name: (
        [
            "update daily_summary set steps = 999999 where datetime = '2026-01-03'",
            "update daily_summary set bed_time = null where datetime = '2026-01-04'",
            "delete from daily_summary where datetime = '2026-01-02'",
            "insert into daily_summary (user_id, source, datetime, column_sources, updated_at) "
            "values ('user_2', 'garmin', '2026-01-02', '{}', now())",
        ],
        ("steps", 999999, 2),
    ),
    CONNECTIONS.name: (
        [
            "update terra_connections set active = false where terra_user_id = 't-2'",
            "update terra_connections set deactivated_at = now() where terra_user_id = 't-3'",
            "delete from terra_connections where terra_user_id = 't-4'",
            "insert into terra_connections (terra_user_id, user_id, column_sources, updated_at) "
            "values ('t-x', 'user_2', '{}', now())",
        ],
        ("active", False, True),
    ),
    SLEEP_SESSIONS.name: (
        [
            "update sleep_sessions set raw = raw::jsonb where start_time = '2026-07-01T05:00Z'",
            "update sleep_sessions set is_nap = true where start_time = '2026-07-01T06:00Z'",
            "delete from sleep_sessions where start_time = '2026-07-01T07:00Z'",
            "insert into sleep_sessions (user_id, source, start_time, column_sources, updated_at) "
            "values ('user_2', 'garmin', '2026-01-02', '{}', now())",
        ],
        ("raw", '{"b": "é"}', '{"b": 1.0,  "b": "\\u00e9"}'),
    ),
}


class Scene:
    """A table that serves, and the one beside it."""

    def __init__(self, dsn: str, table: Table, work: RebuildWork) -> None:
        self.dsn = dsn
        self.table = table
        self.work = work
        self.shadow = ShadowTable(work.connection, "r", table, work.connect)

    async def write(self, records: list[RowRecord], *schemas: str) -> None:
        projection = dataclasses.replace(DELIVERIES, is_synced=False)
        store = Store(self.dsn, projection=projection, clock=lambda: 0, schemas=schemas)
        await store.write_rows(records)
        await store.close()

    def rows(self) -> set[str]:
        """The rows that other readers see, as text, without the transaction that wrote them."""
        with psycopg.connect(self.dsn) as connection:
            query = sql.SQL("select to_json(t) from headwater.{} t")
            rows = connection.execute(query.format(sql.Identifier(self.table.name))).fetchall()
        internal = {"changed_in", "updated_at"}
        return {
            json.dumps({name: value for name, value in row.items() if name not in internal})
            for (row,) in rows
        }

    async def compare(self) -> tuple[dict[str, int], dict[str, Any]]:
        counts, examples = await self.shadow.compare()
        changed = [example.columns for example in examples if example.kind == "changed"]
        return counts, {name: pair for columns in changed for name, pair in columns.items()}


@pytest.fixture
def database(module_migrated: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(module_migrated, autocommit=True) as connection:
        connection.execute(
            "insert into rebuilds (id, projection, version, dry_run, state) "
            "values ('r', 'daily_summary', 2, false, 'building')"
        )
        yield connection
        connection.execute("truncate rebuilds, rebuild_rows, wipes, deletions")
        for table in TABLES:
            connection.execute(sql.SQL("truncate headwater.{}").format(sql.Identifier(table.name)))


def play(dsn: str, table: Table, scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def scenario() -> None:
        work = RebuildWork(dsn, "r")
        assert await work.begin()
        try:
            made = Scene(dsn, table, work)
            await made.write(RECORDS[table.name]())
            await made.shadow.make()
            await made.write(RECORDS[table.name](), "headwater_rebuilt")
            await made.shadow.analyze()
            await scene(made)
            await made.shadow.drop()
        finally:
            await work.close()

    asyncio.run(scenario())


def test_one_rebuild_is_carried_out_at_a_time(module_migrated: str) -> None:
    async def scenario() -> None:
        one, other = RebuildWork(module_migrated, "r"), RebuildWork(module_migrated, "s")
        async with PooledReader(module_migrated) as reader:
            assert not await are_locked(reader)
            assert await one.begin()
            assert await are_locked(reader)
            assert not await other.begin()
            await one.close()
            await other.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("table", [DAILY_SUMMARY, CONNECTIONS, SLEEP_SESSIONS])
def test_what_was_changed_lost_and_invented_is_shown_repaired_at_once_and_put_back(
    module_migrated: str, database: psycopg.Connection, table: Table
) -> None:
    spoiling, (column, drifted, right) = SPOILED[table.name]

    async def scene(it: Scene) -> None:
        assert await it.compare() == ({"added": 0, "removed": 0, "changed": 0}, {})
        expected = it.rows()
        for query in spoiling:
            database.execute(query.encode())
        spoiled = it.rows()
        async with it.shadow.paused_projection():
            counts, changed = await it.compare()
            assert counts == {"added": 1, "removed": 1, "changed": 2}
            assert changed[column] == (drifted, right)
            await it.shadow.put(back=False, now_ms=1_000)
            assert it.rows() == spoiled, "readers see none of it"
        assert it.rows() == expected
        await it.work.forget_rows()
        assert (await it.compare())[0] == {"added": 0, "removed": 0, "changed": 0}

    play(module_migrated, table, scene)
    # Readers of sync are sent the rows again, and the one that is gone.
    (deleted,) = database.execute("select table_name, user_id from deletions").fetchall()
    assert deleted == (table.name, "user_2")
    query = sql.SQL("select count(*) from {} where updated_at = to_timestamp(1)")
    written = database.execute(query.format(sql.Identifier(table.name))).fetchone()
    assert written == (3,)


def test_the_projector_and_readers_of_sync_continue_while_rows_are_compared(
    module_migrated: str, database: psycopg.Connection
) -> None:
    database.execute(
        "insert into projection_offsets (projection, topic, partition, next_offset)"
        " values (%s, %s, 0, 40) on conflict do nothing",
        [DELIVERIES.name, DAILY_SUMMARY.topic],
    )
    lock = "select from projection_offsets where topic = %s for update nowait"

    async def scene(it: Scene) -> None:
        async def complete(ends: Offsets) -> bool:
            assert ends[DAILY_SUMMARY.topic] == {0: 40}
            with pytest.raises(psycopg.errors.LockNotAvailable):
                database.execute(lock, [DAILY_SUMMARY.topic])
            return True

        database.execute(SPOILED[DAILY_SUMMARY.name][0][0].encode())
        async with it.shadow.comparable(complete) as is_complete:
            assert is_complete
            database.execute(lock, [DAILY_SUMMARY.topic])
            # Later changes are not compared, and the horizon of sync has passed them.
            database.execute("update daily_summary set steps = 5 where datetime = '2026-01-20'")
            before = database.execute("select pg_current_xact_id()::text::bigint").fetchone()
            after = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
            assert database.execute(after).fetchone() > before
            counts, changed = await it.compare()
        assert counts == {"added": 0, "removed": 0, "changed": 1}
        assert changed["steps"] == (999999, 2)
        database.execute("update daily_summary set steps = 7 where datetime = '2026-01-03'")
        async with it.shadow.paused_projection():
            await it.shadow.put(back=False, now_ms=1_000)
        # A row that has changed since is its owner's.
        (steps,) = database.execute(
            "select array_agg(steps order by datetime) from daily_summary"
            " where datetime in ('2026-01-03', '2026-01-20')"
        ).fetchone() or (None,)
        assert steps == [7, 5]

    play(module_migrated, DAILY_SUMMARY, scene)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (DAILY_SUMMARY, ("user_1", "garmin", "2026-01-02")),
        (SLEEP_SESSIONS, ("user_1", "garmin", "2026-07-01T07:00:00Z")),
    ],
)
def test_a_lost_row_that_its_owner_deletes_while_rows_are_compared_is_not_written(
    module_migrated: str,
    database: psycopg.Connection,
    table: Table,
    key: tuple[str, ...],
) -> None:
    async def complete(_: Offsets) -> bool:
        return True

    async def scene(it: Scene) -> None:
        database.execute(SPOILED[table.name][0][2].encode())
        async with it.shadow.comparable(complete):
            assert (await it.compare())[0] == {"added": 1, "removed": 0, "changed": 0}
        expected = it.rows()
        await it.write([RowRecord(table.topic, 0, table.row_key(key), None)])
        async with it.shadow.paused_projection():
            await it.shadow.put(back=False, now_ms=1_000)
        assert it.rows() == expected
        # That deletion is before the next comparison.
        await it.work.forget_rows()
        async with it.shadow.comparable(complete):
            await it.compare()
        async with it.shadow.paused_projection():
            await it.shadow.put(back=False, now_ms=1_000)
        assert len(it.rows()) == len(RECORDS[table.name]())

    play(module_migrated, table, scene)


def test_a_row_whose_newest_version_postgres_refuses_is_no_difference(
    module_migrated: str, database: psycopg.Connection
) -> None:
    key = ("user_1", "garmin", "2026-07-01")
    refused = record_of(DAILY_SUMMARY, key, bed_time="2026-02-30T00:00:00Z")
    no_date = record_of(DAILY_SUMMARY, ("user_1", "garmin", "2026-02-30"), steps=1)

    async def scene(it: Scene) -> None:
        for record in (record_of(DAILY_SUMMARY, key, steps=1), refused, no_date):
            await it.write([record])
        await it.write([refused, no_date._replace(offset=1)], "headwater_rebuilt")
        assert len(it.rows()) == DAYS + 1
        assert await it.compare() == ({"added": 0, "removed": 0, "changed": 0}, {})
        database.execute("truncate projection_errors")

    play(module_migrated, DAILY_SUMMARY, scene)


def test_rows_are_put_back_unless_they_have_changed_since(
    module_migrated: str, database: psycopg.Connection
) -> None:
    spoiling, _ = SPOILED[DAILY_SUMMARY.name]

    async def scene(it: Scene) -> None:
        for query in spoiling:
            database.execute(query.encode())
        spoiled = it.rows()
        async with it.shadow.paused_projection():
            await it.compare()
            await it.shadow.put(back=False, now_ms=1_000)
        # An owner writes the same row again, and one of later values.
        later = record_of(DAILY_SUMMARY, ("user_1", "garmin", "2026-01-04"), steps=7)
        await it.write([days()[2], later])
        after = {row for row in it.rows() if '"2026-01-04"' in row}
        async with it.shadow.paused_projection():
            await it.shadow.put(back=True, now_ms=2_000)
        assert it.rows() == {row for row in spoiled if '"2026-01-04"' not in row} | after

    play(module_migrated, DAILY_SUMMARY, scene)


def test_a_wipe_removes_rows_of_the_user_from_a_comparison(
    module_migrated: str, database: psycopg.Connection
) -> None:
    """The key of a connection does not name its user."""
    wipe = {
        "user_sha256": "d", "partition": 0, "wipe_id": "w", "names": ["user_2"], "found": {},
        "ordered_at_ms": 1, "done_at_ms": 0,
    }  # fmt: skip

    async def scene(it: Scene) -> None:
        for query in SPOILED[CONNECTIONS.name][0]:
            database.execute(query.encode())
        await it.compare()
        assert not await it.work.has_wipes_under_way()
        database.execute(UPSERTS["wipes"], {"rows": json.dumps([wipe])})
        assert await it.work.has_wipes_under_way()

    play(module_migrated, CONNECTIONS, scene)
    kept = database.execute("select convert_from(key, 'UTF8')::json ->> 1 from rebuild_rows")
    assert sorted(key for (key,) in kept.fetchall()) == ["t-2", "t-3", "t-4"]
