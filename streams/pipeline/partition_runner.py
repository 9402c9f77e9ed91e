"""Run intake over the partitions that this worker owns.

The loop: acquire a partition and restore its state before its first batch, let intake decide,
append the records that result, and mark the batch as done only when the broker has acknowledged all
of them (`fenced_log`). Under a backlog, several batches are one commit unit: while the next one is
there already, its records are processed first, and a row that many of them change is written once.
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

from headwater.monitoring.catalog import OUTCOMES as OUTCOMES_RECORDED
from headwater.monitoring.catalog import PIPELINE_RECORDS, STAGE_SECONDS
from headwater.processors.log_fields import log_fields
from headwater.processors.runs.claims import epoch_after
from headwater.processors.trace_spans import unit_spans
from headwater.schemas.codec import SchemaVersion, write_versions
from headwater.schemas.errors import (
    BrokerUnavailable,
    Disposition,
    HeadwaterError,
    NotYetReadable,
)
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.topics import ADMISSIONS, OUTCOMES
from headwater.streams.clock import monotonic
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
from headwater.streams.pipeline.processing import Processing
from headwater.streams.pipeline.sweeps import Sweeps
from headwater.streams.telemetry import telemetry

log = logging.getLogger(__name__)

#: How often the ends of topics are checked for other writers: far more often than compaction runs.
_CHECK_EVERY_S: Final = 10.0
#: Limits of a commit unit: large enough that rows which many deliveries set are written once, small
#: enough that little memory is used, and little is repeated after a crash.
_UNIT_RECORDS: Final = 10_000
_UNIT_BYTES: Final = 16 * 1024 * 1024
#: Time spent on its records, which is half a second on a quiet machine; a partition counts as stuck
#: after a minute.
_UNIT_S: Final = 3.0
#: While such a batch is processed, the next fetch may end. Its batch reaches the runner within some
#: iterations of the loop: 5, measured with Faust 0.15.
_LONG_BATCH_S: Final = 0.01
_ITERATIONS_OF_ARRIVAL: Final = 8


class SchemaVersionsChanged(HeadwaterError):
    """Records that could not be written may be written now: restart and restore partitions."""

    disposition = Disposition.HALT
    code = "forms_changed"


class CommitUnit:
    """Batches of a partition whose results are appended together.

    Attributes:
        processing: Processes their records.
        batches: The batches that were processed.
    """

    def __init__(self, processing: Processing) -> None:
        self.processing = processing
        self.batches: list[Batch] = []
        self._taken: set[Batch] = set()
        self._records = self._bytes = 0
        self._seconds = self._last_s = 0.0

    async def take(self, waiting: Mapping[Batch, None]) -> Batch | None:
        """Return the next of the batches that wait; None if the unit must end before it.

        The first batch is returned whatever its size.
        """
        for _ in range(_ITERATIONS_OF_ARRIVAL if self._last_s >= _LONG_BATCH_S else 0):
            await asyncio.sleep(0)
        batch = next((batch for batch in waiting if batch not in self._taken), None)
        if batch is None:
            return None
        self._records += len(batch.records)
        self._bytes += sum(len(record.value or b"") for record in batch.records)
        is_large = self._records > _UNIT_RECORDS or self._bytes > _UNIT_BYTES
        if self._taken and (is_large or self._seconds >= _UNIT_S):
            return None
        self._taken.add(batch)
        return batch

    def add(self, batch: Batch, seconds: float) -> None:
        """Add a batch that was processed, with the time that it took."""
        STAGE_SECONDS.observe(seconds, ("pipeline process",))
        self.batches.append(batch)
        self._seconds += seconds
        self._last_s = seconds

    def count(self, append_s: float) -> None:
        """Count the records and outcomes of a unit that is durable, and the time of its append."""
        STAGE_SECONDS.observe(append_s, ("pipeline append",))
        for batch in self.batches:
            PIPELINE_RECORDS.add((batch.topic,), len(batch.records))
        for status, outcomes in self.processing.output.statuses.items():
            OUTCOMES_RECORDED.add((status,), outcomes)

    def done(self, waiting: dict[Batch, None]) -> None:
        """Let the ends of all batches be committed; they wait no longer."""
        for batch in self.batches:
            batch.done()
        for batch in self._taken:
            waiting.pop(batch, None)


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
        #: Batches that are not done, by partition, in the order of their calls.
        self._waiting: defaultdict[int, dict[Batch, None]] = defaultdict(dict)

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
        with log_fields(partition=partition):
            async with self._locks[partition]:
                return await self._lease(partition) is not None

    async def process(self, batch: Batch) -> None:
        """Process a batch; when it returns, all records that follow from it are durable.

        Batches of the partition that wait already are processed with it, as one commit unit.

        From the first record that a newer release wrote, batches of the partition are dropped and
        never committed: the next owner of the partition fetches them again.
        """
        waiting = self._waiting[batch.partition]
        waiting[batch] = None
        try:
            with log_fields(partition=batch.partition):
                async with self._locks[batch.partition]:
                    if batch in waiting:  # Otherwise an earlier unit included it.
                        lease = await self._lease(batch.partition)
                        if lease is not None:
                            await self._process_unit(lease, waiting)
        finally:
            waiting.pop(batch, None)

    async def _process_unit(self, lease: PipelineLease, waiting: dict[Batch, None]) -> None:
        partition, rebalances = lease.partition, self._partitions.rebalances
        with self._writable(partition):
            unit = CommitUnit(self.intake.begin(lease.state, self._clock.now_ms()))
            while (batch := await unit.take(waiting)) is not None:
                if rebalances != self._partitions.rebalances or not self._step(unit, batch):
                    break
            if rebalances != self._partitions.rebalances:
                self._discard(partition)  # Another worker may have owned it meanwhile.
                return
            began_s = monotonic()
            await self._topics.append(lease, unit.processing.results())
            lease.write(self.intake.memory)
            unit.done(waiting)
            unit.count(monotonic() - began_s)
            exporter = telemetry()
            if exporter is not None:
                exporter.emit_all(unit_spans(unit.processing.output.traced, partition))
            for batch in unit.batches:
                self._partitions.progress(partition, f"{batch.topic} up to {batch.end}")

    def _step(self, unit: CommitUnit, batch: Batch) -> bool:
        """Process a batch of a unit; return False if none may follow it."""
        known, newer = readable(batch.records)
        if newer is not None:
            self._partitions.block(batch.partition, newer_schema_message(newer))
            before = sum(record.offset < newer.offset for record in batch.records)
            if not before:
                return False
            batch = batch.first(before)
        now = self._clock.now()
        waited_s = max(0, now.ms - batch.records[0].timestamp) / 1_000
        STAGE_SECONDS.observe(waited_s, ("pipeline wait",), len(batch.records))
        self.intake.step(unit.processing, batch.topic, known, self._clock.now_ms())
        unit.add(batch, self._clock.now().at_s - now.at_s)
        return newer is None

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
            with log_fields(partition=partition), self._writable(partition):
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
