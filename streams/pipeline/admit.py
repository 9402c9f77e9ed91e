"""The first agent: lets each delivery pass once, and sends it where its rows are owned.

Deduplication. The first offsets of event ids are claimed in the topic `admissions`, one record a
batch, partitioned like `webhooks`, so one worker sees all copies of a delivery in order. A record
is a duplicate when its key was claimed at a lower offset. After a crash the same record meets its
own claim and passes again under the same event id: nothing that follows minds seeing it twice.
"""

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

from headwater.processors.providers.envelope import user_of
from headwater.processors.providers.provider import NO_USER, Providers
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import NotYetReadable, UndecodableRecord
from headwater.schemas.records import (
    DuplicateDropped,
    WebhookAdmitted,
    WebhookReceived,
    WebhooksClaimed,
)
from headwater.schemas.topics import ADMISSIONS, EVENTS, TOPICS, TRACES, UNRESOLVED, WEBHOOKS
from headwater.streams.kafka.dead_letters import REPLAY_OF, text_header
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.stage_output import Emission

_HORIZON_MS: Final = next(t.retention_ms for t in TOPICS if t.name == ADMISSIONS) or 0


class _Claims:
    """The first offset of every event id of a partition, for as long as senders retry."""

    def __init__(self) -> None:
        self.offset_of: dict[bytes, int] = {}
        self._batches: deque[tuple[int, list[bytes]]] = deque()

    def add(self, keys: list[bytes], offsets: list[int], at_ms: int) -> None:
        """Adds the claims of a batch; of two for one id the lower offset counts."""
        for key, offset in zip(keys, offsets, strict=True):
            self.offset_of[key] = min(offset, self.offset_of.get(key, offset))
        self._batches.append((at_ms, keys))

    def expire(self, now_ms: int) -> None:
        while self._batches and self._batches[0][0] < now_ms - _HORIZON_MS:
            for key in self._batches.popleft()[1]:
                self.offset_of.pop(key, None)


class Admit:
    """Webhooks in; events, unresolved and admissions out."""

    name: ClassVar[str] = "admit"
    source: ClassVar[str] = WEBHOOKS

    def __init__(self, *, providers: Providers, partitions: int, user_prefix: str) -> None:
        self._providers = providers
        self._partitions = partitions
        self._user_prefix = user_prefix
        self._claims: dict[int, _Claims] = {}
        self.memory: tuple[str, ...] = (ADMISSIONS,)

    def restored(self, record: Incoming) -> None:
        """Takes in a claim."""
        if record.value is not None:
            claimed = decode(record.value, WebhooksClaimed)
            keys = [event_id.encode() for event_id in claimed.event_ids]
            claims = self._claims.setdefault(record.partition, _Claims())
            claims.add(keys, claimed.offsets, claimed.admitted_at_ms)

    def forget(self, partition: int) -> None:
        """Drops the claims of a partition."""
        self._claims.pop(partition, None)

    def tick(self, partition: int, now_ms: int) -> list[Outgoing]:
        """Forgets claims that are older than any sender retries; nothing to append."""
        if partition in self._claims:
            self._claims[partition].expire(now_ms)
        return []

    def step(self, partition: int, records: Sequence[Incoming], now_ms: int) -> list[Outgoing]:
        """Admits a batch of deliveries."""
        emission = Emission(stage=self.name, partitions=self._partitions, now_ms=now_ms)
        claims = self._claims.setdefault(partition, _Claims())
        fresh: dict[bytes, int] = {}
        for record in records:
            if record.value is None:
                continue  # The tombstone of a wiped delivery.
            try:
                delivery = decode(record.value, WebhookReceived)
                key = _key_of(record, delivery)
                first = claims.offset_of.get(key)
                if first is None:
                    first = fresh.setdefault(key, record.offset)
                replayed = record.headers and text_header(record, REPLAY_OF) is not None
                if first < record.offset and not replayed:
                    self._drop(delivery, record, first, emission)
                else:
                    self._admit(delivery, record, emission)
            except NotYetReadable:
                raise
            except Exception as error:  # noqa: BLE001, one bad record is one dead letter
                emission.failed(record, None, error)
        if fresh:
            keys, offsets = list(fresh), list(fresh.values())
            claims.add(keys, offsets, now_ms)
            claimed = WebhooksClaimed([key.decode() for key in keys], offsets, now_ms)
            emission.add(Outgoing(ADMISSIONS, partition, None, encode(claimed)))
        return emission.records

    @staticmethod
    def _drop(delivery: WebhookReceived, record: Incoming, first: int, emission: Emission) -> None:
        dropped = DuplicateDropped(
            request_id=delivery.request_id,
            event_id=delivery.event_id,
            partition=record.partition,
            offset=record.offset,
            first_offset=first,
            received_at_ms=delivery.received_at_ms,
            at_ms=emission.now_ms,
        )
        emission.keyed(TRACES, delivery.request_id.encode(), encode(dropped))

    def _admit(self, delivery: WebhookReceived, record: Incoming, emission: Emission) -> None:
        event = WebhookAdmitted(
            event_id=delivery.event_id,
            request_id=delivery.request_id,
            source=delivery.source,
            type=delivery.type,
            subject=delivery.subject,
            reference=delivery.reference,
            sent_at_ms=delivery.sent_at_ms,
            updated_at_ms=delivery.updated_at_ms,
            received_at_ms=delivery.received_at_ms,
            body=delivery.body,
            user_id=user_of(delivery.reference, self._user_prefix),
            partition=record.partition,
            offset=record.offset,
            admitted_at_ms=emission.now_ms,
        )
        self._route(event, record, emission)

    def _route(self, event: WebhookAdmitted, record: Incoming, emission: Emission) -> None:
        provider = self._providers.get(event.source)
        kind = None if provider is None else provider.types.get(event.type)
        key = event.user_id or event.subject or event.event_id
        if kind is not None and not kind.of_user:
            key = event.subject or event.event_id
        elif kind is not None:
            find_user = kind.lookup is not None and (kind.fills_lookup or event.user_id is None)
            if find_user and event.subject:
                for subject in kind.subjects_of(event):
                    emission.keyed(UNRESOLVED, subject.encode(), encode(event))
                return
            if event.user_id is None and not kind.fills_lookup:
                detail = "expected a delivery with a subject, or a reference that is a user id of "
                emission.dead(record, event, NO_USER, detail + "ours; found neither")
                return
        emission.keyed(EVENTS, key.encode(), encode(event))


def _key_of(record: Incoming, delivery: WebhookReceived) -> bytes:
    """The key of a delivery, which deduplication goes by.

    Errors: UndecodableRecord if it is not the event id: somebody else has written the record.
    """
    key = delivery.event_id.encode()
    if record.key != key:
        raise UndecodableRecord(f"expected the event id as key, {key!r}, found {record.key!r}")
    return key
