"""Looking through the topics of a partition for what a wipe has to remove, beside its batches.

A partition is read whole, which takes as long as it takes; nobody waits for it. Whoever owns the
partition does so until its own record says that it is done, and begins again after a crash.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import UserForgotten
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Outgoing
from headwater.streams.pipeline.partition_state import PartitionState
from headwater.streams.pipeline.tenure import Tenure
from headwater.streams.pipeline.wiping import LOOKED_THROUGH, Search

log = logging.getLogger(__name__)

#: Tombstones of one append.
_TOGETHER: Final = 1_000

#: Appends what is decided in the turn of a partition; False when the partition is lost by then.
Appends: TypeAlias = Callable[[Tenure, Callable[[], Sequence[Outgoing]]], Awaitable[bool]]


class Sweeps:
    """The searches of a worker, one at a time in each partition."""

    def __init__(self, *, cluster: Cluster, clock: Callable[[], int], append: Appends) -> None:
        self._cluster = cluster
        self._clock = clock
        self._append = append
        self._running: dict[int, asyncio.Task[None]] = {}

    def begin(self, tenure: Tenure, state: PartitionState) -> None:
        """Begins a search if one is due in a partition; to be called in its turn, now and then."""
        wanted = state.wipes.pending()
        if wanted and tenure.partition not in self._running:
            name = f"wipe in partition {tenure.partition}"
            search = self._search(tenure, state, wanted[0])
            self._running[tenure.partition] = asyncio.create_task(search, name=name)

    def check(self) -> None:
        """Passes while no search has failed; to be called now and then.

        Errors: whatever ended a search.
        """
        for partition, search in list(self._running.items()):
            if search.done():
                del self._running[partition]
                search.result()

    async def _search(self, tenure: Tenure, state: PartitionState, wipe: UserForgotten) -> None:
        search = Search(wipe, tenure.partition)

        def count() -> Sequence[Outgoing]:
            return state.wipes.found(search.counted())

        def say_so() -> Sequence[Outgoing]:
            return state.wipes.found(search.done(self._clock()))

        is_done = (
            await self._look(tenure, search)
            and await self._append(tenure, count)
            and await self._remove(tenure, search)
            and await self._append(tenure, say_so)
        )
        if is_done:
            state.purge(wipe.names)
            log.info("partition %d has wiped %s", tenure.partition, wipe.digests[0])

    async def _look(self, tenure: Tenure, search: Search) -> bool:
        """Looks through all topics; False if that has to be begun again."""
        for topic in LOOKED_THROUGH:
            try:
                reading = read_partition(self._cluster, [topic], tenure.partition)
                async with aclosing(reading) as batches:
                    async for records in batches:
                        if tenure.over:
                            return False
                        search.look(topic, records)
            except BrokerUnavailable as error:
                log.warning("a wipe is tried again: %s", error)
                return False
        return True

    async def _remove(self, tenure: Tenure, search: Search) -> bool:
        """Appends the tombstones of what was found; False if the partition is lost by then."""
        for topic in reversed(LOOKED_THROUGH):
            found = search.removals(topic, tenure.headers)
            for at in range(0, len(found), _TOGETHER):
                some = found[at : at + _TOGETHER]
                if not await self._append(tenure, lambda some=some: some):  # type: ignore[misc]
                    return False
        return True
