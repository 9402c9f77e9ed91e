"""Search the topics of a partition for records that a wipe has to remove, in the background.

A whole partition is read, however long it takes; nothing waits for it. The owner of the partition
continues until its own record states that the search is done, and starts over after a crash.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeAlias

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import UserForgotten
from headwater.schemas.topics import OUTCOMES
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.fenced_log import FencedLog
from headwater.streams.pipeline.partition_lease import PipelineLease
from headwater.streams.pipeline.wiping import SWEPT_TOPICS, WipeSearch

log = logging.getLogger(__name__)

#: Tombstones of one append.
_TOMBSTONES: Final = 1_000

#: Appends records made under the lock of a partition; returns False if the lease is over.
AppendLocked: TypeAlias = Callable[
    [PipelineLease, Callable[[], Sequence[Outgoing]]], Awaitable[bool]
]


class Sweeps:
    """The searches of a worker, at most one in each partition."""

    def __init__(self, topics: FencedLog, clock: Callable[[], int], append: AppendLocked) -> None:
        self._topics = topics
        self._clock = clock
        self._append = append
        self._running: dict[int, asyncio.Task[None]] = {}

    def begin(self, lease: PipelineLease) -> None:
        """Start a search if one is due in a partition; called regularly, under its lock."""
        pending = lease.state.wipes.pending()
        if pending and lease.partition not in self._running:
            name = f"wipe in partition {lease.partition}"
            search = self._search(lease, pending[0])
            self._running[lease.partition] = asyncio.create_task(search, name=name)

    def check(self) -> None:
        """Raise the error of a search that failed, if any did; called regularly."""
        for partition, search in list(self._running.items()):
            if search.done():
                del self._running[partition]
                search.result()

    async def _search(self, lease: PipelineLease, wipe: UserForgotten) -> None:
        search, state = WipeSearch(wipe, lease.partition), lease.state

        def count() -> Sequence[Outgoing]:
            return state.wipes.record_found(search.counted())

        def finish() -> Sequence[Outgoing]:
            return state.wipes.record_found(search.done(self._clock()))

        is_done = (
            await self._read_topics(lease, search)
            and await self._append(lease, count)
            and await self._remove(lease, search)
            and await self._append(lease, finish)
        )
        if is_done:
            state.purge(wipe.names)
            log.info("partition %d has wiped %s", lease.partition, wipe.digests[0])

    async def _read_topics(self, lease: PipelineLease, search: WipeSearch) -> bool:
        """Read all topics; return False if the search has to start over."""
        passes: list[tuple[str, Callable[[Sequence[Incoming]], None]]] = [
            *((topic, partial(search.examine, topic)) for topic in SWEPT_TOPICS),
            (OUTCOMES, search.exclude),
        ]
        for topic, examine in passes:
            try:
                async with aclosing(self._topics.read([topic], lease.partition)) as batches:
                    async for records in batches:
                        if lease.over:
                            return False
                        examine(records)
            except BrokerUnavailable as error:
                log.warning("a wipe is retried: %s", error)
                return False
        return True

    async def _remove(self, lease: PipelineLease, search: WipeSearch) -> bool:
        """Append the tombstones of matching records; return False if the lease is over."""
        for topic in reversed(SWEPT_TOPICS):
            tombstones = search.removals(topic, lease.headers)
            for start in range(0, len(tombstones), _TOMBSTONES):
                some = tombstones[start : start + _TOMBSTONES]
                if not await self._append(lease, lambda some=some: some):  # type: ignore[misc]
                    return False
        return True
