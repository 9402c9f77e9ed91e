"""Stream changed rows as server-sent events.

One poller serves all streams of a gateway, and polls only while a stream waits. It notices that the
projector has advanced, and waits until the horizon of sync has passed what was written: only then
can the rows be read (see `headwater.projections.deliveries.sync`).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Final, TypeAlias

import msgspec

from headwater.gateway.api.body_limits import Streamed
from headwater.gateway.api.event_streams import EventStreams, encode_message
from headwater.projections.deliveries.sync import Progress, SyncPage
from headwater.projections.postgres.connections import Row
from headwater.schemas.errors import HeadwaterError, StoreUnavailable

log = logging.getLogger("headwater.gateway")

#: Reads the page after a cursor.
PageAfter: TypeAlias = Callable[[str], Awaitable[SyncPage]]

#: Seconds between two polls.
_POLL_S: Final = 0.1
#: Seconds between two reads of a stream: rows that change meanwhile are read together.
_GAP_S: Final = 0.25
#: Seconds before Postgres is asked again when it is unavailable.
_RETRY_S: Final = 1.0


def change_of(table: str, row: Row) -> dict[str, object]:
    """Return a row as streams return it: changed, or deleted with its key."""
    if row.get("deleted") is not True:
        return {"table": table, "row": row}
    key = {name: row[name] for name in row if name != "deleted"}
    return {"table": table, "deleted": True, "key": key}


def page_messages(page: SyncPage) -> bytes:
    """Encode a page: a message for each row. Only the last one has the cursor as its id.

    A client that resumes after an id gets the rest of a page that it did not read completely.
    """
    return b"".join(_messages(page))


def _messages(page: SyncPage) -> Iterator[bytes]:
    changes = [change_of(table, row) for table, rows in page.tables.items() for row in rows]
    for index, change in enumerate(changes, 1):
        event = "deleted" if "deleted" in change else "row"
        cursor = page.cursor if index == len(changes) else None
        yield encode_message(event, msgspec.json.encode(change), cursor)


class RowChanges:
    """Notices that rows have changed and can be read.

    Attributes:
        version: Grows with every change that is noticed.
    """

    def __init__(self, read_progress: Callable[[], Awaitable[Progress]]) -> None:
        self.version = 0
        self._read_progress = read_progress
        self._offsets = -1
        #: First transaction after those of a change that cannot be read yet.
        self._pending: int | None = None
        #: Callers of `wait`, and the task that polls for all of them.
        self._waiting = 0
        self._polling: asyncio.Task[None] | None = None

    async def wait(self, since: int, timeout_s: float) -> None:
        """Wait until the version is another one, at most `timeout_s` seconds.

        Raises:
            StoreUnavailable: Postgres could not be read.
        """
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                while self.version == since:
                    if self._polling is None or self._polling.done():
                        self._polling = asyncio.create_task(self._poll(), name="poll rows")
                    await asyncio.shield(self._polling)
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1

    async def _poll(self) -> None:
        """Poll until something has changed, or no caller waits."""
        try:
            while self._waiting and not self.observe(await self._read_progress()):  # noqa: ASYNC110 (Postgres changes)
                await asyncio.sleep(_POLL_S)
        except StoreUnavailable:
            if self._waiting:
                raise

    def observe(self, progress: Progress) -> bool:
        """Take the progress of the projector; return whether a change can be read now."""
        before = self.version
        self._settle(progress)
        if self._pending is None and progress.offsets != self._offsets:
            self._offsets, self._pending = progress.offsets, int(progress.next_transaction)
            self._settle(progress)
        return self.version != before

    def _settle(self, progress: Progress) -> None:
        if self._pending is not None and int(progress.horizon) >= self._pending:
            self._pending = None
            self.version += 1


class RowStreams:
    """Streams of changed rows, for one gateway.

    Args:
        changes: Notices changes.
        streams: All open streams.
    """

    def __init__(self, changes: RowChanges, streams: EventStreams) -> None:
        self._changes = changes
        self.streams = streams

    def response(
        self, page: SyncPage, page_after: PageAfter, is_admitted: Callable[[], Awaitable[bool]]
    ) -> Streamed:
        """Return the stream of a page and what changes after it.

        Args:
            page: The first page.
            page_after: Reads further pages.
            is_admitted: Whether the caller may still read; asked from time to time.
        """
        return self.streams.response(self._chunks(page, page_after, is_admitted))

    async def _chunks(
        self, page: SyncPage, page_after: PageAfter, is_admitted: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        # The first page was read before: what has changed since is read at once.
        version = -1
        while not self.streams.closing.is_set():
            yield page_messages(page)
            try:
                if not page.has_more:
                    await self.streams.sleep(_GAP_S)
                    await self.streams.until_closing(
                        self._changes.wait(version, self.streams.heartbeat_s)
                    )
                if not await is_admitted():
                    return
                version = self._changes.version
                page = await page_after(page.cursor)
            except StoreUnavailable:
                version = -1
                page = SyncPage(tables={}, cursor=page.cursor, has_more=False)
                await self.streams.sleep(_RETRY_S)
            except HeadwaterError as error:
                log.warning("a stream of rows ended early: %s", error)
                return
