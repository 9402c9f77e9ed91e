"""The projector: topics become rows of Postgres, as a projection says.

Theory of operation: Kafka hands out partitions, Postgres says where to read on. A partition that
was just assigned is sought to its offset in Postgres before any of its records count; what was
fetched before that is dropped. Offsets are committed to Kafka too, now and then, only so that its
tools can show the lag.

While Postgres applies one batch, the next is fetched, decoded and turned into statements: two
processes work at the same time, and a batch is never more than one ahead. A batch that takes too
long is read again in halves, down to single records; then batches grow again. When Postgres or
Kafka is away the projector waits and tries the same again, for ever; it says why once for each new
reason.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError
from typing_extensions import override

from headwater.projections.errors import BatchTooSlow
from headwater.projections.projector.log_ends import TruncationDetector, check_ends, pause
from headwater.projections.projector.plan import Batch, Partition, Plan, Span, Work, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord, refusal
from headwater.projections.projector.store import Place, Store
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.newer import Waiting, readable, why_waits
from headwater.schemas.topics import DEAD_LETTERS

if TYPE_CHECKING:
    from headwater.processors.runs.claims import Claims

__all__ = ["Projector"]

#: Large enough to share a commit's 2 ms among many rows, small enough to be applied within 0.2 s.
_BATCH_RECORDS_MAX: Final = 4_000
#: As they lie in the log; unpacked, twenty times as many.
_PARTITION_FETCH_BYTES: Final = 1024 * 1024
_FETCH_BYTES: Final = 16 * 1024 * 1024
#: How long an idle poll waits, which is also how long an idle projector takes to stop.
_POLL_MS: Final = 200
_COMMIT_EVERY_MS: Final = 1_000
#: Seconds between two looks whether Postgres still has what was applied.
_LOOK_EVERY_S: Final = 5.0
#: How long the broker may hold a fetch. A rebalance, and a seek, may wait as long.
_FETCH_WAIT_MS: Final = 250
#: Topics made after the projector started are found this soon, and so are partitions that a broker
#: did not know yet when it was asked just after its start.
_METADATA_AGE_MS: Final = 3_000
_BACKOFF_FIRST_S: Final = 0.2
_BACKOFF_MAX_S: Final = 5.0

T = TypeVar("T")
_Fetched: TypeAlias = Mapping[TopicPartition, Sequence[LogRecord]]


class Cluster(Protocol):
    """The Kafka cluster to read from; as text, where it is."""

    def options(self) -> Mapping[str, Any]:
        """What a client of aiokafka is given to reach it."""


class Projector:
    """One member of the projector's consumer group.

    Shape:  `records`, `batches` and `refused` count what was applied since the start; `positions`
            is the next offset of each partition that is ours; `lag` what is left of each.
    """

    def __init__(  # noqa: PLR0913, what the composition root chooses
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
        #: Where the next fetch continues: ahead of `positions` by the batch that is being applied.
        self._reading: dict[Partition, int] = {}
        #: What is claimed there: as far as was read, not as far as was applied.
        self._claims: dict[Partition, Claims] = {}
        self._waiting = Waiting()
        self._projection = projection
        self._cluster = cluster
        self._clock = clock
        self._detector = detector
        self._log = log or logging.getLogger("headwater.projector")
        self._on_batch = on_batch
        self._store = store
        #: Fewer after a batch that took too long.
        self._records_max = _BATCH_RECORDS_MAX
        self._consumer: AIOKafkaConsumer | None = None
        self._unsought: set[Partition] = set()
        self._committed_at_ms = 0
        self._looked_at_s = 0.0
        self._trouble = ""

    @property
    def lag(self) -> dict[Partition, int]:
        """Records of each of our partitions that Kafka has named and that are not applied yet."""
        if self._consumer is None:
            return {}
        ends = {p: self._consumer.highwater(TopicPartition(*p)) for p in self.positions}
        return {p: max(0, (end or 0) - self.positions[p]) for p, end in ends.items()}

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
        consumer = _consumer(self._cluster, self._projection.group)
        listener = _Listener(consumer, self._on_assigned)
        consumer.subscribe(self._projection.topics, listener=listener)
        try:
            await consumer.start()
            self._consumer = consumer
            backoff.reset()
            await self._poll(consumer, stop)
        finally:
            self._consumer = None
            self._on_assigned(())
            with contextlib.suppress(KafkaError, OSError):
                await consumer.stop()

    async def _poll(self, consumer: AIOKafkaConsumer, stop: asyncio.Event) -> None:
        applying: asyncio.Task[None] | None = None
        try:
            while not stop.is_set():
                fetched = await consumer.getmany(timeout_ms=_POLL_MS, max_records=self._records_max)
                batch = self._batch(fetched, consumer)
                if applying is not None:
                    await applying
                    applying = None
                    await self._commit(consumer)
                await self._look_back(stop)
                ahead = bool(self._unsought)
                if ahead:  # what was read ahead comes again, too
                    self._read_again(batch.spans)
                    await self._seek(consumer, stop)
                for line in self._waiting.due(self._clock()):
                    self._log.warning("%s", line)
                if batch.spans and not ahead:
                    applying = asyncio.create_task(self._apply(batch, stop))
        except asyncio.CancelledError:
            if applying is not None:
                applying.cancel()
            raise
        finally:
            if applying is not None:
                await applying
            await self._commit(consumer, now=True)

    # --- where to read ------------------------------------------------------------------------

    def _on_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Runs within a rebalance, so it only takes notes: Postgres may be slow to answer."""
        self.positions.clear()
        self._reading.clear()
        self._claims.clear()
        self._waiting.clear()
        self._unsought = {(tp.topic, tp.partition) for tp in assigned}

    async def _seek(self, consumer: AIOKafkaConsumer, stop: asyncio.Event) -> None:
        wanted = sorted(self._unsought)
        places = await self._until_it_answers(lambda: self._store.places(wanted), stop)
        if places is None:
            return
        await check_ends(consumer, places, self._detector, stop)
        begins = await self._begins(consumer, places)
        for (topic, number), (offset, claims, leader_epoch) in places.items():
            # A rebalance may have taken it away, or handed it out anew, while we asked.
            with contextlib.suppress(IllegalStateError):
                if (topic, number) in self._unsought:
                    where, begin = TopicPartition(topic, number), max(offset, begins[topic, number])
                    self._detector.seek_with_epoch(consumer, where, begin, leader_epoch)
                    consumer.resume(where)
                    self._waiting.end((topic, number))
                    self._reading[topic, number] = offset
                    self._claims[topic, number] = claims
                    self.positions[topic, number] = offset
        self._unsought.difference_update(wanted)

    async def _begins(
        self, consumer: AIOKafkaConsumer, places: Mapping[Partition, Place]
    ) -> dict[Partition, int]:
        """Return where partitions begin; log those that have lost what was not applied yet."""
        found = await consumer.beginning_offsets([TopicPartition(*of) for of in places])
        begins = {(tp.topic, tp.partition): begin for tp, begin in found.items()}
        for (topic, number), (offset, *_) in places.items():
            if 0 < offset < begins[topic, number]:
                self._log.error(
                    "%s/%d from offset %d to %d was deleted before it was applied: it is older "
                    "than its topic keeps records",
                    *(topic, number, offset, begins[topic, number] - 1),
                )
        return begins

    # --- what to apply ------------------------------------------------------------------------

    def _batch(self, fetched: _Fetched, consumer: AIOKafkaConsumer) -> Batch:
        records: list[LogRecord] = []
        spans: dict[Partition, Span] = {}
        claims: dict[Partition, Claims] = {}
        leader_epochs: dict[Partition, int] = {}
        for tp, found in fetched.items():
            partition = (tp.topic, tp.partition)
            start = self._reading.get(partition)
            if start is None or not found or found[0].offset < start:
                continue  # fetched before we sought; it comes again, from the right place
            known = self._known(tp, found)
            if not known:
                continue
            held = self._claims[partition]
            records.extend(self._projection.read(known, held))
            spans[partition] = Span(start, known[-1].offset + 1)
            claims[partition] = copy(held)  # ours moves on while this batch is applied
            leader_epochs[partition] = self._detector.leader_epoch_of(consumer, tp)
            self._reading[partition] = spans[partition].end
        return Batch(
            records=records,
            spans=spans,
            plan=self._plan(records),
            claims=claims,
            leader_epochs=leader_epochs,
        )

    def _plan(self, records: Sequence[LogRecord]) -> Plan:
        """Plan records together; if that fails, one by one, and those that fail are refused.

        Where a batch is cut does not matter, so the rows are the same.
        """
        try:
            return self._projection.plan(records)
        except Exception:  # noqa: BLE001, logged by the logger of this projection
            self._log.exception("%d records cannot be planned together", len(records))
        works: list[Work] = []
        unreadable = 0
        for record in records:
            try:
                plan = self._projection.plan([record])
            except Exception as error:  # noqa: BLE001, one record costs no projection
                works.append(Work("projection_errors", payload([refusal(record, repr(error))])))
                unreadable += 1
                continue
            works += plan.works
            unreadable += plan.unreadable
        return Plan(works=tuple(works), unreadable=unreadable)

    def _known(self, tp: TopicPartition, found: Sequence[LogRecord]) -> Sequence[LogRecord]:
        """The records that this release can read; behind them nothing is read any more."""
        if tp.topic == DEAD_LETTERS:
            return found  # Bytes of any origin, which nobody decodes here.
        if (tp.topic, tp.partition) in self._waiting:
            return ()
        known, newer = readable(found)
        if newer is not None:
            self._waiting.begin((tp.topic, tp.partition), why_waits(newer))
            if self._consumer is not None:
                self._consumer.pause(tp)
        return known

    async def _apply(self, batch: Batch, stop: asyncio.Event) -> None:
        try:
            applied = await self._until_it_answers(lambda: self._store.apply(batch), stop)
        except BatchTooSlow as error:
            self._halve(batch, error.message)
            return
        if applied is None:
            return
        admitted, refused = applied
        for partition, offset in admitted.offsets.items():
            if partition in self._reading:  # else it was taken from us meanwhile
                self.positions[partition] = offset
        self._went_back(admitted.behind)
        self._records_max = min(self._records_max + self._records_max // 8 + 1, _BATCH_RECORDS_MAX)
        if refused:
            self._log.error(
                "%d records could not be applied; they are in the table projection_errors", refused
            )
        self.records += len(batch.records if admitted.records is None else admitted.records)
        self.batches += 1
        self.refused += refused
        if self._on_batch is not None:
            self._on_batch(self)

    async def _look_back(self, stop: asyncio.Event) -> None:
        """Find out whether Postgres has lost what was applied, by a failover to a late standby.

        A batch finds that out of its own partitions. What Postgres has lost of others would be
        missing until something new comes there. To be called while no batch is being applied.
        """
        now_s = asyncio.get_running_loop().time()
        if not self.positions or now_s - self._looked_at_s < _LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        applied = dict(self.positions)
        places = await self._until_it_answers(lambda: self._store.places(sorted(applied)), stop)
        found = (places or {}).items()
        self._went_back([of for of, place in found if place.next_offset < applied[of]])

    def _went_back(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self._log.warning("Postgres went back on %s/%d; reading from there", *partition)
        self._read_again(partitions)

    def _halve(self, batch: Batch, why: str) -> None:
        """Reads a batch again, in two; the size grows slowly, so that few are too slow again."""
        count = len(batch.records)
        self._records_max = max(1, count // 2)
        self._log.warning(
            "%s; a batch of %d records took too long, trying %d", why, count, self._records_max
        )
        self._read_again(batch.spans)

    def _read_again(self, partitions: Iterable[Partition]) -> None:
        """Goes back to where Postgres is: it has less than was read."""
        for partition in partitions:
            if self._reading.pop(partition, None) is not None:
                self._unsought.add(partition)

    # --- waiting for others -------------------------------------------------------------------

    async def _until_it_answers(
        self, ask: Callable[[], Awaitable[T]], stop: asyncio.Event
    ) -> T | None:
        """Asks Postgres until it answers; None when it is to stop meanwhile."""
        backoff = _Backoff()
        while True:
            try:
                answer = await ask()
            except StoreUnavailable as error:
                self._report(error.message)
                if stop.is_set():
                    return None
                await backoff.pause(stop)
            else:
                self._report("")
                return answer

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                self._log.warning("%s; trying again", trouble)
            else:
                self._log.info("projecting again")

    async def _commit(self, consumer: AIOKafkaConsumer, *, now: bool = False) -> None:
        """Commits how far we are to Kafka: for its tools alone, so a failure does not matter."""
        if not now and self._clock() - self._committed_at_ms < _COMMIT_EVERY_MS:
            return
        self._committed_at_ms = self._clock()
        positions = {TopicPartition(*p): offset for p, offset in self.positions.items()}
        offsets = {tp: positions[tp] for tp in consumer.assignment() if tp in positions}
        if offsets:
            with contextlib.suppress(KafkaError):
                await consumer.commit(offsets)


class _Backoff:
    """Pauses of 0.2 s, doubling up to 5 s."""

    def __init__(self) -> None:
        self._next_s = _BACKOFF_FIRST_S

    def reset(self) -> None:
        self._next_s = _BACKOFF_FIRST_S

    async def pause(self, stop: asyncio.Event) -> None:
        await pause(stop, self._next_s)
        self._next_s = min(2 * self._next_s, _BACKOFF_MAX_S)


class _Listener(ConsumerRebalanceListener):
    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        on_assigned: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        self._consumer = consumer
        self._on_assigned = on_assigned

    @override
    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Does nothing: a batch in hand may still be applied, Postgres keeps order."""

    @override
    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for tp in assigned:
            # Postgres says where to read: nothing is fetched before that, nor looked for in Kafka.
            self._consumer.pause(tp)
            self._consumer.seek(tp, 0)
        self._on_assigned(assigned)


def _consumer(cluster: Cluster, group: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **cluster.options(),
        group_id=group,
        client_id=group,
        enable_auto_commit=False,
        # Else a topic that was cut would be read from its beginning, without a word, and what is
        # new in it left out as applied already.
        auto_offset_reset="none",
        max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
        fetch_max_bytes=_FETCH_BYTES,
        metadata_max_age_ms=_METADATA_AGE_MS,
        fetch_max_wait_ms=_FETCH_WAIT_MS,
    )
