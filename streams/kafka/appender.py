"""Append records to Kafka in batches, through producers that fail independently.

A call costs one await, not one per record: records are packed into one batch per partition and sent
with `acks=all` by an idempotent producer. `send()` would cost a future and a task switch per
record.

No append waits forever. An idempotent producer retries for as long as a partition has no leader. An
append that waits for it is logged after some seconds, and fails some seconds later.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, cast

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.topics import COMPRESSION, MAX_RECORD_BYTES
from headwater.streams.kafka.broker_clock import BrokerClock, Moment
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing

log = logging.getLogger(__name__)

#: Large enough that a batch of a thousand small records is one or two Kafka batches; four of these
#: fit the broker's default request limit of 100 MB many times over.
BATCH_BYTES: Final = 512 * 1024

#: An append takes milliseconds; the election of a leader, seconds.
SLOW_S: Final = 5.0
#: Checks of an append before it counts as slow.
CHECKS: Final = 5
#: Longer than a broker is unavailable during an orderly restart.
GIVE_UP_S: Final = 30.0
#: Log message of slow records: which, and after how many seconds.
SLOW: Final = "%s not acknowledged for %.0f s; usual cause: no leader, or too few replicas in sync"

#: How long a discarded producer may take to stop.
_STOP_S: Final = 5.0

#: Kafka's value for timestamps set by the broker rather than the producer.
_LOG_APPEND_TIME: Final = 1

#: A Kafka batch with the number of its records.
_Packed: TypeAlias = tuple[Any, int]


class Sent(NamedTuple):
    """A Kafka batch in flight: its records get consecutive offsets, or none is in the log."""

    topic: str
    partition: int
    records: int
    acknowledged: asyncio.Future[Any]
    #: When it was passed to the producer; None if the appender has no broker clock.
    sent_at: Moment | None = None


class Appender:
    """Idempotent producer that appends lists of records; connects at first use."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        slow_s: float = SLOW_S,
        give_up_s: float = GIVE_UP_S,
        broker_clock: BrokerClock | None = None,
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._slow_s = slow_s
        self._give_up_s = give_up_s
        self._producer: AIOKafkaProducer | None = None
        self._connecting = asyncio.Lock()
        #: Number of stops: a producer that was connecting during one is discarded.
        self._stops = 0
        #: Receives the broker's time of every acknowledged batch of topics with LogAppendTime.
        self._broker_clock = broker_clock

    async def start(self) -> None:
        """Connect now rather than at the first use.

        Raises:
            BrokerUnavailable: No broker answered, or `stop` was called meanwhile.
        """
        async with self._connecting:
            if self._producer is not None:
                return
            stops = self._stops
            producer = await self._connect()
            if stops != self._stops:
                await producer.stop()
                raise BrokerUnavailable(
                    f"expected to connect to {self._cluster}, found that the client was stopped"
                )
            self._producer = producer

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._cluster.options(),
            client_id=self._client_id,
            acks="all",
            enable_idempotence=True,
            compression_type=COMPRESSION,
            max_batch_size=BATCH_BYTES,
            max_request_size=MAX_RECORD_BYTES,
            request_timeout_ms=30_000,
        )
        try:
            await producer.start()
        except BaseException as error:  # also on cancellation: connections would stay open
            await producer.stop()
            if isinstance(error, KafkaError | OSError):
                raise BrokerUnavailable(
                    f"expected Kafka at {self._cluster}, found no broker that answers: {error}"
                ) from error
            raise
        return producer

    async def stop(self, within_s: float | None = None) -> None:
        """Send what is pending and disconnect.

        Args:
            within_s: Seconds after which pending records fail and are no longer sent. Without it,
                `stop` waits for as long as the broker is unavailable.
        """
        self._stops += 1
        producer, self._producer = self._producer, None
        if producer is None:
            return
        stopping = asyncio.create_task(producer.stop(), name=f"stop {self._client_id}")
        try:
            await asyncio.wait([stopping], timeout=within_s)
        finally:
            if not stopping.done():
                await _abort(producer)
                await asyncio.wait([stopping], timeout=_STOP_S)

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            BrokerUnavailable: No broker answered, or the topic does not exist.
        """
        try:
            partitions = await (await self._connected()).partitions_for(topic)
        except (KafkaError, OSError) as error:
            name = self._cluster.topic_in_kafka(topic)
            raise BrokerUnavailable(
                f"expected the topic {name} at {self._cluster}, found: {error!r}; "
                "`headwater topics create` creates the topics"
            ) from error
        return len(partitions)

    async def append(self, records: Sequence[Outgoing]) -> list[tuple[Sent, int]]:
        """Append records; return their batches with the first offsets when all are acknowledged.

        Records keep their order within a partition.

        Raises:
            BrokerUnavailable: Some of the records may be in the log all the same.
        """
        if not records:
            return []
        sent = await self.send(records)
        return list(zip(sent, await self.acknowledged(sent), strict=True))

    async def append_or_stop(self, records: Sequence[Outgoing]) -> list[tuple[Sent, int]]:
        """Append records; disconnect on failure, so that the next append may succeed.

        Raises:
            BrokerUnavailable: Some of the records may be in the log all the same.
        """
        try:
            return await self.append(records)
        except BrokerUnavailable:
            await self.stop(_STOP_S)
            raise

    async def send(self, records: Sequence[Outgoing]) -> list[Sent]:
        """Pass records to the producer, in order; `acknowledged` waits until they are durable.

        Concurrent calls are not ordered.

        Returns:
            One Kafka batch per partition, or several if there are many records; those of a
            partition in order.

        Raises:
            BrokerUnavailable: Some of the records may be in the log, or be appended later.
        """
        producer = await self._connected()
        by_partition: dict[tuple[str, int], list[Outgoing]] = defaultdict(list)
        for record in records:
            by_partition[record[0], record[1]].append(record)
        packed = [_pack(producer, group) for group in by_partition.values()]
        sent = []
        sent_at = self._broker_clock.now() if self._broker_clock else None
        try:
            # The producer takes one batch of a partition at a time: send all first batches first.
            for turn in zip_longest(*packed):
                for (topic, partition), batch in zip(by_partition, turn, strict=True):
                    if batch is not None:
                        builder, count = batch
                        future = await producer.send_batch(builder, topic, partition=partition)
                        sent.append(Sent(topic, partition, count, future, sent_at))
        except (KafkaError, OSError) as error:
            raise self._unavailable(len(records), error) from error
        return sent

    async def acknowledged(self, sent: Sequence[Sent]) -> list[int]:
        """Wait for the broker to acknowledge batches; return their first offsets.

        Raises:
            BrokerUnavailable: Also after `give_up_s`. The producer cannot be used any more then:
                call `stop`.
        """
        try:
            with self._timeout(sent):
                if len(sent) == 1:
                    # The usual case of a quiet log; `gather` would cost another loop iteration.
                    metadata = [await sent[0].acknowledged]
                else:
                    metadata = await asyncio.gather(*(batch.acknowledged for batch in sent))
        except (KafkaError, OSError) as error:
            count = sum(batch.records for batch in sent)
            raise self._unavailable(count, error) from error
        if self._broker_clock is not None:
            for batch, acknowledgement in zip(sent, metadata, strict=True):
                if batch.sent_at is not None and acknowledgement.timestamp_type == _LOG_APPEND_TIME:
                    self._broker_clock.record_append(batch.sent_at, acknowledgement.timestamp)
        return [acknowledgement.offset for acknowledgement in metadata]

    @contextlib.contextmanager
    def _timeout(self, sent: Sequence[Sent]) -> Iterator[None]:
        """Log which partitions are slow to acknowledge, and fail their batches at the limit."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle
        interval_s, checks = self._slow_s / CHECKS, 0

        def check() -> None:
            # Counts checks, not time: while the loop is busy or the process is suspended, it does
            # not read acknowledgements that have arrived.
            nonlocal timer, checks
            checks += 1
            timer = loop.call_later(interval_s, check)
            if checks == CHECKS:
                slow()
            elif checks * interval_s >= self._give_up_s:
                give_up()

        def slow() -> None:
            log.warning(SLOW, _unacknowledged(sent), self._slow_s)

        def give_up() -> None:
            error = KafkaTimeoutError(
                f"none of {_unacknowledged(sent)} for {self._give_up_s:.0f} s"
            )
            for batch in sent:
                if not batch.acknowledged.done():
                    batch.acknowledged.set_exception(error)

        timer = loop.call_later(interval_s, check)
        try:
            yield
        finally:
            timer.cancel()

    def _unavailable(self, count: int, error: Exception) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"expected {count} records acknowledged by {self._cluster}, found: {error!r}"
        )

    def idempotent_producer(self) -> AIOKafkaProducer:
        """Return the connected producer, through whose id more may be appended.

        Raises:
            BrokerUnavailable: It was stopped.
        """
        if self._producer is None:
            raise BrokerUnavailable(
                f"expected a producer of {self._cluster}, found that it was stopped"
            )
        return self._producer

    async def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            await self.start()
        return cast("AIOKafkaProducer", self._producer)


async def _abort(producer: AIOKafkaProducer) -> None:
    """Fail what a producer has yet to send, and disconnect it.

    Its `stop` waits for pending batches only, and aiokafka has no method to drop them; the producer
    would outlive its event loop. The order matters: batches in flight are requeued before
    they fail.
    """
    sender, batches = producer._sender.sender_task, producer._message_accumulator  # noqa: SLF001
    sender.cancel()
    await producer.client.close()
    await asyncio.wait([sender], timeout=_STOP_S)
    # A batch that was sent before removes itself from the pending ones when it fails.
    waiting = [batch for queue in batches._batches.values() for batch in queue]  # noqa: SLF001
    batches._pending_batches.update(batch for batch in waiting if batch.retry_count)  # noqa: SLF001
    batches.fail_all(KafkaTimeoutError("the producer was stopped"))
    for batch in waiting:
        # No caller waits for it any more; asyncio would log an unretrieved exception.
        batch._drain_waiter.exception()  # noqa: SLF001


def _unacknowledged(sent: Sequence[Sent]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for batch in sent:
        if not batch.acknowledged.done():
            counts[f"{batch.topic}/{batch.partition}"] += batch.records
    return ", ".join(f"{count} records of {partition}" for partition, count in counts.items())


def _pack(producer: AIOKafkaProducer, group: Sequence[Outgoing]) -> list[_Packed]:
    """Pack the records of a partition into Kafka batches."""
    packed: list[_Packed] = []
    batch = producer.create_batch()
    for _, _, key, value, headers in group:
        headers = headers or []  # noqa: PLW2901, aiokafka takes lists only
        if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
            packed.append((batch, batch.record_count()))
            batch = producer.create_batch()
            batch.append(timestamp=None, key=key, value=value, headers=headers)
    packed.append((batch, batch.record_count()))
    return packed


# -- producers

#: How long a producer may take to stop: longer than an append of its last batches. While Kafka is
#: unavailable it would wait forever.
_STOP_ALL_S: Final = 10.0


class Producers:
    """The producers of a client.

    An idempotent producer that lost a batch of a partition, or cannot deliver it, cannot be used
    for that partition any more; for the others it still works. So the failed partition gets another
    producer, and the others keep theirs: they may have a leader when that one has none.
    """

    def __init__(
        self, cluster: Cluster, client_id: str, broker_clock: BrokerClock | None = None
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._broker_clock = broker_clock
        #: The producer for partitions that have none yet.
        self.current = self._new_producer()
        self._of: dict[int, Appender] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def _new_producer(self) -> Appender:
        return Appender(
            cluster=self._cluster, client_id=self._client_id, broker_clock=self._broker_clock
        )

    def producer_for(self, partition: int) -> Appender:
        """Return the producer of a partition: the same until it is replaced or left."""
        return self._of.setdefault(partition, self.current)

    def replace_failed(self, partition: int, producer: Appender) -> None:
        """Record that a producer cannot be used for a partition any more."""
        if producer is self.current:
            self.current = self._new_producer()
        if self._of.get(partition) is producer:
            del self._of[partition]
        self._end_unused(producer)

    def leave_partition(self, partition: int) -> None:
        """Record that nothing more is appended to a partition through its producer."""
        producer = self._of.pop(partition, None)
        if producer is not None:
            self._end_unused(producer)

    def _end_unused(self, producer: Appender) -> None:
        if producer is not self.current and producer not in self._of.values():
            ending = asyncio.create_task(producer.stop(_STOP_ALL_S))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def stop(self, within_s: float = _STOP_ALL_S) -> None:
        """Stop all producers."""
        producers = {self.current, *self._of.values()}
        self._of.clear()
        stops = (asyncio.create_task(producer.stop(within_s)) for producer in producers)
        ending = (*self._ending, *stops)
        _, late = await asyncio.wait(ending, timeout=within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
