"""What the gateway needs of Kafka: appending deliveries, and replaying dead letters.

Group commit. Requests that arrive while an append is under way are appended together by the next
one: at 64 connections that is one round trip for some dozens of deliveries, and one await each.

Duplicates. Two copies in one gateway meet here: the second waits for the first and answers as its
duplicate. Copies that other gateways took, or this one before a restart, are known from the topic
`admissions`, read in the background. A copy may still slip through; the admit agent drops it.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.codec import encode
from schemas.errors import BrokerUnavailable
from schemas.records import WebhookReceived
from schemas.topics import ADMISSIONS, DEAD_LETTERS, WEBHOOKS
from streams.appender import Appender
from streams.dead_letters import (
    CONNECT_PREFIX,
    REPLAY_OF,
    REPLAYED,
    REPLAYED_AT,
    original,
    text_header,
)
from streams.records import Outgoing, partition_of

log = logging.getLogger(__name__)

#: Event ids remembered for answering duplicates: about 200 bytes each.
_REMEMBERED: Final = 250_000
#: Deliveries of one append. More would only make the first of them wait.
_GROUP_RECORDS: Final = 500
_RECONNECT_S: Final = 0.5


class Appended(msgspec.Struct, frozen=True):
    """A delivery is in the log; `duplicate` when it had been before."""

    duplicate: bool


class _Known:
    """The event ids that were admitted lately, the oldest dropped first."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._ids

    def add(self, event_id: str) -> None:
        self._ids[event_id] = None
        if len(self._ids) > _REMEMBERED:
            self._ids.popitem(last=False)


class WebhookLog:
    """The topic `webhooks`, as the gateway sees it."""

    def __init__(
        self, *, bootstrap: str, append_timeout_s: float, clock: Callable[[], int]
    ) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = append_timeout_s
        self._clock = clock
        self._appender = Appender(bootstrap=bootstrap, client_id="headwater-gateway")
        self._partitions = 0
        self._known = _Known()
        self._in_flight: dict[str, asyncio.Future[None]] = {}
        self._queue: list[tuple[Outgoing, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self.ready = False

    async def start(self) -> None:
        """Starts in the background; Kafka may be down, now or later."""
        self._background = [
            asyncio.create_task(self._append_groups(), name="append groups"),
            asyncio.create_task(self._watch_admissions(), name="watch admissions"),
        ]

    async def stop(self) -> None:
        """Ends the background work and disconnects."""
        self.ready = False
        for running in self._background:
            running.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._appender.stop()

    async def append(self, delivery: WebhookReceived) -> Appended:
        """Appends a delivery; returns when it is durable (`acks=all`).

        Errors: BrokerUnavailable; the delivery may be in the log all the same, and the sender's
                retry is then a duplicate.
        """
        event_id = delivery.event_id
        if event_id in self._known:
            return Appended(duplicate=True)
        first = self._in_flight.get(event_id)
        if first is not None:
            await self._durable(first)
            return Appended(duplicate=True)
        if not self._partitions:
            raise BrokerUnavailable(f"expected Kafka at {self._bootstrap}, found no connection yet")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[event_id] = future
        future.add_done_callback(lambda done: self._landed(event_id, done))
        key = event_id.encode()
        record = Outgoing(
            WEBHOOKS, partition_of(key, self._partitions), key, encode(delivery), _cloud(delivery)
        )
        self._queue.append((record, future))
        self._wake.set()
        await self._durable(future)
        return Appended(duplicate=False)

    async def _durable(self, future: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(future), self._timeout_s)
        except TimeoutError:
            self.ready = False
            raise BrokerUnavailable(
                f"expected an acknowledgement of {self._bootstrap} within {self._timeout_s} s, "
                "found none"
            ) from None

    def _landed(self, event_id: str, done: asyncio.Future[None]) -> None:
        self._in_flight.pop(event_id, None)
        if not done.cancelled() and done.exception() is None:
            self._known.add(event_id)

    async def _append_groups(self) -> None:
        await self._connect()
        while True:
            await self._wake.wait()
            group, self._queue = self._queue[:_GROUP_RECORDS], self._queue[_GROUP_RECORDS:]
            if not self._queue:
                self._wake.clear()
            try:
                await self._appender.append([record for record, _ in group])
            except BrokerUnavailable as error:
                log.warning("%s", error)
                self._finish(group, error)
                await self._appender.stop()
                await self._connect()
            else:
                self.ready = True
                self._finish(group, None)

    @staticmethod
    def _finish(
        group: list[tuple[Outgoing, asyncio.Future[None]]], error: BrokerUnavailable | None
    ) -> None:
        for _, future in group:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # Nobody may be waiting any more.

    async def _connect(self) -> None:
        self.ready = False
        told = False
        while not self.ready:
            try:
                self._partitions = await self._appender.partitions(WEBHOOKS)
                self.ready = True
            except BrokerUnavailable as error:
                if not told:
                    log.warning("waiting for Kafka: %s", error)
                told = True
                await asyncio.sleep(_RECONNECT_S)

    async def _watch_admissions(self) -> None:
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
            try:
                await consumer.start()
                await self._follow(consumer)
            except (KafkaError, OSError) as error:
                log.info("admissions cannot be followed, trying again: %s", error)
            finally:
                await consumer.stop()
            await asyncio.sleep(_RECONNECT_S)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        partitions = await consumer.partitions_for_topic(ADMISSIONS)
        consumer.assign([TopicPartition(ADMISSIONS, number) for number in partitions or ()])
        while partitions:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    self._known.add((record.key or b"").decode())


def _cloud(delivery: WebhookReceived) -> list[tuple[str, bytes]]:
    """The CloudEvents attributes of a delivery, binary mode of the Kafka binding."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", delivery.event_id.encode()),
        ("ce_source", f"/webhooks/{delivery.source}".encode()),
        ("ce_type", f"{delivery.source}.{delivery.type}".encode()),
        ("ce_subject", delivery.subject.encode()),
        ("content-type", b"application/vnd.apache.avro"),
    ]


class Replayed(msgspec.Struct, frozen=True):
    """What came of replaying a dead letter."""

    partition: int
    offset: int
    topic: str
    ok: bool
    detail: str


class DeadLetters:
    """The topic `dead-letters`, as operators see it."""

    def __init__(self, *, bootstrap: str, clock: Callable[[], int]) -> None:
        self._bootstrap = bootstrap
        self._clock = clock
        self._appender = Appender(bootstrap=bootstrap, client_id="headwater-replay")

    async def start(self) -> None:
        """Connects at the first replay; nothing to do before."""

    async def stop(self) -> None:
        """Disconnects."""
        await self._appender.stop()

    async def replay(self, positions: Sequence[tuple[int, int]]) -> list[Replayed]:
        """Puts dead letters back where they came from, key and value untouched.

        Shape:  (partition, offset) of the topic dead-letters -> one answer each, in order.
        Errors: BrokerUnavailable; replaying again is safe.
        """
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
        try:
            await consumer.start()
            return [await self._replay(consumer, *position) for position in positions]
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(
                f"expected Kafka at {self._bootstrap}, found: {error!r}"
            ) from error
        finally:
            with contextlib.suppress(KafkaError, OSError):
                await consumer.stop()

    async def _replay(self, consumer: AIOKafkaConsumer, partition: int, offset: int) -> Replayed:
        where = TopicPartition(DEAD_LETTERS, partition)
        if partition not in (await consumer.partitions_for_topic(DEAD_LETTERS) or ()):
            return Replayed(partition, offset, "", ok=False, detail="no such partition")
        consumer.assign([where])
        first = (await consumer.beginning_offsets([where]))[where]
        end = (await consumer.end_offsets([where]))[where]
        if not first <= offset < end:
            detail = f"no such offset: the partition holds {first} to {end - 1}"
            return Replayed(partition, offset, "", ok=False, detail=detail)
        consumer.seek(where, offset)
        record = await consumer.getone(where)
        topic = text_header(record, CONNECT_PREFIX + "topic")
        if record.offset != offset or topic is None:
            return Replayed(partition, offset, "", ok=False, detail="not a dead letter")
        position = f"{partition}@{offset}".encode()
        back = int(text_header(record, CONNECT_PREFIX + "partition") or 0)
        headers = [*original(record), (REPLAY_OF, position)]
        await self._appender.append([Outgoing(topic, back, record.key, record.value, headers)])
        mark = [(REPLAYED, position), (REPLAYED_AT, str(self._clock()).encode())]
        await self._appender.append([Outgoing(DEAD_LETTERS, partition, record.key, None, mark)])
        return Replayed(partition, offset, topic, ok=True, detail="")
