"""Delivery of entries' results to the code that awaits them.

A recorded result is not delivered as soon as the code awaits it. When the code rests, the recorded
result with the lowest sequence among those awaited is delivered, and so on. The code thus sees
results in the order of the log, now as before a crash, and gather, races and branches execute in
the same order.
"""

import asyncio
import heapq
from itertools import count

from headwater.processors.code.state import UNRESOLVED, Entry
from headwater.schemas.statuses import OPEN, EntryStatus
from headwater.streams.replay.loop import WorkflowLoop


class Results:
    """The results that the code of one run awaits."""

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._awaited: dict[str, asyncio.Future[Entry]] = {}
        self._recorded: list[tuple[int, int, asyncio.Future[Entry], Entry]] = []
        #: Orders several waiters of the same entry by their arrival.
        self._numbers = count()
        self._commits: dict[str, asyncio.Future[None]] = {}

    def future_of(self, key: str, entry: Entry | None) -> asyncio.Future[Entry]:
        """Return a future for the result of an entry.

        A recorded result is delivered in the order of the log, any other when it is recorded.
        """
        future: asyncio.Future[Entry] = self._loop.create_future()
        if entry is None or entry.status in OPEN or entry.sequence == UNRESOLVED:
            self._awaited[key] = future
        elif entry.status is not EntryStatus.CANCELLED:
            recorded = (entry.sequence, next(self._numbers), future, entry)
            heapq.heappush(self._recorded, recorded)
        # A cancelled entry has no result; its future stays pending.
        return future

    def next_recorded(
        self, before: int | None = None
    ) -> tuple[asyncio.Future[Entry], Entry] | None:
        """Return the next recorded result, optionally only one before a sequence."""
        if not self._recorded or (before is not None and self._recorded[0][0] > before):
            return None
        _, _, future, entry = heapq.heappop(self._recorded)
        return future, entry

    def resolve(self, key: str, entry: Entry) -> None:
        """Deliver a result that has just been recorded."""
        future = self._awaited.pop(key, None)
        if future is not None and not future.done():
            future.set_result(entry)

    @property
    def awaits_commit(self) -> bool:
        """Whether a loop waits until its commit is durable."""
        return bool(self._commits)

    def commit_future(self, key: str) -> asyncio.Future[None]:
        """Return a future for the durability of a loop's commit."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._commits[key] = future
        return future

    def resolve_commit(self, key: str) -> None:
        """Record that the commit of a loop is durable."""
        future = self._commits.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)

    def forget(self) -> None:
        """Drop all waiters."""
        self._awaited.clear()
        self._recorded.clear()
        self._commits.clear()
