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
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import WebhookReceived, WebhooksClaimed
from headwater.schemas.topics import ADMISSIONS, DEAD_LETTERS, WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.dead_letters import (
    CONNECT_PREFIX,
    REPLAY_OF,
    REPLAYED,
    REPLAYED_AT,
    original,
    text_header,
)
from headwater.streams.kafka.records import Outgoing, partition_of

log = logging.getLogger(__name__)

#: Event ids remembered for answering duplicates: about 200 bytes each.
_REMEMBERED: Final = 250_000
#: Deliveries of one append. More would only make the first of them wait.
_GROUP_RECORDS: Final = 500
#: What a delivery waits for others to be appended with: less than an append takes, and half as
#: many appends under load.
_LINGER_S: Final = 0.001
#: While one group is with the broker the next is made ready; a third would only wait behind it.
_GROUPS_IN_FLIGHT: Final = 2
_RECONNECT_S: Final = 0.5
_GIVE_UP_EVERY_S: Final = 0.25


class Appended(msgspec.Struct, frozen=True):
    """A delivery is in the log; `duplicate` when it had been before."""

    duplicate: bool


_APPENDED: Final = Appended(duplicate=False)
_DUPLICATE: Final = Appended(duplicate=True)


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


class _Pending(NamedTuple):
    """A delivery on its way into the log."""

    record: Outgoing
    durable: asyncio.Future[None]
    deadline: float


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
        self._queue: list[_Pending] = []
        #: Oldest first, for giving up on: one look now and then costs less than a timer each.
        self._waiting: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self.ready = False

    async def start(self) -> None:
        """Starts in the background; Kafka may be down, now or later."""
        self._background = [
            asyncio.create_task(self._append_groups(), name="append groups"),
            asyncio.create_task(self._give_up(), name="give up on the late"),
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
            return _DUPLICATE
        first = self._in_flight.get(event_id)
        if first is not None:
            # Waited for, not awaited: a sender that hangs up must not take the first one with it.
            await asyncio.wait((first,))
            if first.cancelled():
                raise BrokerUnavailable("the copy of this delivery that came first was given up")
            first.result()
            return _DUPLICATE
        if not self._partitions:
            raise BrokerUnavailable(f"expected Kafka at {self._bootstrap}, found no connection yet")
        loop = asyncio.get_running_loop()
        key = event_id.encode()
        partition = partition_of(key, self._partitions)
        record = Outgoing(WEBHOOKS, partition, key, encode(delivery), _cloud(delivery))
        pending = _Pending(record, loop.create_future(), loop.time() + self._timeout_s)
        self._in_flight[event_id] = pending.durable
        self._queue.append(pending)
        self._waiting.append(pending)
        self._wake.set()
        try:
            await pending.durable
        finally:
            del self._in_flight[event_id]
        self._known.add(event_id)
        return _APPENDED

    async def _append_groups(self) -> None:
        """Appends what is queued, one group while another is on its way to the broker and back."""
        await self._connect()
        appending: set[asyncio.Task[bool]] = set()
        while True:
            await self._wake.wait()
            await asyncio.sleep(_LINGER_S)
            while len(appending) >= _GROUPS_IN_FLIGHT:
                done, appending = await asyncio.wait(appending, return_when="FIRST_COMPLETED")
                if not all(group.result() for group in done):
                    await asyncio.gather(*appending)
                    appending.clear()
                    await self._appender.stop()
                    await self._connect()
            group, self._queue = self._queue[:_GROUP_RECORDS], self._queue[_GROUP_RECORDS:]
            if not self._queue:
                self._wake.clear()
            appending.add(asyncio.create_task(self._append_group(group)))

    async def _append_group(self, group: list[_Pending]) -> bool:
        """Appends a group and ends its wait; tells whether the connection is of use still."""
        try:
            await self._appender.append([pending.record for pending in group])
        except BrokerUnavailable as error:
            log.warning("%s", error)
            _finish(group, error)
            self.ready = False
            return False
        _finish(group, None)
        self.ready = True
        return True

    async def _give_up(self) -> None:
        """Ends the wait of deliveries that were not acknowledged in time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_GIVE_UP_EVERY_S)
            late = []
            waiting = self._waiting
            while waiting and (waiting[0].durable.done() or waiting[0].deadline < loop.time()):
                late.append(waiting.popleft())
            error = BrokerUnavailable(
                f"expected an acknowledgement of {self._bootstrap} within {self._timeout_s} s, "
                "found none"
            )
            if any(_finish(late, error)):
                self.ready = False

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
        told = False
        while True:
            consumer = AIOKafkaConsumer(  # without a group: all partitions are its own
                ADMISSIONS, bootstrap_servers=self._bootstrap, auto_offset_reset="earliest"
            )
            try:
                await consumer.start()
                told = False
                await self._follow(consumer)
            except (KafkaError, OSError) as error:
                if not told:
                    log.info("admissions cannot be followed, trying again: %s", error)
                told = True
            finally:
                await consumer.stop()
            await asyncio.sleep(_RECONNECT_S)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    for event_id in decode(record.value, WebhooksClaimed).event_ids:
                        self._known.add(event_id)


def _finish(group: Iterable[_Pending], error: BrokerUnavailable | None) -> list[bool]:
    """Ends the wait of a group; tells of each whether it was waiting still."""
    waited = []
    for _, durable, _ in group:
        waited.append(not durable.done())
        if durable.done():
            continue
        if error is None:
            durable.set_result(None)
        else:
            durable.set_exception(error)
    return waited


def _cloud(delivery: WebhookReceived) -> list[tuple[str, bytes]]:
    """The CloudEvents attributes of a delivery, binary mode of the Kafka binding."""
    return [
        _CE_VERSION,
        _CONTENT_TYPE,
        ("ce_id", delivery.event_id.encode()),
        ("ce_source", _ce_source(delivery.source)),
        ("ce_type", _ce_type(delivery.source, delivery.type)),
        ("ce_subject", delivery.subject.encode()),
    ]


_CE_VERSION: Final = ("ce_specversion", b"1.0")
_CONTENT_TYPE: Final = ("content-type", b"application/vnd.apache.avro")


@lru_cache(maxsize=256)
def _ce_source(source: str) -> bytes:
    return f"/webhooks/{source}".encode()


@lru_cache(maxsize=1024)
def _ce_type(source: str, kind: str) -> bytes:
    return f"{source}.{kind}".encode()


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
        consumer = AIOKafkaConsumer(DEAD_LETTERS, bootstrap_servers=self._bootstrap)
        try:
            await consumer.start()
            return [await self._replay(consumer, *position) for position in positions]
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(
                f"expected Kafka at {self._bootstrap}, found: {error!r}"
            ) from error
        finally:
            # aiokafka cancels a task of its own here and lets that through when it just started.
            with contextlib.suppress(KafkaError, OSError, asyncio.CancelledError):
                await consumer.stop()

    async def _replay(self, consumer: AIOKafkaConsumer, partition: int, offset: int) -> Replayed:
        where = TopicPartition(DEAD_LETTERS, partition)
        if where not in consumer.assignment():
            return Replayed(partition, offset, "", ok=False, detail="no such partition")
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
