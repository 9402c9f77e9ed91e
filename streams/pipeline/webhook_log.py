"""The topic `webhooks`, as the gateway sees it: appending deliveries, and reading them again.

Duplicates. Two copies in one gateway meet here: the second waits for the first and answers as its
duplicate. So does the retry of a delivery whose sender gave up, while its first try is with the
broker; a first try that was only queued is withdrawn (`streams.kafka.group_commit`). Copies that
other gateways took, or this one before a restart, are known from the topic `admissions`, read in
the background. A copy may still slip through; intake drops it.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from headwater.processors.providers.headwater.delivering import delivery_of
from headwater.processors.providers.placement import Placement
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError
from headwater.schemas.providers.headwater import Fact
from headwater.schemas.records import WebhookReceived, WebhooksClaimed
from headwater.schemas.topics import ADMISSIONS, WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.group_commit import GroupCommit, PartitionProducers
from headwater.streams.kafka.places import read_places
from headwater.streams.kafka.producers import Producers
from headwater.streams.kafka.records import Outgoing, partition_of, text_of
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: Event ids remembered for answering duplicates: about 200 bytes each.
_REMEMBERED: Final = 250_000
#: Records of admissions that a start looks back in each partition, each of one event id or of some
#: hundreds. What lies before them only intake knows, and drops.
_LOOK_BACK: Final = 1_000
_GIVE_UP_EVERY_S: Final = 0.25
#: What the first that come wait for others while nothing is appended, and what those that come
#: later wait at most for the end of an append: Kafka may be slow or away.
_LINGER_S: Final = 0.001
_BUSY_S: Final = 0.01
#: How long following admissions may take to end.
_STOP_S: Final = 5.0


class Appended(msgspec.Struct, frozen=True):
    """A delivery is in the log; `duplicate` when it had been before."""

    duplicate: bool


class Stored(msgspec.Struct, frozen=True):
    """A delivery in the log, with the headers of its record."""

    delivery: WebhookReceived
    headers: tuple[tuple[str, str], ...]


#: Gets an `Appended`, or why there is none.
Answer: TypeAlias = "asyncio.Future[Any]"

_APPENDED: Final = Appended(duplicate=False)
_DUPLICATE: Final = Appended(duplicate=True)


class _Known(OrderedDict[str, None]):
    """The event ids that were admitted lately, the oldest dropped first."""

    def add(self, event_id: str) -> None:
        self[event_id] = None
        if len(self) > _REMEMBERED:
            self.popitem(last=False)


class _Delivery:
    """A delivery on its way into the log, and those who wait for that."""

    __slots__ = ("answers", "event_id", "first", "record")

    def __init__(self, event_id: str, record: Outgoing, first: Answer) -> None:
        self.event_id = event_id
        self.record = record
        #: Of whom it is; those of its copies are among the answers, too.
        self.first = first
        self.answers: list[Answer] = []


class WebhookLog:
    """The topic `webhooks`, as the gateway sees it."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        append_timeout_s: float,
        placement: Placement,
        clock: Callable[[], int],
        producers: PartitionProducers[Any] | None = None,
    ) -> None:
        self._cluster = cluster
        self._timeout_s = append_timeout_s
        self._placement = placement
        self._clock = clock
        producers = producers or Producers(cluster, "headwater-gateway")
        # Those who append many at once have waited for each other already.
        self._commit = GroupCommit(producers, WEBHOOKS, settled=self._settled, linger_s=0)
        self._known = _Known()
        #: By event id: those that are queued, or with the broker.
        self._on_their_way: dict[str, _Delivery] = {}
        #: When to give up on those that are waited for, oldest first: one look now and then costs
        #: less than a timer each (4 µs).
        self._waited_for: deque[tuple[float, Sequence[Answer]]] = deque()
        #: What is to be done at the next append, and when at the latest.
        self._next: list[Callable[[], None]] = []
        self._at_the_latest: asyncio.TimerHandle | None = None
        self._background: list[asyncio.Task[None]] = []
        #: Somebody gave up waiting, and nothing was acknowledged since.
        self._late = False

    @property
    def ready(self) -> bool:
        """Whether Kafka is connected, and acknowledges."""
        # With nothing on its way there is nothing to be late: a gateway that is sent nothing,
        # because it was not ready, would else never be ready again.
        return self._commit.ready and not (self._late and self._on_their_way)

    async def start(self) -> None:
        """Starts in the background; Kafka may be down, now or later."""
        await self._commit.start()
        self._background = [
            asyncio.create_task(_kept_up(each), name=each.__name__)
            for each in (self._give_up, self._watch_admissions)
        ]

    async def stop(self) -> None:
        """Ends the background work and disconnects, within seconds even if Kafka stalls."""
        for running in self._background:
            running.cancel()
        await self._commit.stop()
        if self._background:
            await asyncio.wait(self._background, timeout=_STOP_S)

    async def publish_fact(self, fact: Fact, *, request_id: str) -> Appended:
        """Appends what the house has learnt, as a delivery of its own; returns when it is durable.

        Shape:  a fact that was told before is a duplicate, and changes nothing.
        Errors: as of `append`; telling it again is safe.
        """
        return await self.append(delivery_of(fact, request_id=request_id, now_ms=self._clock()))

    async def append(self, delivery: WebhookReceived) -> Appended:
        """Appends a delivery; returns when it is durable (`acks=all`).

        Errors: Overloaded; nothing was begun. BrokerUnavailable; the delivery may be in the log
                all the same, and the sender's retry is then a duplicate.
        """
        answer: Answer = asyncio.get_running_loop().create_future()
        self.begin([delivery], [answer])
        try:
            appended: Appended = await answer
        except BaseException:
            self.leave(delivery, answer)
            raise
        return appended

    def at_next_append(self, work: Callable[[], None]) -> None:
        """Does something when the append under way ends; soon, if there is none or it is slow."""
        if self._at_the_latest is None:
            within_s = _BUSY_S if self._on_their_way else _LINGER_S
            loop = asyncio.get_running_loop()
            self._at_the_latest = loop.call_later(within_s, self._do_next)
        self._next.append(work)

    def _do_next(self) -> None:
        if self._at_the_latest is not None:
            self._at_the_latest.cancel()
            self._at_the_latest = None
        works, self._next = self._next, []
        for work in works:
            work()

    def begin(self, deliveries: Sequence[WebhookReceived], answers: Sequence[Answer]) -> None:
        """Puts deliveries on their way; each answer is given as `append` returns or fails."""
        try:
            self._begin(deliveries, answers)
        except Exception as error:  # noqa: BLE001 (it reaches whoever waits for the answer)
            if len(deliveries) == 1:
                answers[0].set_exception(error)
                return
            for delivery, answer in zip(deliveries, answers, strict=True):
                self.begin([delivery], [answer])

    def _begin(self, deliveries: Sequence[WebhookReceived], answers: Sequence[Answer]) -> None:
        """Begins all of them or none."""
        if not self._commit.partitions:
            raise BrokerUnavailable(f"expected Kafka at {self._cluster}, found no connection yet")
        fresh: dict[str, tuple[WebhookReceived, Answer]] = {}
        for delivery, answer in zip(deliveries, answers, strict=True):
            if delivery.event_id not in self._known and delivery.event_id not in self._on_their_way:
                fresh.setdefault(delivery.event_id, (delivery, answer))
        records = self._records([delivery for delivery, _ in fresh.values()])
        begun = [
            _Delivery(event_id, record, answer)
            for (event_id, (_, answer)), record in zip(fresh.items(), records, strict=True)
        ]
        self._commit.add(begun)
        self._on_their_way |= {one.event_id: one for one in begun}
        for delivery, answer in zip(deliveries, answers, strict=True):
            one = self._on_their_way.get(delivery.event_id)
            if one is None:
                answer.set_result(_DUPLICATE)
            else:
                one.answers.append(answer)
        self._waited_for.append((asyncio.get_running_loop().time() + self._timeout_s, answers))

    def _records(self, deliveries: Sequence[WebhookReceived]) -> Iterator[Outgoing]:
        """What is appended of deliveries.

        Errors: NotYetReadable.
        """
        count = self._commit.partitions
        owners = map(self._placement.owner_of, deliveries)
        values = [encode(delivery) for delivery in deliveries]
        for delivery, owner, value in zip(deliveries, owners, values, strict=True):
            partition = partition_of(owner.encode(), count)
            yield Outgoing(WEBHOOKS, partition, delivery.event_id.encode(), value, _cloud(delivery))

    def leave(self, delivery: WebhookReceived, answer: Answer) -> None:
        """Takes note that nobody waits for an answer; a delivery without any is withdrawn."""
        one = self._on_their_way.get(delivery.event_id)
        if one is not None and answer in one.answers:
            one.answers.remove(answer)
            if not one.answers and self._commit.withdraw(one):
                del self._on_their_way[one.event_id]

    async def _give_up(self) -> NoReturn:
        """Ends waits that last too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_GIVE_UP_EVERY_S)
            while self._waited_for:
                until, answers = self._waited_for[0]
                late = [answer for answer in answers if not answer.done()]
                if late and loop.time() < until:
                    break
                self._waited_for.popleft()
                self._late = self._late or bool(late)
                for answer in late:
                    answer.set_exception(
                        BrokerUnavailable(
                            f"expected an acknowledgement of {self._cluster} within "
                            f"{self._timeout_s} s, found none"
                        )
                    )

    def _settled(self, entries: Sequence[_Delivery], error: BrokerUnavailable | None) -> None:
        """Ends the wait for deliveries that were appended, or whose append failed."""
        self._late = self._late and error is not None
        if self._next:  # once the other partitions of the same request are settled
            asyncio.get_running_loop().call_soon(self._do_next)
        for one in entries:
            del self._on_their_way[one.event_id]
            if error is None:
                self._known.add(one.event_id)
            for answer in one.answers:
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(_APPENDED if answer is one.first else _DUPLICATE)
                else:
                    answer.set_exception(error)

    async def read(self, partition: int, offset: int) -> Stored | None:
        """A delivery as it lies in the log; None where there is none (any more).

        Errors: BrokerUnavailable. UndecodableRecord and UnknownSchema for a record that is none.
        """
        place = (partition, offset)
        found = await read_places(self._cluster, WEBHOOKS, [place], within_s=self._timeout_s)
        record = found.get(place)
        if record is None or record.value is None:
            return None
        headers = tuple((name, text_of(value)) for name, value in record.headers)
        return Stored(decode(record.value, WebhookReceived), headers)

    async def read_all(
        self, places: Collection[tuple[int, int]]
    ) -> Mapping[tuple[int, int], WebhookReceived]:
        """Deliveries by (partition, offset); without those that are there no more.

        Errors: BrokerUnavailable; UndecodableRecord, UnknownSchema.
        """
        records = await read_places(self._cluster, WEBHOOKS, places)
        return {
            place: decode(record.value, WebhookReceived)
            for place, record in records.items()
            if record.value is not None
        }

    async def _watch_admissions(self) -> None:
        retrying = Retrying(log, "admissions of other gateways cannot be followed")
        while True:
            consumer = AIOKafkaConsumer(  # without a group: all partitions are its own
                ADMISSIONS, **self._cluster.options(), auto_offset_reset="latest"
            )
            try:
                await consumer.start()
                ends = await consumer.end_offsets(list(consumer.assignment()))
                for where, end in ends.items():
                    # Before the first record there is, a consumer goes on from the end.
                    (first,) = (await consumer.beginning_offsets([where])).values()
                    consumer.seek(where, max(first, end - _LOOK_BACK))
                retrying.succeeded()
                await self._follow(consumer)
            except (KafkaError, OSError) as error:
                failure = error
            finally:
                await consumer.stop()
            await retrying.failed(failure)

    async def _follow(self, consumer: AIOKafkaConsumer) -> NoReturn:
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    # What cannot be read makes a duplicate or two slip through to intake.
                    with contextlib.suppress(HeadwaterError):
                        for event_id in decode(record.value, WebhooksClaimed).event_ids:
                            self._known.add(event_id)


async def _kept_up(work: Callable[[], Awaitable[None]]) -> NoReturn:
    """Does work that never ends again and again, should it end all the same."""
    retrying = Retrying(log, "work in the background failed")
    while True:
        try:
            await work()
        except Exception as error:
            log.exception("expected work that goes on, found its end")
            await retrying.failed(error)


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
