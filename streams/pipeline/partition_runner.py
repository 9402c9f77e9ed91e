"""Run intake over the partitions that this worker owns.

The loop: acquire a partition and restore its state before its first batch, let intake decide,
append the records that result, and mark the batch as done only when the broker has acknowledged all
of them (`fenced_log`).
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final

from headwater.processors.runs.claims import epoch_after
from headwater.schemas.codec import SchemaVersion, write_versions
from headwater.schemas.errors import (
    BrokerUnavailable,
    Disposition,
    HeadwaterError,
    NotYetReadable,
)
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.topics import ADMISSIONS, OUTCOMES
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.readers import Offsets
from headwater.streams.kafka.records import Incoming, Outgoing, position_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.state_store import StateStore
from headwater.streams.ownership.leases import PartitionLost
from headwater.streams.ownership.phases import Change, OwnedPartitions, Phase
from headwater.streams.pipeline._faust import TP, Batch
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.fenced_log import FencedLog
from headwater.streams.pipeline.partition_lease import (
    FENCED,
    Fold,
    PipelineLease,
)
from headwater.streams.pipeline.partition_state import PartitionState
from headwater.streams.pipeline.sweeps import Sweeps

log = logging.getLogger(__name__)

#: How often the ends of topics are checked for other writers: far more often than compaction runs.
_CHECK_EVERY_S: Final = 10.0


class SchemaVersionsChanged(HeadwaterError):
    """Records that could not be written may be written now: restart and restore partitions."""

    disposition = Disposition.HALT
    code = "forms_changed"


class PartitionRunner:
    """Runs intake over the partitions that this worker owns.

    Args:
        intake: Intake.
        topics: The topics of the partitions.
        partitions: Their phases.
        offsets: Offsets of the topics, and those of the group that consumes the sources.
        open_store: Opens the store of a partition.
        clock: Clock of intake.
    """

    def __init__(
        self,
        intake: Intake,
        *,
        topics: FencedLog,
        partitions: OwnedPartitions,
        offsets: Offsets,
        open_store: Callable[[int], Awaitable[StateStore]],
        clock: BrokerClock,
    ) -> None:
        self.intake = intake
        self._topics = topics
        self._partitions = partitions
        self._offsets = offsets
        self._open_store = open_store
        self._clock = clock
        self._sweeps = Sweeps(topics, clock.now_ms, self._append_locked)
        #: The schema versions in use when the first partition could not write a record.
        self._blocking_versions: Mapping[str, SchemaVersion] | None = None
        #: Leases of partitions that are owned, or were before a rebalance: other workers may have
        #: owned those meanwhile.
        self._leases: dict[int, PipelineLease] = {}
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
        numbers = set.intersection(
            *(
                {tp.partition for tp in partitions if tp.topic == topic}
                for topic in self.intake.sources
            )
        )
        for number in self._leases.keys() - numbers:
            self._discard(number)
        self._partitions.assign(numbers)
        return {number for number in numbers if self._partitions.phase(number) is not Phase.OWNED}

    def revoked(self) -> None:
        """Own nothing until partitions are assigned again.

        Leases are kept, and checked before they are used again: a worker that was too late for one
        rebalance may get a partition back in the next, and another worker owned it in between. The
        state of waiting partitions may be ahead of the log, and is restored again.
        """
        for number in self._partitions.assigned():
            if self._partitions.phase(number) is Phase.WAITING:
                self._discard(number)
        self._partitions.revoke()
        self._blocking_versions = None

    def _discard(self, partition: int) -> None:
        self._partitions.change(partition, Change.DISCARDED)
        lease = self._leases.pop(partition, None)
        if lease is not None:
            lease.discard()

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
                self._partitions.block(batch.partition, newer_schema_message(newer))
                before = sum(record.offset < newer.offset for record in batch.records)
                if not before:
                    return
                batch = batch.first(before)
            with self._writable(batch.partition):
                emitted = self.intake.step(lease.state, batch.topic, known, self._clock.now_ms())
                await self._topics.append(lease, emitted)
                lease.write(self.intake.memory)
                batch.done()
            self._partitions.progress(batch.partition, f"{batch.topic} up to {batch.end}")

    async def tick(self) -> None:
        """Do what is due in the partitions of this worker."""
        self._sweeps.check()
        now = self._clock.now()
        checks_ends = now.at_s - self._checked_s >= _CHECK_EVERY_S
        for partition in self._partitions.assigned():
            phase = self._partitions.phase(partition)
            if phase is Phase.WAITING:
                self._partitions.progress(partition, "it waits for another release")
            elif phase is Phase.OWNED:  # Restoring it may take long.
                async with self._locks[partition]:
                    await self._tick(partition, checks_ends=checks_ends)
        self._checked_s = now.at_s if checks_ends else self._checked_s
        self._check_versions()
        for line in self._partitions.waiting.due(now.ms):
            log.warning("%s: %s", self.intake.name, line)

    def _check_versions(self) -> None:
        """Check whether the schema versions are still those that blocked partitions.

        Raises:
            SchemaVersionsChanged: They have changed.
        """
        blocking = self._blocking_versions
        if blocking is not None and blocking is not write_versions():
            raise SchemaVersionsChanged(
                "expected the schema versions that block some partitions, found others"
            )

    async def _tick(self, partition: int, *, checks_ends: bool) -> None:
        if self._partitions.phase(partition) is Phase.OWNED:
            lease = self._leases[partition]
            with self._writable(partition):
                # Only an append returns the broker's time, and an idle worker makes none.
                await self._clock.settle(partial(self._topics.renew_claim, lease))
                await self._topics.append(
                    lease, self.intake.tick(lease.state, self._clock.now_ms())
                )
                if checks_ends:
                    await self._check_ends(lease)
                lease.write(self.intake.memory)
                if not lease.over:
                    self._sweeps.begin(lease)

    async def _append_locked(
        self, lease: PipelineLease, make: Callable[[], Sequence[Outgoing]]
    ) -> bool:
        """Append records made under the partition's lock; return False if the lease is over."""
        partition = lease.partition
        async with self._locks[partition]:
            if lease.over or self._partitions.phase(partition) is not Phase.OWNED:
                return False
            with self._writable(partition):
                await self._topics.append(lease, make())
                lease.write(self.intake.memory)
            return not lease.over

    async def _check_ends(self, lease: PipelineLease) -> None:
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
            self._partitions.progress(partition, "it was at the end of its topics")
        await self._topics.repair_ends(lease, ends)
        await self._topics.publish_unseen(lease)

    @contextmanager
    def _writable(self, partition: int) -> Iterator[None]:
        """Discard partition state that is ahead of the log."""
        versions = write_versions()
        try:
            yield
        except NotYetReadable as error:
            if self._blocking_versions is None:  # Any change since the first one counts.
                self._blocking_versions = versions
            self._partitions.block(partition, f"partition {partition} waits: {error}")
            self._discard(partition)
        except BaseException:
            # Also on cancellation: the worker may live for some more ticks, which would write
            # changes to the store that the log does not have, and never gets.
            self._discard(partition)
            raise

    # -- acquiring a partition

    async def _lease(self, partition: int) -> PipelineLease | None:
        """Return the lease of a partition, acquired if need be; None while it is blocked."""
        phase = self._partitions.phase
        if phase(partition) is Phase.ACQUIRING and partition in self._leases:
            with self._writable(partition):
                await self._resume(partition)
        if phase(partition) is Phase.ACQUIRING and partition not in self._leases:
            await self._acquire(partition)
        return self._leases[partition] if phase(partition) is Phase.OWNED else None

    async def _resume(self, partition: int) -> None:
        """Resume a lease that was kept over a rebalance, if no other worker had the partition.

        A worker that acquires a partition claims it before anything else.
        """
        rebalances, lease = self._partitions.rebalances, self._leases[partition]
        retrying = Retrying(log, f"waiting for Kafka to resume partition {partition}")
        ends = await retrying.until_done(lambda: self._offsets.ends(FENCED, partition))
        try:
            await self._topics.repair_ends(lease, ends)
        except PartitionLost as error:
            log.warning("partition %s is acquired again: %s", partition, error)
            self._discard(partition)
        if rebalances == self._partitions.rebalances and not lease.over:
            self._partitions.change(partition, Change.ACQUIRED)

    async def _acquire(self, partition: int) -> None:
        """Restore a partition and claim it, unless it is blocked or revoked meanwhile."""
        rebalances = self._partitions.rebalances
        state = await self._open(partition)
        try:
            lease = await self._claim_and_restore(state, rebalances)
        except BaseException:  # A rebalance cancels it, too.
            state.close()
            raise
        if lease is not None and rebalances == self._partitions.rebalances:
            self._leases[partition] = lease
            self._partitions.change(partition, Change.ACQUIRED)
        else:
            state.close()  # Its next owner needs the store.

    async def _open(self, partition: int) -> PartitionState:
        """Open a partition's store; clear one that is ahead of the topics: it is another log's."""
        store = await self._open_store(partition)
        state = PartitionState(partition, store)
        positions = state.checkpoint().positions
        try:
            ends = await self._offsets.ends(self.intake.memory, partition)
        except BaseException:
            store.close()
            raise
        ahead = [topic for topic, offset in positions.items() if offset > ends[topic]]
        if not ahead:
            return state
        log.warning("partition %d is restored in full: its store is ahead of %s", partition, ahead)
        store.clear()
        return PartitionState(partition, store)

    async def _claim_and_restore(
        self, state: PartitionState, rebalances: int
    ) -> PipelineLease | None:
        partition, memory = state.partition, self.intake.memory
        fold = Fold(state.checkpoint())
        # Its offset exceeds that of any earlier claim, in whatever order owners read it.
        admissions = await self._topics.claim([ADMISSIONS], partition)
        reading = self._topics.read(memory, partition, dict(fold.positions))
        if not await self._restore(state, fold, rebalances, reading):
            return None
        epoch = epoch_after(admissions[ADMISSIONS], fold.epoch)
        claims = await self._topics.claim(FENCED, partition, epoch, fold.unseen)
        # Records before the claim are valid, also those appended while the rest was read.
        fold.begin(OUTCOMES, *fold.unseen)
        for topic in (*memory, OUTCOMES):
            begin, end = fold.positions.get(topic, 0), claims.get(topic, 0)
            reading = self._topics.read([topic], partition, begin, end)
            if not await self._restore(state, fold, rebalances, reading):
                return None
        if fold.epoch > epoch:
            raise PartitionLost(
                f"expected to claim partition {partition} as {epoch}, found that it was claimed "
                f"as {fold.epoch} meanwhile"
            )
        lease = PipelineLease(state, epoch, admissions | claims)
        await self._topics.rewrite(lease, fold.hidden)
        await self._topics.publish_unseen(lease)
        lease.write(memory)
        return lease

    async def _restore(
        self,
        state: PartitionState,
        fold: Fold,
        rebalances: int,
        reading: AsyncGenerator[list[Incoming]],
    ) -> bool:
        """Apply records to a state; return False if restoring must stop."""
        async with aclosing(reading) as batches:
            async for records in batches:
                if rebalances != self._partitions.rebalances:
                    return False  # A rebalance: other workers may append after what was read.
                self._partitions.progress(state.partition, f"restored {position_of(records[-1])}")
                known, newer = readable(records)
                if newer is not None:
                    self._partitions.block(state.partition, newer_schema_message(newer))
                    return False
                for record in known:
                    if fold.admit(record) and record.topic != OUTCOMES:
                        state.restore_record(record)
                checkpoint = fold.checkpoint(self.intake.memory)
                if checkpoint is not None:  # Otherwise it is written once hidden records are.
                    state.write(checkpoint)
        return rebalances == self._partitions.rebalances
