"""Progress of the pipeline and the projector, and wipes under way, for comparisons of a table."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from headwater.projections.rebuilds.rebuilds import RebuildWork
from headwater.projections.rebuilds.shadow_tables import ShadowTables
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.topics import EVENTS, UNRESOLVED, WEBHOOKS, WIPES
from headwater.streams.kafka.readers import Offsets

log = logging.getLogger("headwater.rebuild")

#: Seconds to wait for the pipeline; if it is down, the comparison uses its current rows.
_PIPELINE_S: Final = 60.0
_PROJECTOR_S: Final = 60.0
_POLL_EVERY_S: Final = 0.2


class TableProgress:
    """Waits until a table in Postgres includes what Kafka has, and notices wipes.

    Args:
        offsets: Offsets of the pipeline's consumer group.
        tables: The table in Postgres.
        work: The rebuild.
        topic: The topic of the table.
        partitions: Number of its partitions.
    """

    def __init__(
        self,
        offsets: Offsets,
        tables: ShadowTables,
        work: RebuildWork,
        topic: str,
        partitions: int,
    ) -> None:
        self._offsets = offsets
        self._tables = tables
        self._work = work
        self._topic = topic
        self._partitions = range(partitions)
        #: Ends of the topic of wipes before the rows were read.
        self._wipes: Mapping[int, int] = {}

    async def note_wipes(self) -> None:
        """Remember how far the topic of wipes is: `has_new_wipes` compares."""
        self._wipes = await self.ends(WIPES)

    async def ends(self, topic: str) -> dict[int, int]:
        """Return the end offsets of a topic, by partition."""
        return {
            number: (await self._offsets.ends([topic], number))[topic]
            for number in self._partitions
        }

    async def has_new_wipes(self) -> bool:
        """Return whether a user was wiped since `note_wipes`, or is being wiped.

        Otherwise all tombstones of wiped rows are before the ends that Postgres has reached, so
        Postgres and the topic of the table have lost the same rows.
        """
        is_same = await self.ends(WIPES) == self._wipes
        return not is_same or await self._work.has_wipes_under_way()

    async def projector_arrives(self) -> None:
        """Wait until Postgres has what the topics of the table and of wipes have now.

        Raises:
            StoreUnavailable: It takes too long.
        """
        expected = {WIPES: self._wipes, self._topic: await self.ends(self._topic)}
        deadline_s = asyncio.get_running_loop().time() + _PROJECTOR_S
        while True:
            applied = await self._tables.ends()
            if all(
                applied[topic].get(number, 0) >= end
                for topic, ends in expected.items()
                for number, end in ends.items()
            ):
                return
            if asyncio.get_running_loop().time() > deadline_s:
                raise StoreUnavailable(
                    f"the projector is behind in {self._topic}; waiting to compare its rows"
                )
            await asyncio.sleep(_POLL_EVERY_S)

    async def pipeline_arrives(self, webhook_ends: Sequence[int] = ()) -> None:
        """Wait until the pipeline has processed the log up to these ends, and all hops."""
        deadline_s = asyncio.get_running_loop().time() + _PIPELINE_S
        for number, end in enumerate(webhook_ends):
            await self._committed(number, {WEBHOOKS: end}, deadline_s)
        for number in self._partitions:
            hops = await self._offsets.ends([EVENTS, UNRESOLVED], number)
            await self._committed(number, hops, deadline_s)

    async def _committed(self, number: int, ends: dict[str, int], deadline_s: float) -> None:
        while True:
            done = await self._offsets.committed(list(ends), number)
            if all(done[topic] >= end for topic, end in ends.items()):
                return
            if asyncio.get_running_loop().time() > deadline_s:
                log.warning("the pipeline is behind: comparing with its current rows")
                return
            await asyncio.sleep(_POLL_EVERY_S)
