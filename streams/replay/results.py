"""The results of entries, given to the code that awaits them.

Theory of operation: where the code awaits an entry that has its result already, the result is not
given at once. When nothing else moves, the recorded result with the lowest sequence among those
awaited is given, and so on. So the code sees the results in the order of the log, now as before a
crash, and gather, races and branches take the same turns.
"""

import asyncio
import heapq
from itertools import count

from headwater.processors.replay.state import UNRESOLVED, Entry
from headwater.schemas.statuses import OPEN, EntryStatus
from headwater.streams.replay.loop import WorkflowLoop


class Results:
    """What the code of one run awaits."""

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._awaited: dict[str, asyncio.Future[Entry]] = {}
        self._recorded: list[tuple[int, int, asyncio.Future[Entry], Entry]] = []
        #: Two that await the same entry have it in the order in which they came.
        self._numbers = count()
        self._commits: dict[str, asyncio.Future[None]] = {}

    def of(self, key: str, entry: Entry | None) -> asyncio.Future[Entry]:
        """The result of an entry: a recorded one comes in its turn, any other when it is there."""
        future: asyncio.Future[Entry] = self._loop.create_future()
        if entry is None or entry.status in OPEN or entry.sequence == UNRESOLVED:
            self._awaited[key] = future
        elif entry.status is not EntryStatus.CANCELLED:
            recorded = (entry.sequence, next(self._numbers), future, entry)
            heapq.heappush(self._recorded, recorded)
        # What was cancelled has no result, and nobody gets one.
        return future

    def next_recorded(
        self, before: int | None = None
    ) -> tuple[asyncio.Future[Entry], Entry] | None:
        """The recorded result whose turn it is; of those before a place of the log, if given."""
        if not self._recorded or (before is not None and self._recorded[0][0] > before):
            return None
        _, _, future, entry = heapq.heappop(self._recorded)
        return future, entry

    def resolve(self, key: str, entry: Entry) -> None:
        """Gives a result that has just been recorded."""
        future = self._awaited.pop(key, None)
        if future is not None and not future.done():
            future.set_result(entry)

    @property
    def awaits_commit(self) -> bool:
        """Whether a loop waits until its commit is durable."""
        return bool(self._commits)

    def of_commit(self, key: str) -> asyncio.Future[None]:
        """That the commit of a loop is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._commits[key] = future
        return future

    def resolve_commit(self, key: str) -> None:
        """The commit of a loop is durable."""
        future = self._commits.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)

    def forget(self) -> None:
        """Gives nothing any more."""
        self._awaited.clear()
        self._recorded.clear()
        self._commits.clear()
