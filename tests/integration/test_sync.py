"""Sync on a real Postgres: every change is seen, whatever order transactions end in."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, TypeAlias, cast

import psycopg
import pytest

from headwater.gateway.api.event_streams import EventStreams
from headwater.gateway.api.row_streams import RowChanges, RowStreams
from headwater.gateway.client.session import EventStream, Message
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deliveries.row_readers import ROW_TYPES
from headwater.projections.deliveries.sync import (
    _CHANGES,
    _CHANGES_OF_USER,
    SyncPage,
    changes,
    progress,
    users_changed,
)
from headwater.projections.errors import CursorExpired, InvalidCursor
from headwater.projections.postgres.binary_rows import BinaryRows, BinaryRowsDumper, array_of
from headwater.projections.postgres.cursors import pack, unpack
from headwater.projections.postgres.statements import statement
from headwater.projections.postgres.writes import UPSERTS
from headwater.projections.projector.store import Store
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS
from tests.integration.written import Written, apply, day, row, stamp, table_record
from tests.waiting import until

NOW_MS = 1_767_300_000_000
Chunks: TypeAlias = AsyncGenerator[bytes, None]


class System:
    """A migrated database with a store that writes and a reader that reads."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.now_ms = NOW_MS
        self.store = Store(dsn, projection=DELIVERIES, clock=lambda: self.now_ms)
        self.reader = Reader(dsn)

    async def page(self, after: str | None = None, limit: int = 100, **more: object) -> SyncPage:
        return await changes(self.reader, after=after, limit=limit, **more)

    async def all(self, after: str | None = None, limit: int = 100, **more: object):
        """All rows from a cursor on, page by page, and the last cursor."""
        rows: list[tuple[str, dict[str, Any]]] = []
        while True:
            page = await self.page(after, limit, **more)
            result = [(table, row) for table, part in page.tables.items() for row in part]
            assert len(result) <= limit
            rows += result
            after, more = page.cursor, {k: v for k, v in more.items() if k != "since"}
            if not page.has_more:
                return rows, after


def in_a_system(dsn: str, scenario: Callable[[System], Awaitable[None]]) -> None:
    async def run() -> None:
        system = System(dsn)
        async with system.reader:
            try:
                await scenario(system)
            finally:
                await system.store.close()

    asyncio.run(run())


def test_a_cursor_continues_with_what_changed_since(migrated: str):
    async def scenario(system: System) -> None:
        await apply(system.store, [day("u1", "2026-01-01", steps=1), day("u2", "2026-01-01")])
        rows, cursor = await system.all()
        assert [(table, row["user_id"], row["steps"]) for table, row in rows] == [
            ("daily_summary", "u1", 1),
            ("daily_summary", "u2", None),
        ]
        # The cursor itself moves on with transactions of other databases.
        assert (await system.all(cursor))[0] == []
        await apply(system.store, [day("u2", "2026-01-01", steps=7)])
        rows, later = await system.all(cursor)
        assert [(row["user_id"], row["steps"]) for _, row in rows] == [("u2", 7)]
        again, _ = await system.all(cursor)
        assert again == rows
        assert (await system.all(later))[0] == []

    in_a_system(migrated, scenario)


def test_rows_are_the_same_with_pages_of_one(migrated: str):
    async def scenario(system: System) -> None:
        raw = '{"a":  1, "b": "\\u0000", "a": 2.50}'
        night = row(SLEEP_SESSIONS, ("u1", "oura", "2026-01-01T22:00:00.123456Z"), raw=raw)
        gone = row(CONNECTIONS, ("t1",), stamp(), user_id="u1", active=False)
        for user in ("u1", "u2", "u3"):
            days = [day(user, f"2026-01-0{n}", steps=n) for n in (1, 2, 3)]
            await apply(system.store, days)
        await apply(
            system.store, [table_record(SLEEP_SESSIONS, night), table_record(CONNECTIONS, gone)]
        )
        whole, _ = await system.all()
        assert len(whole) == 11
        assert (await system.all(limit=1))[0] == whole
        assert (await system.all(limit=4))[0] == whole
        tables = dict(whole)
        assert tables["sleep_sessions"]["raw"] == raw
        sent_at = datetime.fromtimestamp(stamp().sent_at_ms / 1000, UTC)
        assert tables["terra_connections"]["deactivated_at"] == sent_at
        assert "written_in" not in tables["terra_connections"]

    in_a_system(migrated, scenario)


def test_a_page_of_large_rows_has_few_of_them(migrated: str):
    async def scenario(system: System) -> None:
        raw = '{"a":"' + "x" * 3_000_000 + '"}'
        keys = [("u1", "oura", f"2026-01-0{n}T22:00:00Z") for n in range(1, 8)]
        nights = [row(SLEEP_SESSIONS, key, raw=raw) for key in keys]
        await apply(system.store, [table_record(SLEEP_SESSIONS, night) for night in nights])
        await apply(system.store, [day("u1", f"2026-01-0{n}", steps=n) for n in (1, 2)])
        sizes, cursor, has_more = [], None, True
        while has_more:
            page = await system.page(cursor)
            sizes.append(sum(map(len, page.tables.values())))
            cursor, has_more = page.cursor, page.has_more
        assert sum(sizes) == 9
        # The days fit beside one night; of the nights no two fit.
        assert sizes == [3, 1, 1, 1, 1, 1, 1]
        whole, _ = await system.all()
        assert [result["raw"] for table, result in whole if table == "sleep_sessions"] == [raw] * 7
        # The connection is as good as before: its query was cancelled, and it answers the next.
        assert len((await system.page(limit=1)).tables["daily_summary"]) == 1

    in_a_system(migrated, scenario)


def test_a_transaction_that_ends_late_is_not_skipped(migrated: str):
    async def scenario(system: System) -> None:
        async with await psycopg.AsyncConnection.connect(system.dsn) as slow:
            insert = (
                "insert into daily_summary (user_id, source, datetime, column_sources, updated_at) "
                "values ('slow', 'garmin', '2026-01-01', '{}', now())"
            )
            await slow.execute(insert)
            await apply(system.store, [day("quick", "2026-01-01")])
            rows, cursor = await system.all()
            assert rows == []  # the quick one waits for the slow one
            await slow.commit()
        rows, cursor = await system.all(cursor)
        assert [row["user_id"] for _, row in rows] == ["slow", "quick"]
        assert (await system.all(cursor))[0] == []

    in_a_system(migrated, scenario)


def test_a_stream_has_a_transaction_that_ends_late(migrated: str):
    async def scenario(system: System) -> None:
        streams = EventStreams()
        changes_seen = RowChanges(
            lambda: progress(system.reader), partial(users_changed, system.reader)
        )
        rows = RowStreams(changes_seen, streams)

        async def admits() -> bool:
            return True

        response = rows.response(await system.page(), system.page, admits)
        messages: list[Message] = []

        async def listen() -> None:
            stream = EventStream()
            async with aclosing(cast("Chunks", response.iterator)) as chunks:
                async for chunk in chunks:
                    messages.extend(stream.feed(chunk))

        listening = asyncio.create_task(listen())
        async with await psycopg.AsyncConnection.connect(system.dsn) as slow:
            await slow.execute(
                "insert into daily_summary (user_id, source, datetime, column_sources, "
                "updated_at) values ('slow', 'garmin', '2026-01-01', '{}', now())"
            )
            await apply(system.store, [day("quick", "2026-01-01")])
            # Nothing comes while the transaction is open.
            await asyncio.sleep(1)
            assert messages == []
            await slow.commit()
        await until(lambda: len(messages) == 2)
        streams.close()
        await listening
        users = [json.loads(message.data)["row"]["user_id"] for message in messages]
        assert users == ["slow", "quick"]
        assert (await system.page(messages[-1].id)).tables["daily_summary"] == []

    in_a_system(migrated, scenario)


def test_a_change_names_its_users(migrated: str):
    async def scenario(system: System) -> None:
        async def changed(since: str) -> frozenset[str] | None:
            return await users_changed(
                system.reader, since, (await progress(system.reader)).horizon
            )

        start = (await progress(system.reader)).horizon
        await apply(system.store, [day("u1", "2026-01-01"), day("u2", "2026-01-01")])
        middle = (await progress(system.reader)).horizon
        await apply(system.store, [day("u3", "2026-01-01")])
        assert await changed(start) == {"u1", "u2", "u3"}
        assert await changed(middle) == {"u3"}
        later = (await progress(system.reader)).horizon
        assert await changed(later) == frozenset()
        await apply(system.store, [day("u4", "2026-01-01")])
        await apply(system.store, [replace(day("u4", "2026-01-01"), value=None)])
        # A deletion may be that of a wiped user, whose name is not kept.
        assert await changed(later) is None

    in_a_system(migrated, scenario)


def test_transactions_are_ordered_as_numbers(migrated: str):
    async def scenario(system: System) -> None:
        with psycopg.connect(system.dsn, autocommit=True) as other:
            [(now,)] = other.execute("select pg_current_xact_id()::text::bigint").fetchall()
            # Up to where the numbers grow by a digit.
            other.execute(
                "do $$ begin "
                f"for n in 1..{10 ** len(str(now)) - now - 5} loop "
                "perform pg_current_xact_id(); commit; end loop; end $$"
            )
        users = [f"u{n}" for n in range(9, -1, -1)]
        for user in users:
            await apply(system.store, [day(user, "2026-01-01")])
        rows, _ = await system.all(limit=2)
        assert [row["user_id"] for _, row in rows] == users

    in_a_system(migrated, scenario)


def test_since_leaves_out_what_was_written_before(migrated: str):
    async def scenario(system: System) -> None:
        await apply(system.store, [day("u1", "2026-01-01"), day("u2", "2026-01-01")])
        system.now_ms += 60_000
        since = datetime.fromtimestamp(system.now_ms / 1000, UTC)
        empty, cursor = await system.all(since=since)
        assert empty == []
        await apply(system.store, [day(f"u{n}", "2026-01-02") for n in (3, 4)])
        for limit in (1, 100):
            rows, _ = await system.all(since=since, limit=limit)
            assert [row["user_id"] for _, row in rows] == ["u3", "u4"]
        assert len((await system.all(cursor))[0]) == 2

    in_a_system(migrated, scenario)


def test_a_user_gets_their_rows_alone(migrated: str):
    async def scenario(system: System) -> None:
        await apply(system.store, [day(u, "2026-01-01") for u in ("u1", "u2", "u1x")])
        rows, cursor = await system.all(user_id="u1", limit=1)
        assert [row["user_id"] for _, row in rows] == ["u1"]
        with pytest.raises(InvalidCursor, match="same user"):
            await system.page(cursor, user_id="u2")
        await apply(system.store, [day(u, "2026-01-02") for u in ("u1", "u2")])
        rows, _ = await system.all(cursor, user_id="u1")
        assert [(row["user_id"], str(row["datetime"])) for _, row in rows] == [("u1", "2026-01-02")]

    in_a_system(migrated, scenario)


def test_cursors_of_others_are_refused(migrated: str):
    async def scenario(system: System) -> None:
        cursor = (await system.page()).cursor
        held = unpack(cursor, dict[str, Any])
        start = {**held["at"], "daily_summary": ["1", ["", "", "-infinity"]]}
        malformed = [
            "",
            "no cursor",
            "é",
            pack({**held, "version": 2}),
            pack({**held, "more": 1}),
            pack({**held, "at": {**start, "daily_summary": ["1; drop table", ["", "", ""]]}}),
            pack({**held, "at": {**start, "daily_summary": ["1", ["", "", "some day"]]}}),
            pack({**held, "at": {**start, "daily_summary": ["1", [""]]}}),
            pack({**held, "at": {"unheard_of": ["1", [""]]}}),
            pack({**held, "at": {}}),
            pack({**held, "at": start, "since": "once"}),
            pack({**held, "at": {**start, "daily_summary": ["1", ["\x00", "", "2026-01-01"]]}}),
        ]
        for text in malformed:
            with pytest.raises(InvalidCursor):
                await system.page(text)
        elsewhere = {**held, "database": "6f2c7a2e-0000-0000-0000-000000000000"}
        unheard_of = {**held, "epoch": "6f2c7a2e-0000-0000-0000-000000000000"}
        for expired in (elsewhere, unheard_of):
            with pytest.raises(CursorExpired):
                await system.page(pack(expired))
        for limit in (0, 10_001):
            with pytest.raises(ValueError, match="limit"):
                await system.page(limit=limit)

    in_a_system(migrated, scenario)


def gone(user: str, date: str) -> Written:
    key = DAILY_SUMMARY.row_key((user, "garmin", date))
    return Written(DAILY_SUMMARY.topic, 0, key, None)


def deleted(user: str, day: int) -> tuple[str, dict[str, Any]]:
    key = {"user_id": user, "source": "garmin", "datetime": date(2026, 1, day)}
    return "daily_summary", {"deleted": True, **key}


def test_what_was_deleted_is_told_to_who_may_have_it(migrated: str):
    async def scenario(system: System) -> None:
        days = [day(user, f"2026-01-0{n}") for user in ("u1", "u2") for n in (1, 2)]
        await apply(system.store, days)
        _, everybody = await system.all()
        _, one = await system.all(user_id="u1")
        await apply(system.store, [gone("u1", "2026-01-01"), gone("u2", "2026-01-02")])
        # Postgres may have lost a row that a reader has.
        await apply(system.store, [gone("u1", "2026-01-03")])
        reported = [deleted("u1", 1), deleted("u2", 2), deleted("u1", 3)]
        for limit in (1, 2, 100):
            assert (await system.all(everybody, limit=limit))[0] == reported
        mine, _ = await system.all(one, user_id="u1")
        assert mine == [reported[0], reported[2]]
        rows, cursor = await system.all()
        assert not any("deleted" in row for _, row in rows)  # who begins has nothing to delete
        assert (await system.all(cursor))[0] == []

    in_a_system(migrated, scenario)


@pytest.mark.parametrize("limit", [1, 100])
def test_a_row_that_came_back_is_deleted_first(migrated: str, limit: int):
    async def scenario(system: System) -> None:
        await apply(system.store, [day("u1", "2026-01-01", steps=1)])
        _, cursor = await system.all()
        await apply(system.store, [gone("u1", "2026-01-01")])
        await apply(system.store, [day("u1", "2026-01-01", steps=2)])
        result, cursor = await system.all(cursor, limit=limit)
        assert result[0] == deleted("u1", 1)
        assert [row["steps"] for _, row in result[1:]] == [2]
        await apply(system.store, [gone("u1", "2026-01-01")])
        assert (await system.all(cursor, limit=limit))[0] == [deleted("u1", 1)]

    in_a_system(migrated, scenario)


def test_a_deleted_connection_is_told_to_its_user(migrated: str):
    async def scenario(system: System) -> None:
        link = table_record(CONNECTIONS, row(CONNECTIONS, ("t1",), user_id="u1", active=True))
        night = row(SLEEP_SESSIONS, ("u1", "oura", "2026-01-01T22:00:00+02:00"))
        await apply(system.store, [link, table_record(SLEEP_SESSIONS, night)])
        before, cursor = await system.all(user_id="u1")
        gone = [
            Written(CONNECTIONS.topic, 0, link.key, None),
            Written(SLEEP_SESSIONS.topic, 0, SLEEP_SESSIONS.row_key(night.key), None),
        ]
        await apply(system.store, gone)
        result = dict((await system.all(cursor, user_id="u1"))[0])
        assert result["terra_connections"] == {"deleted": True, "terra_user_id": "t1"}
        assert (
            result["sleep_sessions"]["start_time"] == dict(before)["sleep_sessions"]["start_time"]
        )

    in_a_system(migrated, scenario)


def test_a_cursor_is_good_for_thirty_days(migrated: str):
    async def scenario(system: System) -> None:
        hour, days = 3_600_000, 24 * 3_600_000
        await apply(system.store, [day("u1", "2026-01-01"), day("u1", "2026-01-02")])
        _, cursor = await system.all()
        await apply(system.store, [gone("u1", "2026-01-01")])
        system.now_ms += 30 * days - hour
        await apply(system.store, [day("u2", "2026-01-01")])
        result, later = await system.all(cursor)
        assert result[0] == deleted("u1", 1)
        system.now_ms += 2 * hour
        await apply(system.store, [day("u3", "2026-01-01")])
        with pytest.raises(CursorExpired, match="last 30 days"):
            await system.page(cursor)
        assert [row["user_id"] for _, row in (await system.all(later))[0]] == ["u3"]
        # The epoch of a cursor is forgotten when the next one is as old.
        for _ in range(2):
            await system.store.close()
            system.now_ms += 31 * days
            await apply(system.store, [day("u4", "2026-01-01")])
        with pytest.raises(CursorExpired):
            await system.page(later)

    in_a_system(migrated, scenario)


def test_changes_are_found_by_index_among_many_rows(migrated: str):
    async def scenario(system: System) -> None:
        for year in range(2000, 2010):
            for start in range(0, 2_000, 1_000):
                users = [f"user_{n}" for n in range(start, start + 1_000)]
                await apply(system.store, [day(user, f"{year}-01-01", steps=1) for user in users])
        page = await system.page(limit=10_000)
        position = unpack(page.cursor, dict[str, Any])["at"]["daily_summary"]
        parameters = {
            "changed_in": position[0],
            **{f"key_{at}": text for at, text in enumerate(position[1])},
            "horizon": str(2**40),
            "since": "-infinity",
            "user_id": "user_5",
            "limit": 101,
        }
        async with await psycopg.AsyncConnection.connect(system.dsn, autocommit=True) as connection:
            await connection.execute("analyze")
            # The few rows of a user, or of a transaction, may be sorted; those of everybody not.
            for query, index, sorting in (
                (_CHANGES, "daily_summary_changed", "Incremental Sort"),
                (_CHANGES_OF_USER, "daily_summary_pkey", "Sort"),
            ):
                explained = await connection.execute(
                    b"explain (analyze, buffers off) " + query["daily_summary"], parameters
                )
                plan = "\n".join(line for (line,) in await explained.fetchall())
                assert re.search(rf"{index}\s", plan), plan
                assert "Seq Scan" not in plan, plan
                assert re.search(rf"(->|^)\s*{sorting}\s", plan), plan

    in_a_system(migrated, scenario)


def test_every_value_can_say_which_delivery_it_came_from(migrated: str):
    async def scenario(system: System) -> None:
        await apply(system.store, [day("u1", "2026-01-01", steps=1)])
        async with await psycopg.AsyncConnection.connect(system.dsn) as connection:
            result = await connection.execute(
                "select s.* from daily_summary d, value_source(d.column_sources, 'steps') s"
            )
            sent_at = datetime.fromtimestamp(stamp().sent_at_ms / 1000, UTC)
            assert await result.fetchall() == [("e1", "webhooks/3@17", sent_at)]
            result = await connection.execute(
                "select s.* from daily_summary d, value_source(d.column_sources, 'strain') s"
            )
            assert await result.fetchall() == []

    in_a_system(migrated, scenario)


def test_no_postgres_is_said_within_seconds():
    async def ask() -> float:
        async with Reader("postgresql://nobody@127.0.0.1:1/none") as reader:
            begun = asyncio.get_running_loop().time()
            with pytest.raises(StoreUnavailable):
                await changes(reader, after=None, limit=1)
            return asyncio.get_running_loop().time() - begun

    assert asyncio.run(ask()) < 4


def test_a_reader_survives_the_end_of_its_connections(migrated: str):
    async def scenario(system: System) -> None:
        await system.page()
        with psycopg.connect(system.dsn, autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        await system.page()

    in_a_system(migrated, scenario)


def test_statements_cover_every_table_of_the_migrations(migrated: str):
    with psycopg.connect(migrated) as connection:
        connection.adapters.register_dumper(BinaryRows, BinaryRowsDumper)
        for row_type in ROW_TYPES.values():
            connection.execute(row_type.creation)
        oids = dict(connection.execute(statement("row_types")).fetchall())
        for table, query in UPSERTS.items():
            row_type = ROW_TYPES.get(table)
            rows = array_of(oids[row_type.name], ()) if row_type else "[]"
            connection.execute(query, {"rows": rows, "now_ms": NOW_MS})
