"""The topic `webhooks` for the gateway: append deliveries and wipe orders, read deliveries."""

import asyncio
import contextlib
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from headwater.processors.providers.headwater import delivery_of
from headwater.processors.providers.provider import Placement
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError
from headwater.schemas.providers.headwater import SystemEvent
from headwater.schemas.records import WebhookReceived, WebhooksClaimed
from headwater.schemas.topics import ADMISSIONS, WEBHOOKS
from headwater.streams.kafka.append_queues import GroupCommit
from headwater.streams.kafka.appender import Producers
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of, text_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.pipeline.delivery_headers import delivery_headers
from headwater.streams.pipeline.delivery_lookup import (
    ReadGrowths,
    no_growths,
    read_deliveries_at,
)

log = logging.getLogger(__name__)

#: Event ids remembered for answering duplicates, of about 200 bytes.
_REMEMBERED: Final = 250_000
#: Subjects whose last event is remembered, of about 300 bytes.
_SUBJECTS_MAX: Final = 10_000
#: Records of admissions that a start reads of each partition, each with one event id or some
#: hundreds. Older duplicates are recognized only by intake.
_LOOK_BACK: Final = 1_000
_POLL_MS: Final = 60_000
_TIMEOUT_CHECK_S: Final = 0.25
#: Linger before an append when idle, and the longest wait for the end of an append in flight, as
#: Kafka may be slow or unavailable.
_LINGER_S: Final = 0.001
_BUSY_S: Final = 0.01
#: How long the reader of admissions may take to stop.
_STOP_S: Final = 5.0


class Appended(msgspec.Struct, frozen=True):
    """A delivery is in the log; `duplicate` if it was there before.

    Attributes:
        original: Id of the first delivery, if it was appended all the same: it is probably a
            duplicate, and intake decides that. Empty otherwise.
    """

    duplicate: bool
    original: str = ""


class Stored(msgspec.Struct, frozen=True):
    """A delivery in the log, with the headers of its record."""

    delivery: WebhookReceived
    headers: tuple[tuple[str, str], ...]


#: Resolved with an `Appended` or another result of `prepare`, or with an exception.
_Answer: TypeAlias = "asyncio.Future[Any]"

RawT = TypeVar("RawT")
OtherT = TypeVar("OtherT")
#: Makes deliveries of raw requests, or other results for those that are not appended.
Prepare: TypeAlias = Callable[[Sequence[RawT]], Sequence[WebhookReceived | OtherT]]

_APPENDED: Final = Appended(duplicate=False)
_DUPLICATE: Final = Appended(duplicate=True)


class _Known(OrderedDict[str, None]):
    """Recently admitted event ids; the oldest are dropped first."""

    def add(self, event_id: str) -> None:
        self[event_id] = None
        if len(self) > _REMEMBERED:
            self.popitem(last=False)


class _Delivery:
    """A delivery in flight, and the callers that wait for it."""

    __slots__ = ("answers", "event_id", "first", "record")

    def __init__(self, event_id: str, record: Outgoing, first: _Answer) -> None:
        self.event_id = event_id
        self.record = record
        #: Answer of the first copy; `answers` has those of duplicates, too.
        self.first = first
        self.answers: list[_Answer] = []


class _Waiting:
    """A raw request that waits for the next append; `delivery` is what was made of it."""

    __slots__ = ("answer", "delivery", "raw")

    def __init__(self, raw: Any) -> None:  # noqa: ANN401 (the caller's)
        self.raw = raw
        self.answer: _Answer = asyncio.get_running_loop().create_future()
        self.delivery: WebhookReceived | None = None


class WebhookLog:
    """The topic `webhooks` for the gateway.

    Duplicates: if two copies of a delivery reach one gateway, the second waits for the first and is
    answered as its duplicate. So is the retry of a delivery whose sender gave up while the first
    attempt was in flight; an attempt that was only queued is withdrawn (`GroupCommit`). Copies that
    other gateways accepted, or this one before a restart, are known from the topic `admissions`,
    read in the background. If a duplicate is not recognized, intake drops it.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        append_timeout_s: float,
        placement: Placement,
        clock: Callable[[], int],
        producers: Producers | None = None,
        growths: ReadGrowths = no_growths,
    ) -> None:
        self._cluster = cluster
        self._growths = growths
        self._timeout_s = append_timeout_s
        self._placement = placement
        self._clock = clock
        producers = producers or Producers(cluster, "headwater-gateway")
        # No linger: deliveries that are appended together have waited already.
        self._commit = GroupCommit(producers, WEBHOOKS, settled=self._settled, linger_s=0)
        self._known = _Known()
        #: By source and subject, the last event that may recur: the id of its bytes, and that of
        #: the first delivery of them.
        self._last: OrderedDict[str, tuple[str, str]] = OrderedDict()
        #: Deliveries that are queued or in flight, by event id.
        self._in_flight: dict[str, _Delivery] = {}
        #: Deadlines of answers, oldest first: checking them at intervals costs less than a timer
        #: for each (4 µs).
        self._deadlines: deque[tuple[float, Sequence[_Answer]]] = deque()
        #: Requests to prepare at the next append, and its latest time.
        self._next: defaultdict[Prepare[Any, Any], list[_Waiting]] = defaultdict(list)
        self._next_timer: asyncio.TimerHandle | None = None
        self._background: list[asyncio.Task[None]] = []
        #: Whether a deadline passed, and nothing was acknowledged since.
        self._late = False

    @property
    def ready(self) -> bool:
        """Return whether Kafka is connected, and acknowledges."""
        # Only late while something is in flight: a gateway that gets no requests, because it is
        # not ready, would never be ready again.
        return self._commit.ready and not (self._late and self._in_flight)

    async def start(self) -> None:
        """Start in the background; Kafka may be unavailable now or later."""
        await self._commit.start()
        self._background = [
            asyncio.create_task(_kept_up(work), name=work.__name__)
            for work in (self._expire_answers, self._watch_admissions)
        ]

    async def stop(self) -> None:
        """End the background work and disconnect, within seconds even if Kafka stalls."""
        for running in self._background:
            running.cancel()
        await self._commit.stop()
        if self._background:
            await asyncio.wait(self._background, timeout=_STOP_S)

    async def publish_fact(self, fact: SystemEvent, *, request_id: str) -> Appended:
        """Append a fact that the system has learned, as a system event; return when it is durable.

        A fact that was published before is a duplicate, and changes nothing. Errors are those of
        `append`; the call can be repeated safely.
        """
        return await self.append(delivery_of(fact, request_id=request_id, now_ms=self._clock()))

    async def append(self, delivery: WebhookReceived) -> Appended:
        """Append a delivery; return when it is durable (`acks=all`).

        Raises:
            Overloaded: Nothing was appended.
            BrokerUnavailable: The delivery may be in the log all the same; the sender's retry is
                then a duplicate.
        """
        return await self.append_prepared(delivery, _as_it_is)

    async def append_prepared(self, raw: RawT, prepare: Prepare[RawT, OtherT]) -> Appended | OtherT:
        """Append what `prepare` makes of a raw request, together with those that arrive meanwhile.

        `prepare` is called when the append in flight ends; soon, if there is none or it is slow.

        Returns:
            As `append`, or another result of `prepare`.

        Raises:
            HeadwaterError: As `append`.
            Exception: As `prepare` for this request alone.
        """
        if self._next_timer is None:
            within_s = _BUSY_S if self._in_flight else _LINGER_S
            loop = asyncio.get_running_loop()
            self._next_timer = loop.call_later(within_s, self._do_next)
        waiting = _Waiting(raw)
        self._next[prepare].append(waiting)
        try:
            result: Appended | OtherT = await waiting.answer
        except BaseException:
            if waiting.delivery is not None:
                self._leave(waiting.delivery, waiting.answer)
            raise
        if waiting.delivery is None or not isinstance(result, Appended) or result.duplicate:
            return result
        return self.recurring(waiting.delivery) or result

    def recurring(self, delivery: WebhookReceived) -> Appended | None:
        """Return the answer to an event that is probably a duplicate; None for any other delivery.

        It is one if it was the last event of its subject. It is appended all the same: intake knows
        the events that other gateways have accepted, and decides.
        """
        recurrence = self._placement.recurrence_of(delivery)
        if recurrence is None:
            return None
        name, same_bytes = f"{delivery.source}/{delivery.subject}", recurrence.same_bytes
        last = self._last.pop(name, None)
        is_repeated = same_bytes in self._known if last is None else last[0] == same_bytes
        first = last[1] if last is not None and is_repeated else delivery.event_id
        self._last[name] = same_bytes, first
        if len(self._last) > _SUBJECTS_MAX:
            self._last.popitem(last=False)
        if recurrence.has_own_time or not is_repeated:
            return None
        return Appended(duplicate=True, original=first)

    def _do_next(self) -> None:
        if self._next_timer is not None:
            self._next_timer.cancel()
            self._next_timer = None
        batches = list(self._next.items())
        self._next.clear()
        for prepare, batch in batches:
            self._prepare(prepare, [waiting for waiting in batch if not waiting.answer.done()])

    def _prepare(self, prepare: Prepare[Any, Any], batch: Sequence[_Waiting]) -> None:
        results = prepare_each(prepare, [waiting.raw for waiting in batch])
        deliveries: list[WebhookReceived] = []
        answers: list[_Answer] = []
        for waiting, result in zip(batch, results, strict=True):
            if isinstance(result, WebhookReceived):
                waiting.delivery = result
                deliveries.append(result)
                answers.append(waiting.answer)
            elif isinstance(result, Exception):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)
        self._begin(deliveries, answers)

    def _begin(self, deliveries: Sequence[WebhookReceived], answers: Sequence[_Answer]) -> None:
        """Queue deliveries; their answers are resolved as `append` returns or fails."""
        try:
            self._queue(deliveries, answers)
        except Exception as error:  # noqa: BLE001 (it reaches the callers that await the answers)
            if len(deliveries) == 1:
                answers[0].set_exception(error)
                return
            for delivery, answer in zip(deliveries, answers, strict=True):
                self._begin([delivery], [answer])

    def _queue(self, deliveries: Sequence[WebhookReceived], answers: Sequence[_Answer]) -> None:
        """Queue all deliveries or none."""
        if not self._commit.partitions:
            raise BrokerUnavailable(f"expected Kafka at {self._cluster}, found no connection yet")
        fresh: dict[str, tuple[WebhookReceived, _Answer]] = {}
        for delivery, answer in zip(deliveries, answers, strict=True):
            if delivery.event_id not in self._known and delivery.event_id not in self._in_flight:
                fresh.setdefault(delivery.event_id, (delivery, answer))
        records = self._records([delivery for delivery, _ in fresh.values()])
        begun = [
            _Delivery(event_id, record, answer)
            for (event_id, (_, answer)), record in zip(fresh.items(), records, strict=True)
        ]
        self._commit.add(begun)
        self._in_flight |= {pending.event_id: pending for pending in begun}
        for delivery, answer in zip(deliveries, answers, strict=True):
            pending = self._in_flight.get(delivery.event_id)
            if pending is None:
                answer.set_result(_DUPLICATE)
            else:
                pending.answers.append(answer)
        self._deadlines.append((asyncio.get_running_loop().time() + self._timeout_s, answers))

    def _records(self, deliveries: Sequence[WebhookReceived]) -> Iterator[Outgoing]:
        """Yield the records of deliveries.

        Raises:
            NotYetReadable: An older member could not read a delivery.
        """
        count = self._commit.partitions
        owners = map(self._placement.owner_of, deliveries)
        values = [encode(delivery) for delivery in deliveries]
        for delivery, owner, value in zip(deliveries, owners, values, strict=True):
            partition = partition_of(owner.encode(), count)
            provider = self._placement.providers.get(delivery.source)
            headers = delivery_headers(delivery, "" if provider is None else provider.domain)
            yield Outgoing(WEBHOOKS, partition, delivery.event_id.encode(), value, headers)

    def _leave(self, delivery: WebhookReceived, answer: _Answer) -> None:
        """Record that a caller no longer waits; withdraw a delivery without any callers."""
        pending = self._in_flight.get(delivery.event_id)
        if pending is not None and answer in pending.answers:
            pending.answers.remove(answer)
            if not pending.answers and self._commit.withdraw(pending):
                del self._in_flight[pending.event_id]

    async def _expire_answers(self) -> NoReturn:
        """Fail answers after their deadline."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TIMEOUT_CHECK_S)
            while self._deadlines:
                until, answers = self._deadlines[0]
                late = [answer for answer in answers if not answer.done()]
                if late and loop.time() < until:
                    break
                self._deadlines.popleft()
                self._late = self._late or bool(late)
                for answer in late:
                    answer.set_exception(
                        BrokerUnavailable(
                            f"expected an acknowledgement of {self._cluster} within "
                            f"{self._timeout_s} s, found none"
                        )
                    )

    def _settled(self, entries: Sequence[_Delivery], error: BrokerUnavailable | None) -> None:
        """Resolve the answers of deliveries that were appended or failed."""
        self._late = self._late and error is not None
        if self._next:  # once the other partitions of the same request are settled
            asyncio.get_running_loop().call_soon(self._do_next)
        for pending in entries:
            del self._in_flight[pending.event_id]
            if error is None:
                self._known.add(pending.event_id)
            for answer in pending.answers:
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(_APPENDED if answer is pending.first else _DUPLICATE)
                else:
                    answer.set_exception(error)

    async def read(self, partition: int, offset: int) -> Stored | None:
        """Return a delivery of the log; None if it does not exist (any more).

        Raises:
            BrokerUnavailable: No broker answered.
            UndecodableRecord: The record is not a delivery.
            UnknownSchema: The record is not a delivery.
        """
        position = (partition, offset)
        records = await self._read_at([position], self._timeout_s)
        record = records.get(position)
        if record is None or record.value is None:
            return None
        headers = tuple((name, text_of(value)) for name, value in record.headers)
        return Stored(decode(record.value, WebhookReceived), headers)

    async def read_all(
        self, positions: Collection[tuple[int, int]]
    ) -> Mapping[tuple[int, int], WebhookReceived]:
        """Return deliveries by partition and offset; those that no longer exist are omitted.

        Raises:
            BrokerUnavailable: No broker answered.
            UndecodableRecord: A record is not a delivery.
            UnknownSchema: A record is not a delivery.
        """
        records = await self._read_at(positions)
        return {
            position: decode(record.value, WebhookReceived)
            for position, record in records.items()
            if record.value is not None
        }

    async def _read_at(
        self, positions: Collection[tuple[int, int]], within_s: float | None = None
    ) -> Mapping[tuple[int, int], Incoming]:
        count = self._commit.partitions
        return await read_deliveries_at(
            self._cluster, count, self._growths, positions, within_s=within_s
        )

    async def _watch_admissions(self) -> None:
        retrying = Retrying(log, "admissions of other gateways cannot be followed")
        while True:
            consumer = AIOKafkaConsumer(  # without a group: all partitions are its own
                ADMISSIONS,
                **self._cluster.options(),
                auto_offset_reset="latest",
                fetch_max_wait_ms=IDLE_FETCH_MS,
            )
            try:
                await consumer.start()
                ends = await consumer.end_offsets(list(consumer.assignment()))
                for tp, end in ends.items():
                    # Below the first offset, a consumer would continue from the end.
                    (first,) = (await consumer.beginning_offsets([tp])).values()
                    consumer.seek(tp, max(first, end - _LOOK_BACK))
                retrying.succeeded()
                await self._follow(consumer)
            except (KafkaError, OSError) as error:
                failure = error
            finally:
                await consumer.stop()
            await retrying.failed(failure)

    async def _follow(self, consumer: AIOKafkaConsumer) -> NoReturn:
        while True:
            for records in (await consumer.getmany(timeout_ms=_POLL_MS)).values():
                for record in records:
                    # If one cannot be decoded, some duplicates are left to intake.
                    with contextlib.suppress(HeadwaterError):
                        for event_id in decode(record.value, WebhooksClaimed).event_ids:
                            self._known.add(event_id)


def _as_it_is(batch: Sequence[WebhookReceived]) -> Sequence[WebhookReceived]:
    return batch


def prepare_each(
    prepare: Prepare[RawT, OtherT], batch: Sequence[RawT]
) -> Sequence[WebhookReceived | OtherT | Exception]:
    """Prepare a batch; an exception is the result of the request that causes it, and no other."""
    try:
        return prepare(batch)
    except Exception as error:  # noqa: BLE001 (it reaches the caller that awaits the answer)
        if len(batch) == 1:
            return [error]
        return [result for raw in batch for result in prepare_each(prepare, [raw])]


async def _kept_up(work: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run work that should never end, and run it again if it does."""
    retrying = Retrying(log, "work in the background failed")
    while True:
        try:
            await work()
        except Exception as error:
            log.exception("background work failed unexpectedly")
            await retrying.failed(error)
