"""Consume topics of other programs: their records become deliveries (ADR 0073).

A gateway is a member of a consumer group for each source. It appends a batch of records to
`webhooks`, as if they had been posted, and commits their offsets when all of them are durable. The
time of a batch is bounded, because Kafka excludes a member that does not fetch for five minutes. A
batch that is read again, after a crash or a rebalance, becomes duplicates: the delivery of a record
depends on the record alone.

Nothing but Kafka and the schema registry can hold up a topic. A record that cannot be read becomes
a delivery that cannot be routed, and so a dead letter.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, NoReturn

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from headwater.processors.evaluations import Evaluator
from headwater.processors.kafka_sources import (
    KafkaSource,
    TopicRecord,
    delivery_of,
    reason_of,
    unreadable_delivery,
)
from headwater.processors.providers.envelope import MALFORMED, UNDECODABLE, Malformed
from headwater.schemas.errors import (
    PARSE_ERRORS,
    BrokerUnavailable,
    NotYetReadable,
    Overloaded,
    excerpt,
)
from headwater.schemas.records import RequestAnswered, WebhookReceived
from headwater.streams.clock import monotonic
from headwater.streams.kafka.cluster import Cluster, start_consumer
from headwater.streams.kafka.names import foreign_topic
from headwater.streams.kafka.records import text_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.schema_registry import (
    AvroUnreadable,
    RegistryUnavailable,
    SchemaRegistry,
)
from headwater.streams.pipeline.webhook_log import Appended

log = logging.getLogger(__name__)

#: Records of one batch: enough to spread the cost of an append, few enough that they are read again
#: within a second after a crash.
_BATCH_RECORDS: Final = 500
#: Seconds for reading a batch; its last record may take 20 s more, 5 s for each expression.
_BATCH_S: Final = 30.0
_FETCH_BYTES: Final = 4 * 1024 * 1024
_POLL_MS: Final = 500
_METADATA_AGE_MS: Final = 3_000
#: The longest pause before a batch is tried again.
_PAUSE_S: Final = 30.0
#: The largest body, as of a webhook; a record of `webhooks` holds no larger one.
BODY_MAX: Final = 10 * 1024 * 1024
#: What may pass by itself, so that a batch is tried again.
_RETRIED: Final = (
    BrokerUnavailable,
    NotYetReadable,
    Overloaded,
    RegistryUnavailable,
    KafkaError,
    OSError,
)


class TopicConsumer:
    """Consumes the topic of a source until it is cancelled.

    Args:
        source: The source.
        cluster: The cluster.
        group: The consumer group.
        append: Appends a delivery to `webhooks`; returns when it is durable.
        answered: Records what became of a record without a new delivery.
        registry: Where schemas of Avro are read; None if the source has JSON.
        evaluator: Evaluates expensive expressions.
        clock: Returns Unix milliseconds.
    """

    def __init__(  # noqa: PLR0913 (its collaborators)
        self,
        source: KafkaSource,
        *,
        cluster: Cluster,
        group: str,
        append: Callable[[WebhookReceived], Awaitable[Appended]],
        answered: Callable[[RequestAnswered], None],
        registry: SchemaRegistry | None,
        evaluator: Evaluator | None,
        clock: Callable[[], int],
    ) -> None:
        self._source = source
        self._append = append
        self._answered = answered
        self._registry = registry
        self._evaluator = evaluator
        self._clock = clock
        self._retrying = Retrying(
            log, f"the topic {source.topic} of the source {source.name} waits", longest_s=_PAUSE_S
        )
        self._options = {
            **cluster.options(),
            "group_id": group,
            "client_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "max_partition_fetch_bytes": _FETCH_BYTES,
            "metadata_max_age_ms": _METADATA_AGE_MS,
        }

    async def run(self) -> NoReturn:
        """Consume; after an error, continue from the committed offsets."""
        while True:
            try:
                await self._consume()
            except _RETRIED as error:
                await self._retrying.failed(error)
            except Exception as error:
                log.exception("the source %s failed unexpectedly", self._source.name)
                await self._retrying.failed(error)

    async def _consume(self) -> NoReturn:
        consumer = AIOKafkaConsumer(foreign_topic(self._source.topic), **self._options)
        await start_consumer(consumer)
        try:
            while True:
                fetched = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
                await self._take_batch(consumer, fetched)
                self._retrying.succeeded()
        finally:
            await consumer.stop()

    async def _take_batch(
        self, consumer: AIOKafkaConsumer, fetched: Mapping[TopicPartition, Sequence[Any]]
    ) -> None:
        """Process and commit fetched records until the batch's time is over; fetch the rest again.

        Partitions share the time. None is always last: aiokafka fetches them in a random order.
        """
        until_s, late = monotonic() + _BATCH_S, False
        for tp, records in fetched.items():
            done = 0 if late else await self._process(records, until_s)
            if done:
                await _commit(consumer, tp, records[done - 1].offset + 1)
            if done < len(records):
                _seek(consumer, tp, records[done].offset)
            late = monotonic() >= until_s

    async def _process(self, records: Sequence[Any], until_s: float) -> int:
        """Append the deliveries of records, at least of one; return how many are durable."""
        if self._registry is not None:
            await self._registry.load(record.value for record in records if record.value)
        # In a thread: records may be large, and expressions may take long.
        read = await asyncio.to_thread(self._read_until, until_s, records)
        results = await asyncio.gather(*starmap(self._take, read), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return len(read)

    async def _take(self, record: TopicRecord, delivery: WebhookReceived) -> None:
        if len(delivery.body) > BODY_MAX:
            detail = f"expected at most {BODY_MAX} bytes, found {len(delivery.body)}"
            self._answer(delivery, "body_too_large", detail)
            return
        try:
            if (await self._append(delivery)).duplicate:
                self._answer(delivery, "duplicate", "", delivery.event_id)
        except _RETRIED:
            raise
        except Exception as error:
            log.exception("%s cannot be appended as it is", record.position)
            kept = self._unexpected(record, error)
            if delivery == kept:
                self._answer(delivery, "internal_error", repr(error))
            else:
                await self._take(record, kept)

    def _unexpected(self, record: TopicRecord, error: Exception) -> WebhookReceived:
        reason = reason_of(Malformed(MALFORMED, f"expected a usable record, found: {error!a}"))
        return unreadable_delivery(self._source, record, reason, self._clock())

    def _answer(
        self, delivery: WebhookReceived, code: str, detail: str, event_id: str = ""
    ) -> None:
        if code != "duplicate":
            log.warning("%s of the source %s: %s", delivery.request_id, delivery.source, detail)
        self._answered(
            RequestAnswered(
                request_id=delivery.request_id,
                source=delivery.source,
                code=code,
                reason="",
                detail=detail,
                event_id=event_id,
                size=len(delivery.body),
                peer="",
                left_out=0,
                at_ms=self._clock(),
            )
        )

    def _read_until(
        self, until_s: float, records: Sequence[Any]
    ) -> list[tuple[TopicRecord, WebhookReceived]]:
        read = []
        for record in records:
            read.append(self._read(record))
            if monotonic() >= until_s:
                break
        return read

    def _read(self, record: Any) -> tuple[TopicRecord, WebhookReceived]:  # noqa: ANN401 (aiokafka's)
        """Return a record and its delivery; an unexpected error concerns this record alone."""
        decoded, evaluator = self._decoded(record), self._evaluator
        try:
            delivery = delivery_of(self._source, decoded, now_ms=self._clock(), evaluator=evaluator)
        except Exception as error:
            log.exception("%s is kept as unreadable", decoded.position)
            delivery = self._unexpected(decoded, error)
        return decoded, delivery

    def _decoded(self, record: Any) -> TopicRecord:  # noqa: ANN401 (aiokafka's)
        """Return a record with its value as JSON; that of a tombstone is null."""
        value, problem = b"null" if record.value is None else bytes(record.value), None
        try:
            if self._registry is not None and record.value is not None:
                value = self._registry.decode(value)
            else:
                _check_json(value)
        except AvroUnreadable as error:
            problem = Malformed(UNDECODABLE, str(error))
        except UnicodeDecodeError as error:
            problem = Malformed(UNDECODABLE, f"expected JSON in UTF-8, found: {error}")
        except PARSE_ERRORS as error:
            problem = Malformed(MALFORMED, f"expected JSON, found {excerpt(value)}: {error}")
        return TopicRecord(
            topic=self._source.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=max(0, record.timestamp),
            key=record.key,
            headers=_headers(record.headers),
            body=value,
            problem=problem,
        )


def _check_json(value: bytes) -> None:
    """Check the syntax of a text in linear time; builds no values."""
    value.decode()
    msgspec.json.decode(value, type=msgspec.Raw)


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> Mapping[str, str]:
    """Return headers with lowercase names; of several with one name, the last counts."""
    return {name.lower(): text_of(value) for name, value in headers}


async def _commit(consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> None:
    """Commit an offset; after a rebalance, the new owner of the partition reads the batch again."""
    try:
        await consumer.commit({tp: offset})
    except (CommitFailedError, IllegalStateError) as error:
        log.info("%s/%d@%d is not committed: %s", *tp, offset, error)


def _seek(consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> None:
    """Continue a partition at an offset; after a rebalance, its new owner does so."""
    try:
        consumer.seek(tp, offset)
    except IllegalStateError as error:
        log.info("%s/%d@%d is not fetched again: %s", *tp, offset, error)
