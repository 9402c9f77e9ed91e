"""Streams of changed rows: when a change can be read, what is sent, and how streams end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

from headwater.gateway.api import row_streams
from headwater.gateway.api.event_streams import STREAMS_OF_USER_MAX, EventStreams
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.reads import _lines
from headwater.gateway.api.row_streams import RowChanges, RowStreams, page_messages
from headwater.gateway.client.session import EventStream
from headwater.projections.deliveries.sync import Progress, SyncPage
from headwater.projections.errors import CursorExpired
from headwater.schemas.errors import StoreUnavailable
from tests.waiting import until

DAY = {"user_id": "u", "source": "garmin", "datetime": "2026-07-01", "steps": 1}


def progress(offsets: int, horizon: int, next_transaction: int) -> Progress:
    return Progress(offsets=offsets, horizon=str(horizon), next_transaction=str(next_transaction))


async def never(*_: object) -> Any:  # noqa: ANN401 (stands for two functions)
    raise AssertionError("nobody waits")


def test_a_change_counts_once_the_horizon_has_passed_it() -> None:
    changes = RowChanges(never, never)
    assert changes.observe(progress(1, 10, 10))
    assert not changes.observe(progress(1, 10, 10))
    # Another transaction was open when the offsets advanced.
    assert not changes.observe(progress(2, 10, 15))
    assert not changes.observe(progress(2, 14, 20))
    assert changes.observe(progress(2, 15, 20))
    assert not changes.observe(progress(2, 20, 20))


def test_changes_without_a_pause_count_too() -> None:
    # Each poll sees further offsets, and a horizon that never reaches the latest transaction.
    changes = RowChanges(never, never)
    counted = [changes.observe(progress(n, n, n + 3)) for n in range(1, 30)]
    assert counted.count(True) >= 5


def test_only_the_last_row_of_a_page_has_an_id() -> None:
    wiped = {"deleted": True, "user_sha256": "ab"}
    page = SyncPage(
        tables={"daily_summary": [wiped, DAY], "users": [{"id": "u"}]},
        cursor="c1",
        has_more=False,
    )
    messages = list(EventStream("c0").feed(page_messages(page)))
    assert [(m.event, m.id) for m in messages] == [("deleted", "c0"), ("row", "c0"), ("row", "c1")]
    assert '"key":{"user_sha256":"ab"}' in messages[0].data
    # Without rows the client learns the cursor alone.
    stream = EventStream("c1")
    assert not list(stream.feed(page_messages(SyncPage(tables={}, cursor="c2", has_more=False))))
    assert [m.id for m in stream.feed(b"event: row\ndata: {}\n\n")] == ["c2"]


class Table:
    """A projector and Postgres: the pages after each cursor."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.admits = True
        self.errors: list[Exception] = []
        self.polls = 0
        self.users: frozenset[str] | None = None

    async def progress(self) -> Progress:
        self.polls += 1
        return progress(len(self.rows), 5, 5)

    async def users_changed(self, since: str, before: str) -> frozenset[str] | None:
        assert (since, before) == ("5", "5")
        return self.users

    async def page_after(self, cursor: str) -> SyncPage:
        if self.errors:
            raise self.errors.pop(0)
        rows = self.rows[int(cursor) :][:2]
        end = int(cursor) + len(rows)
        return SyncPage(
            tables={"daily_summary": rows}, cursor=str(end), has_more=end < len(self.rows)
        )

    async def is_admitted(self) -> bool:
        return self.admits


@asynccontextmanager
async def opened(
    table: Table, heartbeat_s: float = 60
) -> AsyncIterator[tuple[AsyncIterator[bytes], EventStreams]]:
    streams = EventStreams(heartbeat_s)
    rows = RowStreams(RowChanges(table.progress, table.users_changed), streams)
    response = rows.response(await table.page_after("0"), table.page_after, table.is_admitted)
    before = asyncio.all_tasks()
    async with asyncio.timeout(60), aclosing(response.iterator) as chunks:  # type: ignore[type-var]
        yield chunks, streams
    assert streams.count == 0
    await until(lambda: asyncio.all_tasks() == before)


async def ids(chunks: AsyncIterator[bytes], count: int) -> list[str]:
    """The ids of the next messages, comments aside."""
    stream, result = EventStream(), []
    async for chunk in chunks:
        result += [message.id for message in stream.feed(chunk)]
        if len(result) >= count:
            return result
    return [*result, "end"]


def test_rows_follow_as_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_streams, "_GAP_S", 0.01)
    monkeypatch.setattr(row_streams, "_POLL_S", 0.01)
    monkeypatch.setattr(row_streams, "_RETRY_S", 0.01)

    async def act() -> None:
        table = Table()
        table.rows = [DAY] * 3
        async with opened(table) as (chunks, streams):
            assert await ids(chunks, 3) == ["", "2", "3"]
            assert streams.count == 1
            table.rows += [DAY]
            table.errors = [StoreUnavailable("away")] * 3
            assert await ids(chunks, 1) == ["4"]
            streams.close()
            assert await ids(chunks, 1) == ["end"]

    asyncio.run(act())


def test_a_stream_ends_with_its_callers_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_streams, "_GAP_S", 0.01)

    async def act() -> None:
        table = Table()
        async with opened(table, heartbeat_s=0.05) as (chunks, _):
            assert await anext(chunks) == b"retry: 1000\n\n"
            assert await anext(chunks) == b"id: 0\n\n"
            table.admits = False
            assert await ids(chunks, 1) == ["end"]

    asyncio.run(act())


def test_a_cursor_that_expires_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_streams, "_GAP_S", 0.01)

    async def act() -> None:
        table = Table()
        async with opened(table) as (chunks, _):
            table.errors = [CursorExpired("expected a newer one")]
            assert await ids(chunks, 1) == ["end"]

    asyncio.run(act())


def test_one_poll_wakes_the_streams_of_the_users_whose_rows_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_streams, "_POLL_S", 0.01)

    async def act() -> None:
        table = Table()
        changes = RowChanges(table.progress, table.users_changed)
        with ExitStack() as stack:
            owners = ["a", "b", None, *map(str, range(50))]
            subscriptions = [stack.enter_context(changes.subscription(owner)) for owner in owners]
            async with asyncio.timeout(60):
                # What was there before may have changed for all of them.
                await asyncio.gather(*(one.changed.wait() for one in subscriptions))
                for one in subscriptions:
                    one.changed.clear()
                table.users = frozenset(["a", "z"])
                table.rows.append(DAY)
                await subscriptions[0].changed.wait()
            woken = [one.owner for one in subscriptions if one.changed.is_set()]
            assert woken == ["a", None]
            assert pollers() == 1
        await until(lambda: pollers() == 0)

    asyncio.run(act())


def pollers() -> int:
    return sum(task.get_name() == "poll rows" for task in asyncio.all_tasks())


def test_a_comment_comes_while_a_page_is_awaited() -> None:
    async def act() -> None:
        closed = asyncio.Event()

        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                yield b"event: row\ndata: 1\n\n"
                await asyncio.sleep(60)
            finally:
                closed.set()

        streams = EventStreams(0.02)
        iterator: Any = streams.response(chunks()).iterator
        async with asyncio.timeout(30):
            received = [await anext(iterator) for _ in range(4)]
            await iterator.aclose()
        assert received[1:] == [b"event: row\ndata: 1\n\n", *[b": still here\n\n"] * 2]
        assert closed.is_set()
        assert streams.count == 0

    asyncio.run(act())


def test_a_user_has_a_limited_number_of_streams() -> None:
    async def act() -> None:
        streams = EventStreams(60)

        async def chunks() -> AsyncGenerator[bytes, None]:
            await asyncio.sleep(60)
            yield b""

        opened: list[Any] = []
        for _ in range(STREAMS_OF_USER_MAX):
            streams.require_capacity("a")
            opened.append(streams.response(chunks(), user_id="a").iterator)
            await anext(opened[-1])
        with pytest.raises(Problem, match="streams of a user"):
            streams.require_capacity("a")
        # Admitted before the others had begun: it ends at once, and the client comes back later.
        late: Any = streams.response(chunks(), user_id="a").iterator
        assert [chunk async for chunk in late] == [b"retry: 5000\n\n"]
        streams.require_capacity("b")
        streams.require_capacity()
        for one in opened:
            await one.aclose()
        streams.require_capacity("a")
        assert streams.count == 0

    asyncio.run(act())


def test_lines_of_rows_end_with_the_key_of_their_reader() -> None:
    page = SyncPage(tables={"daily_summary": [DAY]}, cursor="c1", has_more=True)
    pages: list[SyncPage | None] = [page, None]

    async def next_page(_cursor: str) -> SyncPage | None:
        return pages.pop(0)

    async def read() -> list[bytes]:
        return [chunk async for chunk in _lines(page, next_page)]

    chunks = asyncio.run(read())
    assert len(chunks) == 2
    # Without the last line, a client knows that rows are missing.
    assert b"cursor" not in b"".join(chunks)
