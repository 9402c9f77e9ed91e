"""Stream changed rows as server-sent events.

One poller serves all streams of a gateway, and polls only while one is open. It notices that the
projector has advanced, and waits until the horizon of sync has passed what was written: only then
can the rows be read (see `headwater.projections.deliveries.sync`). Then it wakes the streams of the
users whose rows were written.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
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
    Without rows it is the cursor alone, which clients remember, so that it does not expire.
    """
    return b"".join(_messages(page)) or f"id: {page.cursor}\n\n".encode()


def _messages(page: SyncPage) -> Iterator[bytes]:
    changes = [change_of(table, row) for table, rows in page.tables.items() for row in rows]
    for index, change in enumerate(changes, 1):
        event = "deleted" if "deleted" in change else "row"
        cursor = page.cursor if index == len(changes) else None
        yield encode_message(event, msgspec.json.encode(change), cursor)


class Subscription:
    """A stream that waits for changes.

    Attributes:
        owner: The user whose rows it sends; None for those of all users.
        changed: Set when such rows may have changed since it was cleared.
    """

    def __init__(self, owner: str | None) -> None:
        self.owner = owner
        self.changed = asyncio.Event()


class RowChanges:
    """Notices that rows have changed and can be read, and wakes the streams that send them.

    Args:
        read_progress: Reads how far the projector is.
        read_users: Returns whose rows were written by transactions from one on and before another;
            None if they may be those of all users.
    """

    def __init__(
        self,
        read_progress: Callable[[], Awaitable[Progress]],
        read_users: Callable[[str, str], Awaitable[frozenset[str] | None]],
    ) -> None:
        self._read_progress = read_progress
        self._read_users = read_users
        self._subscriptions: set[Subscription] = set()
        self._poller: asyncio.Task[None] | None = None
        self._offsets = -1
        #: First transaction after those of a change that cannot be read yet.
        self._pending: int | None = None
        #: Horizon of the changes that were noticed; empty before the first ones.
        self._noticed = ""

    @contextmanager
    def subscription(self, owner: str | None) -> Iterator[Subscription]:
        """Wake a stream while the context is open."""
        subscription = Subscription(owner)
        self._subscriptions.add(subscription)
        if self._poller is None or self._poller.done():
            # Changes before this were not noticed.
            self._noticed = ""
            self._poller = asyncio.create_task(self._poll(), name="poll rows")
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    async def _poll(self) -> None:
        while self._subscriptions:
            try:
                progress = await self._read_progress()
                if self.observe(progress):
                    self._notify(await self._users_since(progress.horizon))
            except StoreUnavailable:
                # They find out themselves, and retry.
                self._noticed = ""
                self._notify(None)
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_POLL_S)

    async def _users_since(self, horizon: str) -> frozenset[str] | None:
        noticed, self._noticed = self._noticed, horizon
        return await self._read_users(noticed, horizon) if noticed else None

    def _notify(self, users: frozenset[str] | None) -> None:
        for subscription in self._subscriptions:
            if users is None or subscription.owner is None or subscription.owner in users:
                subscription.changed.set()

    def observe(self, progress: Progress) -> bool:
        """Take the progress of the projector; return whether a change can be read now."""
        can_read = self._settle(progress)
        if self._pending is None and progress.offsets != self._offsets:
            self._offsets, self._pending = progress.offsets, int(progress.next_transaction)
            can_read |= self._settle(progress)
        return can_read

    def _settle(self, progress: Progress) -> bool:
        if self._pending is None or int(progress.horizon) < self._pending:
            return False
        self._pending = None
        return True


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
        self,
        page: SyncPage,
        page_after: PageAfter,
        is_admitted: Callable[[], Awaitable[bool]],
        owner: str | None = None,
    ) -> Streamed:
        """Return the stream of a page and what changes after it.

        Args:
            page: The first page.
            page_after: Reads further pages.
            is_admitted: Whether the caller may still read; asked from time to time.
            owner: The user whose rows it sends; None for those of all users.
        """
        chunks = self._chunks(page, page_after, is_admitted, owner)
        return self.streams.response(chunks, user_id=owner)

    async def _chunks(
        self,
        page: SyncPage,
        page_after: PageAfter,
        is_admitted: Callable[[], Awaitable[bool]],
        owner: str | None,
    ) -> AsyncGenerator[bytes, None]:
        with self._changes.subscription(owner) as subscription:
            # The first page was read before: what has changed since is read at once.
            subscription.changed.set()
            while not self.streams.closing.is_set():
                yield page_messages(page)
                try:
                    if not page.has_more:
                        await self._wait(subscription)
                    if not await is_admitted():
                        return
                    subscription.changed.clear()
                    page = await page_after(page.cursor)
                except StoreUnavailable:
                    subscription.changed.set()
                    page = SyncPage(tables={}, cursor=page.cursor, has_more=False)
                    await self.streams.sleep(_RETRY_S)
                except HeadwaterError as error:
                    log.warning("a stream of rows ended early: %s", error)
                    return

    async def _wait(self, subscription: Subscription) -> None:
        """Wait until rows have changed, it is time for a cursor, or all streams end."""
        await self.streams.sleep(_GAP_S)
        try:
            async with asyncio.timeout(self.streams.heartbeat_s):
                await self.streams.until_closing(subscription.changed.wait())
        except TimeoutError:
            pass
