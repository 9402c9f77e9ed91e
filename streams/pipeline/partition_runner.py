"""Run intake over the partitions that this worker owns.

The loop: acquire a partition and restore its state before its first batch, let intake decide,
append the records that result, and mark the batch as done only when the broker has acknowledged all
of them. Records that another process appended in between show up as gaps in the offsets, and are
repaired (`partition_lease`).
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final

from headwater.processors.runs.claims import epoch_after
from headwater.schemas.codec import write_versions
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.topics import ADMISSIONS, OUTCOMES, WAITING
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, position_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.state_store import StateStore
from headwater.streams.pipeline._faust import TP, Batch
from headwater.streams.pipeline.intake import Intake
from headwater.streams.pipeline.partition_lease import (
    FENCED,
    BlockedPartitions,
    Fold,
    Gap,
    Hidden,
    LogCut,
    PartitionCheckpoint,
    PartitionLease,
    PartitionLost,
    claim,
    last_values,
)
from headwater.streams.pipeline.partition_state import PartitionState
from headwater.streams.pipeline.record_batch import phases
from headwater.streams.pipeline.sweeps import Sweeps
from headwater.streams.watchdog import Watchdog

log = logging.getLogger(__name__)

#: How often the ends of topics are checked for other writers: far more often than compaction runs.
_CHECK_EVERY_S: Final = 10.0


class PartitionRunner:
    """Runs intake over the partitions that this worker owns.

    Offsets are queried for the group that consumes the sources. `check_session` raises, before
    each append, unless the partitions are still this worker's. `owner` names it in claims.
    """

    def __init__(  # noqa: PLR0913 (its collaborators)
        self,
        intake: Intake,
        *,
        cluster: Cluster,
        appender: Appender,
        offsets: Offsets,
        check_session: Callable[[], None],
        watchdog: Watchdog,
        open_store: Callable[[int], Awaitable[StateStore]],
        clock: BrokerClock,
        owner: str,
    ) -> None:
        self.intake = intake
        self._cluster = cluster
        self._appender = appender
        self._offsets = offsets
        self._watchdog = watchdog
        self._open_store = open_store
        self._check_session = check_session
        self._clock = clock
        self._owner = owner
        self._sweeps = Sweeps(cluster=cluster, clock=clock.now_ms, append=self._append_locked)
        self._blocked = BlockedPartitions()
        self._owned: set[int] = set()
        #: States of partitions that are ready or being restored.
        self._states: dict[int, PartitionState] = {}
        #: Leases of partitions that are ready.
        self._leases: dict[int, PartitionLease] = {}
        #: Leases from before a rebalance: other workers may have owned the partitions meanwhile.
        self._kept: dict[int, PartitionLease] = {}
        self._checked_s = -math.inf
        # Batches of a partition, of any topic, and its ticks must not overlap: all of them change
        # its state.
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def assigned(self, partitions: set[TP]) -> set[int]:
        """Record the partitions that this worker owns from now on, and discard all others.

        The coordinator may not have known all topics yet, and assigns again once it does.

        Returns:
            The partitions to prepare.
        """
        self._owned = set.intersection(
            *(
                {tp.partition for tp in partitions if tp.topic == topic}
                for topic in self.intake.sources
            )
        )
        for partition in (self._leases.keys() | self._kept.keys()) - self._owned:
            self._discard(partition)
        for partition in self._owned:
            self._progress(partition, "it was assigned")
        return self._owned - self._leases.keys()

    def revoked(self) -> None:
        """Own nothing until partitions are assigned again.

        Leases are kept, and checked before they are used again: a worker that was too late for one
        rebalance may get a partition back in the next, and another worker owned it in between. The
        state of blocked partitions may be ahead of the log, and is restored again.
        """
        for partition in self._owned:
            self._watchdog.leave(_name(partition))
            if partition in self._blocked:
                self._discard(partition)
        self._owned = set()
        self._kept |= self._leases
        self._leases = {}
        self._blocked.clear()

    def _discard(self, partition: int) -> None:
        self._close(partition)
        for leases in (self._leases, self._kept):
            lease = leases.pop(partition, None)
            if lease is not None:
                lease.over = True

    def _close(self, partition: int) -> None:
        """Release the store of a partition that another worker may own from now on."""
        state = self._states.pop(partition, None)
        if state is not None:
            state.close()

    async def prepare(self, partition: int) -> bool:
        """Acquire a partition, or verify a kept lease; return whether it is ready."""
        async with self._locks[partition]:
            return await self._lease(partition) is not None

    async def process(self, batch: Batch) -> None:
        """Process a batch; when it returns, all records that follow from it are durable.

        From the first record that a newer release wrote, batches of the partition are dropped and
        never committed: the next owner of the partition fetches them again.
        """
        async with self._locks[batch.partition]:
            lease = await self._lease(batch.partition)
            if lease is None:
                return
            known, newer = readable(batch.records)
            if newer is not None:
                self._blocked.begin(batch.partition, newer_schema_message(newer))
                before = sum(record.offset < newer.offset for record in batch.records)
                if not before:
                    return
                batch = batch.first(before)
            with self._writable(batch.partition):
                now_ms, state = self._clock.now_ms(), self._states[batch.partition]
                emitted = self.intake.step(state, batch.topic, known, now_ms)
                await self._append(lease, emitted)
                self._write(lease)
                batch.done()
            self._progress(batch.partition, f"{batch.topic} up to {batch.end}")

    def _progress(self, partition: int, what: str) -> None:
        if partition in self._owned:  # Otherwise nothing would remove it from the watchdog.
            self._watchdog.record_progress(_name(partition), what)

    async def tick(self) -> None:
        """Do what is due in the partitions of this worker."""
        self._sweeps.check()
        now = self._clock.now()
        checks_ends = now.at_s - self._checked_s >= _CHECK_EVERY_S
        for partition in sorted(self._owned):
            if partition in self._blocked:
                self._progress(partition, "it waits for another release")
            elif partition in self._leases:  # Otherwise it is being restored, which may take long.
                async with self._locks[partition]:
                    await self._tick(partition, checks_ends=checks_ends)
        self._checked_s = now.at_s if checks_ends else self._checked_s
        self._blocked.check_versions()
        for line in self._blocked.due(now.ms):
            log.warning("%s: %s", self.intake.name, line)

    async def _tick(self, partition: int, *, checks_ends: bool) -> None:
        lease = self._leases.get(partition) if partition in self._owned else None
        if lease is not None and partition not in self._blocked:
            with self._writable(partition):
                state = self._states[partition]
                # Only an append returns the broker's time, and an idle worker makes none.
                await self._clock.settle(partial(self._renew_claim, lease))
                await self._append(lease, self.intake.tick(state, self._clock.now_ms()))
                if checks_ends:
                    await self._check_ends(lease)
                self._write(lease)
                if not lease.over:
                    self._sweeps.begin(lease, state)

    async def _append_locked(
        self, lease: PartitionLease, make: Callable[[], Sequence[Outgoing]]
    ) -> bool:
        """Append records made under the partition's lock; return False if the lease is over."""
        partition = lease.partition
        async with self._locks[partition]:
            if self._leases.get(partition) is not lease or partition in self._blocked:
                return False
            with self._writable(partition):
                await self._append(lease, make())
                self._write(lease)
            return not lease.over

    def _write(self, lease: PartitionLease) -> None:
        """Write durable changes to the store, unless the partition was discarded meanwhile."""
        if not lease.over:
            self._states[lease.partition].write(lease.checkpoint(self.intake.memory))

    @contextmanager
    def _writable(self, partition: int) -> Iterator[None]:
        """Discard partition state that is ahead of the log."""
        forms = write_versions()
        try:
            yield
        except NotYetReadable as error:
            self._blocked.block_writes(partition, error, forms)
            self._discard(partition)
        except BaseException:
            # Also on cancellation: the worker may live for some more ticks, which would write
            # changes to the store that the log does not have, and never gets.
            self._discard(partition)
            raise

    # -- appending

    async def _append(self, lease: PartitionLease, emitted: Sequence[Outgoing]) -> None:
        """Append the effects of a batch; apply what others wrote. May raise PartitionLost."""
        for phase in phases(emitted):
            appended = await self._durable(phase)
            with self._clearing(lease):
                gaps = [
                    lease.appended(batch.topic, batch.partition, first, batch.records)
                    for batch, first in appended
                ]
            for gap in filter(None, gaps):
                for key in await self._repair(lease, gap):
                    # Our record follows the one in the gap, and is the current one.
                    written = (gap.topic, key)
                    self._apply(lease, (own for own in phase if (own.topic, own.key) == written))

    async def _durable(self, records: Sequence[Outgoing]) -> list[tuple[Sent, int]]:
        """Append records; return their batches and first offsets."""
        self._check_session()
        if not records:
            return []
        sent = await self._appender.send(records)
        offsets = await self._appender.acknowledged(sent)
        return list(zip(sent, offsets, strict=True))

    @contextmanager
    def _clearing(self, lease: PartitionLease) -> Iterator[None]:
        """Clear the store if the log was truncated: the store has what the log lost."""
        try:
            yield
        except LogCut:
            self._states[lease.partition].clear()
            raise

    async def _check_ends(self, lease: PartitionLease) -> None:
        """Check for records that others appended since this owner's last append.

        If no broker answers, it records no progress, and the watchdog acts in time.
        """
        partition, sources = lease.partition, self.intake.sources
        try:
            # In this order: commits in between may only make the group seem ahead, never behind.
            ends = await self._offsets.ends((*FENCED, *sources), partition)
            committed = await self._offsets.committed(sources, partition)
        except BrokerUnavailable as error:
            log.warning("%s", error)
            return
        if lease.over:
            return
        if all(committed[topic] >= ends[topic] for topic in sources):
            self._progress(partition, "it was at the end of its topics")
        await self._repair_ends(lease, ends)
        await self._publish_unseen(lease)

    async def _repair_ends(self, lease: PartitionLease, ends: Mapping[str, int]) -> None:
        """Repair what others wrote up to the ends of topics; may raise PartitionLost."""
        with self._clearing(lease):
            gaps = [lease.ended(topic, ends[topic]) for topic in FENCED]
        for gap in filter(None, gaps):
            await self._repair(lease, gap)

    async def _publish_unseen(self, lease: PartitionLease) -> None:
        """Publish up to where there are no void outcomes, for the next owner."""
        if lease.unseen != lease.published_unseen:
            await self._renew_claim(lease)

    async def _renew_claim(self, lease: PartitionLease) -> None:
        record = claim(WAITING, lease.partition, self._owner, lease.epoch, lease.unseen)
        lease.published_unseen = lease.unseen
        await self._append(lease, [record])

    async def _repair(self, lease: PartitionLease, gap: Gap) -> set[bytes]:
        """Apply what operators wrote, and rewrite what a superseded owner has hidden.

        Returns:
            The keys that operators wrote.
        """
        partition = lease.partition
        records = [
            record
            async for records in self._read(gap.topic, partition, gap.start, gap.end)
            for record in records
        ]
        counting, hidden = lease.classify(records)
        if gap.topic in self.intake.memory:
            self._apply(lease, counting)
        await self._rewrite(lease, hidden)
        return {record.key or b"" for record in counting}

    def _apply(self, lease: PartitionLease, records: Iterable[Incoming | Outgoing]) -> None:
        """Apply records to a partition's state, unless it was discarded meanwhile."""
        for record in () if lease.over else records:
            read = record.as_read() if isinstance(record, Outgoing) else record
            self._states[lease.partition].restore_record(read)

    async def _rewrite(self, lease: PartitionLease, hidden: Hidden) -> None:
        """Append records hidden by void ones, unless the partition was discarded meanwhile."""
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
                rewritten = self._states[lease.partition].current(topic, records)
            await self._append(lease, rewritten)

    async def _outcomes(self, lease: PartitionLease, hidden: Container[bytes]) -> list[Outgoing]:
        """Return outcomes that were hidden; reads the topic, because no state has them."""
        fold, last = Fold(), dict[bytes, bytes | None]()
        async with aclosing(self._read(OUTCOMES, lease.partition)) as batches:
            async for records in batches:
                self._progress(lease.partition, f"read {position_of(records[-1])}")
                last.update(last_values(fold, records, hidden))
        partition, headers = lease.partition, lease.headers
        return [Outgoing(OUTCOMES, partition, key, value, headers) for key, value in last.items()]

    # -- acquiring a partition

    async def _lease(self, partition: int) -> PartitionLease | None:
        """Return the lease of a partition, acquired if need be; None while it is blocked."""
        if partition in self._owned and partition in self._kept:
            with self._writable(partition):
                await self._resume(partition)
        if partition not in self._owned or partition in self._blocked or partition in self._kept:
            return None
        lease = self._leases.get(partition) or await self._acquire(partition)
        if lease is None:
            self._close(partition)  # Its next owner needs the store.
        return lease

    async def _resume(self, partition: int) -> None:
        """Resume a lease that was kept over a rebalance, if no other worker had the partition.

        A worker that acquires a partition claims it before anything else.
        """
        owned, kept = self._owned, self._kept[partition]
        retrying = Retrying(log, f"waiting for Kafka to resume {_name(partition)}")
        ends = await retrying.until_done(lambda: self._offsets.ends(FENCED, partition))
        try:
            await self._repair_ends(kept, ends)
        except PartitionLost as error:
            log.warning("%s is acquired again: %s", _name(partition), error)
            self._discard(partition)
        if owned is self._owned and not kept.over:
            self._leases[partition] = self._kept.pop(partition)

    async def _acquire(self, partition: int) -> PartitionLease | None:
        """Restore a partition and claim it; return None if it is blocked or revoked."""
        owned = self._owned
        self._close(partition)
        fold = Fold(await self._open(partition))
        # Its offset exceeds that of any earlier claim, in whatever order owners read it.
        admissions = await self._claim([ADMISSIONS], partition)
        start = dict(fold.positions)
        reading = read_partition(self._cluster, self.intake.memory, partition, start=start)
        if not await self._restore(partition, fold, owned, reading):
            return None
        epoch = epoch_after(admissions[ADMISSIONS], fold.epoch)
        claims = await self._claim(FENCED, partition, epoch, fold.unseen)
        # Records before the claim are valid, also those appended while the rest was read.
        fold.begin(OUTCOMES, *fold.unseen)
        for topic in (*self.intake.memory, OUTCOMES):
            begin, end = fold.positions.get(topic, 0), claims.get(topic, 0)
            reading = self._read(topic, partition, begin, end)
            if not await self._restore(partition, fold, owned, reading):
                return None
        if fold.epoch > epoch:
            raise PartitionLost(
                f"expected to claim partition {partition} as {epoch}, found that it was claimed "
                f"as {fold.epoch} meanwhile"
            )
        lease = PartitionLease(partition, epoch, admissions | claims)
        self._states[partition].headers[:] = lease.headers
        await self._rewrite(lease, fold.hidden)
        await self._publish_unseen(lease)
        self._write(lease)
        if owned is not self._owned:
            return None
        self._leases[partition] = lease
        return lease

    async def _open(self, partition: int) -> PartitionCheckpoint:
        """Open a partition's store; clear one that is ahead of the topics: it is another log's."""
        store = await self._open_store(partition)
        state = self._states[partition] = PartitionState(partition, store)
        checkpoint = state.checkpoint()
        ends = await self._offsets.ends(self.intake.memory, partition)
        ahead = [topic for topic, offset in checkpoint.positions.items() if offset > ends[topic]]
        if not ahead:
            return checkpoint
        log.warning("partition %d is restored in full: its store is ahead of %s", partition, ahead)
        store.clear()
        self._states[partition] = PartitionState(partition, store)
        return PartitionCheckpoint()

    async def _claim(
        self,
        topics: Sequence[str],
        partition: int,
        epoch: int | None = None,
        unseen: tuple[int, int] | None = None,
    ) -> dict[str, int]:
        """Claim a partition of topics; return the offsets of the claims."""
        claims = [claim(topic, partition, self._owner, epoch, unseen) for topic in topics]
        return {batch.topic: offset for batch, offset in await self._durable(claims)}

    async def _restore(
        self,
        partition: int,
        fold: Fold,
        owned: set[int],
        reading: AsyncGenerator[list[Incoming]],
    ) -> bool:
        """Apply records to a partition's state; return False if restoring must stop."""
        async with aclosing(reading) as batches:
            async for records in batches:
                if owned is not self._owned:
                    return False  # A rebalance: other workers may append after what was read.
                self._progress(partition, f"restored {position_of(records[-1])}")
                known, newer = readable(records)
                if newer is not None:
                    self._blocked.begin(partition, newer_schema_message(newer))
                    return False
                for record in known:
                    if fold.admit(record) and record.topic != OUTCOMES:
                        self._states[partition].restore_record(record)
                checkpoint = fold.checkpoint(self.intake.memory)
                if checkpoint is not None:  # Otherwise it is written once hidden records are.
                    self._states[partition].write(checkpoint)
        return owned is self._owned

    def _read(
        self, topic: str, partition: int, start: int | None = None, end: int | None = None
    ) -> AsyncGenerator[list[Incoming]]:
        return read_partition(self._cluster, [topic], partition, start=start, end=end)


def _name(partition: int) -> str:
    return f"partition {partition}"
