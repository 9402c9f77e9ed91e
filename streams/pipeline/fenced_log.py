"""Append to the topics of a partition under a lease, and repair what other processes wrote.

Records that another process appended in between show up as gaps in the offsets of appends. What
operators wrote is applied to the state; what a superseded owner wrote hides valid records, which
are appended again (`partition_lease`).
"""

import logging
from collections.abc import AsyncGenerator, Callable, Container, Mapping, Sequence
from contextlib import aclosing

from headwater.schemas.topics import OUTCOMES, WAITING
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, position_of
from headwater.streams.ownership.leases import Gap
from headwater.streams.pipeline.partition_lease import (
    FENCED,
    Fold,
    Hidden,
    PipelineLease,
    claim,
    last_values,
)
from headwater.streams.pipeline.record_batch import phases

log = logging.getLogger(__name__)


class FencedLog:
    """The topics of this worker's partitions.

    Args:
        cluster: The cluster.
        appender: Appends the records.
        check_session: Raises, before each append, unless the partitions are still this worker's.
        owner: Name of the worker in claims.
        memory: Topics that states are restored from.
        progress: Records progress of a partition.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        appender: Appender,
        check_session: Callable[[], None],
        owner: str,
        memory: Sequence[str],
        progress: Callable[[int, str], None],
    ) -> None:
        self._cluster = cluster
        self._appender = appender
        self._check_session = check_session
        self._owner = owner
        self._memory = memory
        self._progress = progress

    def read(
        self,
        topics: Sequence[str],
        partition: int,
        start: int | Mapping[str, int] | None = None,
        end: int | None = None,
    ) -> AsyncGenerator[list[Incoming]]:
        """Yield the records of a partition of topics in batches; see `read_partition`."""
        return read_partition(self._cluster, topics, partition, start=start, end=end)

    async def claim(
        self,
        topics: Sequence[str],
        partition: int,
        epoch: int | None = None,
        unseen: tuple[int, int] | None = None,
    ) -> dict[str, int]:
        """Claim a partition of topics; return the offsets of the claims."""
        claims = [claim(topic, partition, self._owner, epoch, unseen) for topic in topics]
        return {batch.topic: offset for batch, offset in await self._durable(claims)}

    async def append(self, lease: PipelineLease, emitted: Sequence[Outgoing]) -> None:
        """Append the effects of a batch; apply what others wrote. May raise PartitionLost."""
        for phase in phases(emitted):
            appended = await self._durable(phase)
            gaps = [
                lease.appended(batch.topic, batch.partition, first, batch.records)
                for batch, first in appended
            ]
            for gap in filter(None, gaps):
                for key in await self._repair(lease, gap):
                    # Our record follows the one in the gap, and is the current one.
                    written = (gap.topic, key)
                    lease.apply(own.as_read() for own in phase if (own.topic, own.key) == written)

    async def _durable(self, records: Sequence[Outgoing]) -> list[tuple[Sent, int]]:
        """Append records; return their batches and first offsets."""
        self._check_session()
        if not records:
            return []
        sent = await self._appender.send(records)
        offsets = await self._appender.acknowledged(sent)
        return list(zip(sent, offsets, strict=True))

    async def repair_ends(self, lease: PipelineLease, ends: Mapping[str, int]) -> None:
        """Repair what others wrote up to the ends of topics; may raise PartitionLost."""
        gaps = [lease.reached(topic, ends[topic]) for topic in FENCED]
        for gap in filter(None, gaps):
            await self._repair(lease, gap)

    async def publish_unseen(self, lease: PipelineLease) -> None:
        """Publish up to where there are no void outcomes, for the next owner."""
        if lease.unseen != lease.published_unseen:
            await self.renew_claim(lease)

    async def renew_claim(self, lease: PipelineLease) -> None:
        """Append a claim under the same epoch."""
        record = claim(WAITING, lease.partition, self._owner, lease.epoch, lease.unseen)
        lease.published_unseen = lease.unseen
        await self.append(lease, [record])

    async def _repair(self, lease: PipelineLease, gap: Gap) -> set[bytes]:
        """Apply what operators wrote, and rewrite what a superseded owner has hidden.

        Returns:
            The keys that operators wrote.
        """
        records = [
            record
            async for records in self.read([gap.topic], lease.partition, gap.start, gap.end)
            for record in records
        ]
        counting, hidden = lease.classify(records)
        if gap.topic in self._memory:
            lease.apply(counting)
        await self.rewrite(lease, hidden)
        return {record.key or b"" for record in counting}

    async def rewrite(self, lease: PipelineLease, hidden: Hidden) -> None:
        """Append records hidden by void ones, unless the lease is over."""
        for topic, records in hidden.items():
            if lease.over:
                return  # The next owner finds them, too.
            log.warning(
                "rewriting %d records of %s/%d: a worker that had lost the partition wrote there",
                len(records),
                topic,
                lease.partition,
            )
            if topic == OUTCOMES:
                rewritten = await self._outcomes(lease, records)
            else:
                rewritten = lease.state.current(topic, records)
            await self.append(lease, rewritten)

    async def _outcomes(self, lease: PipelineLease, hidden: Container[bytes]) -> list[Outgoing]:
        """Return outcomes that were hidden; reads the topic, because no state has them."""
        partition, headers = lease.partition, lease.headers
        fold, last = Fold(), dict[bytes, bytes | None]()
        async with aclosing(self.read([OUTCOMES], partition)) as batches:
            async for records in batches:
                self._progress(partition, f"read {position_of(records[-1])}")
                last.update(last_values(fold, records, hidden))
        return [Outgoing(OUTCOMES, partition, key, value, headers) for key, value in last.items()]
