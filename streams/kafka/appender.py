"""Appending to Kafka, many records at a time.

One await per call, not per record: records are packed into one batch a partition and sent with
`acks=all` by an idempotent producer. `send()` would cost a future and a task switch a record.

No append waits for ever. An idempotent producer tries for as long as a partition has no leader; one
that waits for it is said in the log after some seconds, and fails after some more.
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
_SLOW_S: Final = 5.0
#: Looks at an append before it is called slow.
_LOOKS: Final = 5
#: Longer than a broker that is restarted in order is away from its partitions.
_GIVE_UP_S: Final = 30.0

#: How long a producer that is of no more use may take to end.
_STOP_S: Final = 5.0

#: Kafka's name for times that are the broker's, not the producer's.
_LOG_APPEND_TIME: Final = 1

#: A Kafka batch with the number of its records.
_Packed: TypeAlias = tuple[Any, int]


class Sent(NamedTuple):
    """A Kafka batch on its way: its records have consecutive offsets, or none is in the log."""

    topic: str
    partition: int
    records: int
    acknowledged: asyncio.Future[Any]
    #: When it was handed to the producer; None for an appender that watches no clock.
    sent_at: Moment | None = None


class Appender:
    """An idempotent producer that appends lists of records; connects when first used."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        slow_s: float = _SLOW_S,
        give_up_s: float = _GIVE_UP_S,
        broker_clock: BrokerClock | None = None,
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._slow_s = slow_s
        self._give_up_s = give_up_s
        self._producer: AIOKafkaProducer | None = None
        self._connecting = asyncio.Lock()
        #: How often it was stopped: a producer that connected meanwhile is of no use to anybody.
        self._stops = 0
        #: Learns the broker's time from every acknowledged batch whose topic keeps that time.
        self._broker_clock = broker_clock

    async def start(self) -> None:
        """Connects now rather than at the first use.

        Errors: BrokerUnavailable when no broker answers, and when it is stopped meanwhile.
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
        except BaseException as error:  # also if it is cancelled: connections would stay open
            await producer.stop()
            if isinstance(error, KafkaError | OSError):
                raise BrokerUnavailable(
                    f"expected Kafka at {self._cluster}, found no broker that answers: {error}"
                ) from error
            raise
        return producer

    async def stop(self, within_s: float | None = None) -> None:
        """Sends what is pending and disconnects.

        Units:  within_s, in seconds: what is pending then fails, and is not sent any more. Without
                it, stopping lasts as long as the broker is away.
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
                await _break_off(producer)
                await asyncio.wait([stopping], timeout=_STOP_S)

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a topic.

        Errors: BrokerUnavailable, also when there is no such topic.
        """
        try:
            found = await (await self._connected()).partitions_for(topic)
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(
                f"expected the topic {topic} at {self._cluster}, found: {error!r}; "
                "`headwater topics create` makes the topics"
            ) from error
        return len(found)

    async def append(self, records: Sequence[Outgoing]) -> None:
        """Appends records and returns when the broker has acknowledged every one of them.

        The order is kept within a partition.
        Errors: BrokerUnavailable; some of the records may then be in the log.
        """
        if records:
            await self.acknowledged(await self.send(records))

    async def append_or_stop(self, records: Sequence[Outgoing]) -> None:
        """Appends records; disconnects if that fails, so that the next append may succeed.

        Errors: BrokerUnavailable; some of the records may then be in the log.
        """
        try:
            await self.append(records)
        except BrokerUnavailable:
            await self.stop(_STOP_S)
            raise

    async def send(self, records: Sequence[Outgoing]) -> list[Sent]:
        """Hands records to the producer, in order; they are durable when `acknowledged` says so.

        Shape:  one Kafka batch a partition, or several where the records are many; those of a
                partition in order. Of two calls under way at once the order is not kept.
        Errors: BrokerUnavailable; some of the records may then be in the log, or come there.
        """
        producer = await self._connected()
        by_partition: dict[tuple[str, int], list[Outgoing]] = defaultdict(list)
        for record in records:
            by_partition[record[0], record[1]].append(record)
        packed = [_pack(producer, group) for group in by_partition.values()]
        sent = []
        sent_at = self._broker_clock.now() if self._broker_clock else None
        try:
            # The producer takes one batch a partition at a time: first the first of each.
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
        """Waits for the broker to acknowledge batches; returns the first offset of each.

        Errors: BrokerUnavailable, also after `give_up_s`; the producer is of no more use then,
        `stop` it.
        """
        try:
            with self._watched(sent):
                if len(sent) == 1:
                    # The usual case of a quiet log: a `gather` would cost another turn of the loop.
                    metadata = [await sent[0].acknowledged]
                else:
                    metadata = await asyncio.gather(*(batch.acknowledged for batch in sent))
        except (KafkaError, OSError) as error:
            count = sum(batch.records for batch in sent)
            raise self._unavailable(count, error) from error
        if self._broker_clock is not None:
            for batch, answer in zip(sent, metadata, strict=True):
                if batch.sent_at is not None and answer.timestamp_type == _LOG_APPEND_TIME:
                    self._broker_clock.seen(batch.sent_at, answer.timestamp)
        return [acknowledgement.offset for acknowledgement in metadata]

    @contextlib.contextmanager
    def _watched(self, sent: Sequence[Sent]) -> Iterator[None]:
        """Says which partitions do not acknowledge, and fails their batches in the end."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle
        look_s, looks = self._slow_s / _LOOKS, 0

        def look() -> None:
            # Looks are counted and not time: while the loop is busy, or the process suspended, no
            # answer is read that may have come.
            nonlocal timer, looks
            looks += 1
            timer = loop.call_later(look_s, look)
            if looks == _LOOKS:
                slow()
            elif looks * look_s >= self._give_up_s:
                give_up()

        def slow() -> None:
            log.warning(
                "%s not acknowledged for %.0f s; usual cause: no leader, or too few copies in sync",
                _waited_for(sent),
                self._slow_s,
            )

        def give_up() -> None:
            error = KafkaTimeoutError(f"none of {_waited_for(sent)} for {self._give_up_s:.0f} s")
            for batch in sent:
                if not batch.acknowledged.done():
                    batch.acknowledged.set_exception(error)

        timer = loop.call_later(look_s, look)
        try:
            yield
        finally:
            timer.cancel()

    def _unavailable(self, count: int, error: Exception) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"expected {count} records acknowledged by {self._cluster}, found: {error!r}"
        )

    async def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            await self.start()
        return cast("AIOKafkaProducer", self._producer)


async def _break_off(producer: AIOKafkaProducer) -> None:
    """Fails what a producer has yet to send, and disconnects it: its `stop` waits for nothing else.

    aiokafka has no name for that; left to itself, the producer would outlive its event loop. In
    this order: what is under way is put back before it fails.
    """
    sender, batches = producer._sender.sender_task, producer._message_accumulator  # noqa: SLF001
    sender.cancel()
    await producer.client.close()
    await asyncio.wait([sender], timeout=_STOP_S)
    # A batch that was sent before removes itself from there when it fails, put back or not.
    waiting = [batch for each in batches._batches.values() for batch in each]  # noqa: SLF001
    batches._pending_batches.update(batch for batch in waiting if batch.retry_count)  # noqa: SLF001
    batches.fail_all(KafkaTimeoutError("the producer was stopped"))
    for batch in waiting:
        # Nobody waits for that any more, and asyncio would say so in the log.
        batch._drain_waiter.exception()  # noqa: SLF001


def _waited_for(sent: Sequence[Sent]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for batch in sent:
        if not batch.acknowledged.done():
            counts[f"{batch.topic}/{batch.partition}"] += batch.records
    return ", ".join(f"{count} records of {where}" for where, count in counts.items())


def _pack(producer: AIOKafkaProducer, group: Sequence[Outgoing]) -> list[_Packed]:
    """Packs the records of a partition into Kafka batches."""
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
