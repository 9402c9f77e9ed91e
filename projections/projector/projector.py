"""The projector: writes the records of topics to Postgres, as defined by a projection.

Kafka assigns partitions, Postgres knows where to continue. After an assignment, a partition is
sought to its offset in Postgres before any of its records are used; records fetched earlier are
dropped. Offsets are also committed to Kafka from time to time, only so that its tools can show the
lag.

While Postgres applies one batch, the next one is fetched, decoded and planned, so both processes
work at the same time. Reading is never more than one batch ahead. A batch that takes too long is
read again in halves, down to single records; then batches grow again. When Postgres or Kafka is
down, the projector retries indefinitely and logs each new reason once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from headwater.projections.errors import BatchTooSlow
from headwater.projections.projector.consumers import (
    AssignmentListener,
    Cluster,
    projection_consumer,
    started,
)
from headwater.projections.projector.progress import Progress
from headwater.projections.projector.projection import (
    Batch,
    LogRecord,
    Partition,
    Plan,
    Projection,
    RowStatement,
    Span,
    payload,
    refusal,
)
from headwater.projections.projector.store import AppliedPosition, Store
from headwater.projections.projector.truncation import TruncationDetector, check_ends, pause
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.newer import Waiting, newer_schema_message, readable
from headwater.schemas.topics import DEAD_LETTERS

if TYPE_CHECKING:
    from headwater.processors.runs.claims import Claims

#: Batches are as large as the lag, up to this: of the records of a key the last one is written, and
#: a commit's 2 ms are spread over many rows. One of this size is applied in 0.5 s.
_BATCH_RECORDS_MAX: Final = 10_000
_COMMIT_EVERY_MS: Final = 1_000
#: Seconds between checks that Postgres still has the applied offsets.
_CHECK_EVERY_S: Final = 5.0
#: How long a poll waits if nothing arrives.
_IDLE_POLL_MS: Final = int(_CHECK_EVERY_S * 1_000)
_BACKOFF_FIRST_S: Final = 0.2
_BACKOFF_MAX_S: Final = 5.0

T = TypeVar("T")
_Fetched: TypeAlias = Mapping[TopicPartition, Sequence[LogRecord]]


class Projector:
    """One member of the projector's consumer group.

    Attributes:
        records: Records applied since the start.
        batches: Batches applied since the start.
        refused: Records refused since the start.
        positions: Next offset of each assigned partition.
    """

    def __init__(  # noqa: PLR0913, chosen by the composition root
        self,
        *,
        cluster: Cluster,
        store: Store,
        projection: Projection,
        clock: Callable[[], int],
        detector: TruncationDetector,
        log: logging.Logger | None = None,
        on_batch: Callable[["Projector"], None] | None = None,
    ) -> None:
        self.records = 0
        self.batches = 0
        self.refused = 0
        self.positions: dict[Partition, int] = {}
        #: What monitors see of it.
        self.progress = Progress(projection.name, self.positions, lambda: self.lag, clock)
        #: Next offset to fetch: ahead of `positions` by the batch that is being applied.
        self._reading: dict[Partition, int] = {}
        #: Claims at that offset.
        self._claims: dict[Partition, Claims] = {}
        self._waiting = Waiting()
        self._projection = projection
        self._cluster = cluster
        self._clock = clock
        self._detector = detector
        self._log = log or logging.getLogger("headwater.projector")
        self._on_batch = on_batch
        self._store = store
        #: Reduced after a batch that took too long.
        self._records_max = _BATCH_RECORDS_MAX
        self._consumer: AIOKafkaConsumer | None = None
        self._to_seek: set[Partition] = set()
        self._fetching: asyncio.Task[_Fetched] | None = None
        self._committed_at_ms = 0
        self._committed: dict[Partition, int] = {}
        self._checked_at_s = 0.0

    @property
    def lag(self) -> dict[Partition, int]:
        """Records of each assigned partition that are not applied yet, as far as is known."""
        if self._consumer is None:
            return {}
        ends = {p: self._consumer.highwater(TopicPartition(*p)) for p in self.positions}
        return {p: self.progress.lag(p, end or 0) for p, end in ends.items()}

    async def run(self, stop: asyncio.Event) -> None:
        """Project until `stop` is set, then finish the current batch.

        Raises:
            LogTruncated: Kafka has lost records that were applied.
        """
        backoff = _Backoff()
        try:
            while not stop.is_set():
                try:
                    await self._consume(stop, backoff)
                except (KafkaError, OSError) as error:
                    self._report(f"expected Kafka at {self._cluster}, found: {error!r}")
                    await backoff.pause(stop)
        finally:
            await self._store.close()

    async def _consume(self, stop: asyncio.Event, backoff: "_Backoff") -> None:
        consumer = projection_consumer(self._cluster, self._projection.group)
        listener = AssignmentListener(consumer, self._on_assigned)
        consumer.subscribe(self._projection.topics, listener=listener)
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(self._end_fetch)
        try:
            if await started(consumer, stopping):
                self._consumer = consumer
                backoff.reset()
                await self._poll(consumer, stop)
        finally:
            stopping.cancel()
            self._consumer = None
            self._on_assigned(())
            self.progress.assign(None)
            with contextlib.suppress(KafkaError, OSError):
                await consumer.stop()

    async def _poll(self, consumer: AIOKafkaConsumer, stop: asyncio.Event) -> None:
        applying: asyncio.Task[None] | None = None
        try:
            while not stop.is_set():
                fetched = await self._fetch(consumer, applying)
                batch = self._batch(fetched, consumer)
                if applying is not None:
                    await applying
                    applying = None
                await self._commit(consumer)
                await self._check_for_rollback(stop)
                ahead = bool(self._to_seek)
                if ahead:  # records read ahead are fetched again, too
                    self._read_again(batch.spans)
                    await self._seek(consumer, stop)
                else:
                    batch = await self._with_gaps(batch, consumer)
                for line in self._waiting.due(self._clock()):
                    self._log.warning("%s", line)
                if batch.spans and not ahead:
                    applying = asyncio.create_task(self._apply(batch, stop))
                    applying.add_done_callback(self._end_fetch)
        except asyncio.CancelledError:
            if applying is not None:
                applying.cancel()
            raise
        finally:
            if applying is not None:
                await applying
            await self._commit(consumer, now=True)

    async def _fetch(
        self, consumer: AIOKafkaConsumer, applying: "asyncio.Task[None] | None"
    ) -> _Fetched:
        """Return the next records; none after a while, or if there is something else to do."""
        is_idle = not self._to_seek and (applying is None or not applying.done())
        fetching = self._fetching = asyncio.create_task(
            consumer.getmany(
                timeout_ms=_IDLE_POLL_MS if is_idle else 0, max_records=self._records_max
            )
        )
        try:
            await asyncio.wait([fetching])
        finally:
            fetching.cancel()
        return {} if fetching.cancelled() else fetching.result()

    def _end_fetch(self, _: object = None) -> None:
        """Have the loop look for something else to do. Records are not lost, but fetched later."""
        if self._fetching is not None:
            self._fetching.cancel()

    # --- positions ----------------------------------------------------------------------------

    def _on_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Only record the assignment: this runs within a rebalance, and Postgres may be slow."""
        self.positions.clear()
        self._reading.clear()
        self._claims.clear()
        self._waiting.clear()
        self._to_seek = {(tp.topic, tp.partition) for tp in assigned}
        self.progress.assign(self._to_seek)
        self._end_fetch()

    async def _seek(self, consumer: AIOKafkaConsumer, stop: asyncio.Event) -> None:
        partitions = sorted(self._to_seek)
        positions = await self._retry_until_answered(
            lambda: self._store.positions(partitions), stop
        )
        if positions is None:
            return
        await check_ends(consumer, positions, self._detector, stop)
        begins = await self._beginning_offsets(consumer, positions)
        ends = await consumer.end_offsets([TopicPartition(*tp) for tp in positions])
        for (topic, number), (offset, claims, leader_epoch) in positions.items():
            # A rebalance may have revoked it, or assigned it again, in the meantime.
            with contextlib.suppress(IllegalStateError):
                if (topic, number) in self._to_seek:
                    tp, begin = TopicPartition(topic, number), max(offset, begins[topic, number])
                    self._detector.seek_with_epoch(consumer, tp, begin, leader_epoch)
                    consumer.resume(tp)
                    self._waiting.end((topic, number))
                    self._reading[topic, number] = offset
                    self._claims[topic, number] = claims
                    self.positions[topic, number] = offset
                    self.progress.begin((topic, number), begin, ends[tp])
        self._to_seek.difference_update(partitions)

    async def _beginning_offsets(
        self, consumer: AIOKafkaConsumer, positions: Mapping[Partition, AppliedPosition]
    ) -> dict[Partition, int]:
        """Return the first offsets of partitions; log those that lost unapplied records."""
        offsets = await consumer.beginning_offsets([TopicPartition(*tp) for tp in positions])
        begins = {(tp.topic, tp.partition): begin for tp, begin in offsets.items()}
        for (topic, number), (offset, *_) in positions.items():
            if 0 < offset < begins[topic, number]:
                self._log.error(
                    "%s/%d from offset %d to %d was deleted before it was applied: it is older "
                    "than its topic keeps records",
                    *(topic, number, offset, begins[topic, number] - 1),
                )
        return begins

    # --- batches ------------------------------------------------------------------------------

    def _batch(self, fetched: _Fetched, consumer: AIOKafkaConsumer) -> Batch:
        records: list[LogRecord] = []
        spans: dict[Partition, Span] = {}
        claims: dict[Partition, Claims] = {}
        leader_epochs: dict[Partition, int] = {}
        times: dict[Partition, tuple[int, int]] = {}
        for tp, records_of_partition in fetched.items():
            partition = (tp.topic, tp.partition)
            start = self._reading.get(partition)
            if start is None or not records_of_partition or records_of_partition[0].offset < start:
                continue  # fetched before the seek; fetched again from the right offset
            readable_records = self._readable(tp, records_of_partition)
            if not readable_records:
                continue
            partition_claims = self._claims[partition]
            records.extend(self._projection.read(readable_records, partition_claims))
            spans[partition] = Span(start, readable_records[-1].offset + 1)
            claims[partition] = copy(
                partition_claims
            )  # the original advances while this batch is applied
            leader_epochs[partition] = self._detector.leader_epoch_of(consumer, tp)
            times[partition] = readable_records[0].timestamp, readable_records[-1].timestamp
            self._reading[partition] = spans[partition].end
        return Batch(
            records=records,
            spans=spans,
            plan=self._plan(records),
            claims=claims,
            leader_epochs=leader_epochs,
            times=times,
        )

    async def _with_gaps(self, batch: Batch, consumer: AIOKafkaConsumer) -> Batch:
        """Return a batch with the offsets that were passed without a record.

        A partition that was added by a copy may end with gaps (ADR 0101). Its rows are complete
        only if the position in Postgres is the end of the log. Must not be called while a batch is
        being applied.
        """
        spans, claims = dict(batch.spans), dict(batch.claims)
        leader_epochs = dict(batch.leader_epochs)
        for partition, reading in list(self._reading.items()):
            if partition in self._waiting or self.positions.get(partition) != reading:
                continue  # A record has to wait, or the batch has records of the partition.
            tp = TopicPartition(*partition)
            try:
                end = await consumer.position(tp)
            except IllegalStateError:
                continue  # revoked in the meantime
            if self._reading.get(partition) == reading < end:
                spans[partition] = Span(reading, end)
                claims[partition] = copy(self._claims[partition])
                leader_epochs[partition] = self._detector.leader_epoch_of(consumer, tp)
                self._reading[partition] = end
        return replace(batch, spans=spans, claims=claims, leader_epochs=leader_epochs)

    def _plan(self, records: Sequence[LogRecord]) -> Plan:
        """Plan records together; if that fails, plan them one by one and refuse those that fail.

        The rows are the same, because batches may be cut anywhere.
        """
        try:
            return self._projection.plan(records)
        except Exception:  # noqa: BLE001, logged by the logger of this projection
            self._log.exception("%d records cannot be planned together", len(records))
        statements: list[RowStatement] = []
        unreadable = 0
        for record in records:
            try:
                plan = self._projection.plan([record])
            except Exception as error:  # noqa: BLE001, a record must not stop the projection
                statements.append(
                    RowStatement("projection_errors", payload([refusal(record, repr(error))]))
                )
                unreadable += 1
                continue
            statements += plan.statements
            unreadable += plan.unreadable
        return Plan(statements=tuple(statements), unreadable=unreadable)

    def _readable(self, tp: TopicPartition, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
        """Return the records that this release can read; reading stops after them."""
        if tp.topic == DEAD_LETTERS:
            return records  # Arbitrary bytes, which are not decoded here.
        if (tp.topic, tp.partition) in self._waiting:
            return ()
        readable_records, newer = readable(records)
        if newer is not None:
            self._waiting.begin((tp.topic, tp.partition), newer_schema_message(newer))
            if self._consumer is not None:
                self._consumer.pause(tp)
        return readable_records

    async def _apply(self, batch: Batch, stop: asyncio.Event) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            applied = await self._retry_until_answered(lambda: self._store.apply(batch), stop)
        except BatchTooSlow as error:
            self._reread_smaller(batch, error.message)
            return
        if applied is None:
            return
        admitted, refused = applied
        for partition, offset in admitted.offsets.items():
            if partition in self._reading:  # otherwise it was revoked in the meantime
                self.positions[partition] = offset
        self._reread_lost(admitted.behind)
        self._records_max = min(self._records_max + self._records_max // 8 + 1, _BATCH_RECORDS_MAX)
        if refused:
            self._log.error(
                "%d records could not be applied; they are in the table projection_errors", refused
            )
        count = len(batch.records if admitted.records is None else admitted.records)
        self.records += count
        self.batches += 1
        self.refused += refused
        took_s = asyncio.get_running_loop().time() - began_s
        self.progress.applied(batch, count, refused, took_s)
        if self._on_batch is not None:
            self._on_batch(self)

    async def _check_for_rollback(self, stop: asyncio.Event) -> None:
        """Detect that Postgres lost applied offsets, by a failover to a lagging standby.

        A batch detects this for its own partitions. Rows that Postgres lost of other partitions
        would be missing until new records arrive there. Must not be called while a batch is being
        applied.
        """
        now_s = asyncio.get_running_loop().time()
        if not self.positions or now_s - self._checked_at_s < _CHECK_EVERY_S:
            return
        self._checked_at_s = now_s
        applied = dict(self.positions)
        positions = await self._retry_until_answered(
            lambda: self._store.positions(sorted(applied)), stop
        )
        self._reread_lost(
            [
                partition
                for partition, position in (positions or {}).items()
                if position.next_offset < applied[partition]
            ]
        )

    def _reread_lost(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self._log.warning("Postgres went back on %s/%d; reading from there", *partition)
        self._read_again(partitions)

    def _reread_smaller(self, batch: Batch, reason: str) -> None:
        """Read a batch again in two halves. The batch size grows again slowly."""
        count = len(batch.records)
        self._records_max = max(1, count // 2)
        self._log.warning(
            "%s; a batch of %d records took too long, trying %d", reason, count, self._records_max
        )
        self._read_again(batch.spans)

    def _read_again(self, partitions: Iterable[Partition]) -> None:
        """Return to the offset in Postgres, which is behind the records that were read."""
        for partition in partitions:
            if self._reading.pop(partition, None) is not None:
                self._to_seek.add(partition)

    # --- retries ------------------------------------------------------------------------------

    async def _retry_until_answered(
        self, call: Callable[[], Awaitable[T]], stop: asyncio.Event
    ) -> T | None:
        """Call Postgres until it answers; return None if `stop` is set."""
        backoff = _Backoff()
        while True:
            try:
                result = await call()
            except StoreUnavailable as error:
                self._report(error.message)
                if stop.is_set():
                    return None
                await backoff.pause(stop)
            else:
                self._report("")
                return result

    def _report(self, problem: str) -> None:
        if problem != self.progress.problem:
            self.progress.problem = problem
            if problem:
                self._log.warning("%s; trying again", problem)
            else:
                self._log.info("projecting again")

    async def _commit(self, consumer: AIOKafkaConsumer, *, now: bool = False) -> None:
        """Commit the positions to Kafka, where only its tools use them; failures do not matter."""
        if self._committed == self.positions or (
            not now and self._clock() - self._committed_at_ms < _COMMIT_EVERY_MS
        ):
            return
        self._committed_at_ms, applied = self._clock(), dict(self.positions)
        positions = {TopicPartition(*p): offset for p, offset in applied.items()}
        offsets = {tp: positions[tp] for tp in consumer.assignment() if tp in positions}
        if offsets:
            with contextlib.suppress(KafkaError):
                await consumer.commit(offsets)
                self._committed = applied


class _Backoff:
    """Pauses of 0.2 s, doubling up to 5 s."""

    def __init__(self) -> None:
        self._next_s = _BACKOFF_FIRST_S

    def reset(self) -> None:
        self._next_s = _BACKOFF_FIRST_S

    async def pause(self, stop: asyncio.Event) -> None:
        await pause(stop, self._next_s)
        self._next_s = min(2 * self._next_s, _BACKOFF_MAX_S)
