"""Processing of a delivery at a partition: rows that the partition owns, or a hop to their owner.

Rows of a user belong to the partition of the user's key; rows in which users are looked up belong
to the partition of the subject's. A delivery of an unknown user is parked in the compacted topic
`waiting`. The delivery that brings the user releases it; a wait that lasts too long ends as a dead
letter.

A delivery can concern two subjects and is processed under both; each time the row of that subject
is written. Its outcome is recorded under the subject that the delivery names first.

An outcome is recorded by one partition. The result of normalizing depends on the delivery and its
user alone, so the partition that knows both records it, at once; if the user belongs to another
partition, the hop to `events` is for the rows alone. Outcomes of one delivery from two partitions
would have no order.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headwater.processors.evaluations import Evaluator
from headwater.processors.providers.provider import (
    NO_USER,
    DeliveryType,
    Lookup,
    Placement,
    Provider,
)
from headwater.processors.providers.results import (
    Failed,
    Normalized,
    NormalizeResult,
    first_seen,
    updates_of,
)
from headwater.processors.triggers.decide import check_effect, decide
from headwater.processors.triggers.rules import Rule
from headwater.processors.wipes import WIPED
from headwater.schemas.codec import encode
from headwater.schemas.errors import NotYetReadable, UnknownSource
from headwater.schemas.records import WebhookAdmitted, WebhookReceived
from headwater.schemas.topics import EVENTS, OUTCOMES, UNRESOLVED, WEBHOOKS
from headwater.streams.kafka.dead_letters import (
    IF_WAITING,
    NO_EFFECTS,
    REPLAY_OF,
    RULE,
    text_header,
)
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of, position_of
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.pipeline.delivery_headers import trace_headers
from headwater.streams.pipeline.partition_state import LookupKey, PartitionState
from headwater.streams.pipeline.record_batch import RecordBatch

_RECEIVED: Final = WebhookReceived.__struct_fields__
#: Bytes of the end of a wait, in addition to the body of its delivery.
_WAIT_BYTES: Final = 1024


class _Resolution(NamedTuple):
    """A delivery with the subject that resolves its user, and its declared type."""

    event: WebhookAdmitted
    subject: str
    record: Incoming
    provider: Provider
    kind: DeliveryType[Any]
    lookup: Lookup

    @property
    def lookup_key(self) -> LookupKey:
        """Return the row that it waits for if its user is unknown."""
        return LookupKey(self.lookup.table.name, self.subject)

    @property
    def carries_outcome(self) -> bool:
        """Return whether the delivery's outcome is recorded under this subject."""
        return self.subject == self.event.subject


class Processing:
    """Processes deliveries at a partition one by one: those of a commit unit, or expired waits."""

    def __init__(
        self,
        placement: Placement,
        partitions: int,
        state: PartitionState,
        output: RecordBatch,
        rules: Sequence[Rule],
        evaluator: Evaluator | None = None,
    ) -> None:
        self._placement = placement
        self._providers = placement.providers
        self._partitions = partitions
        self.state = state
        self.output = output
        self._rules = rules
        self._evaluator = evaluator
        #: By user, the deliveries that brought rows of theirs.
        self._seen: dict[str, list[WebhookAdmitted]] = {}
        #: The current delivery, once it is known.
        self._event: WebhookAdmitted | None = None

    def failed(self, record: Incoming, error: Exception) -> None:
        """Make a dead letter of the current delivery."""
        self.output.failed(record, self._event, error)
        self._event = None

    def results(self) -> list[Outgoing]:
        """Return the records that follow from all deliveries; a changed row is one of them."""
        self.write_users_seen()
        state, output = self.state, self.output
        return state.claims.changed(output.now_ms) + state.rows.changed() + output.records

    # -- routing

    def admit(
        self, delivery: WebhookReceived, record: Incoming, first: int, *, comes_back: bool = False
    ) -> None:
        """Process a delivery that is no duplicate, or send it to the owner of its rows.

        Args:
            delivery: The delivery.
            record: Its record.
            first: Its first offset, under which a replay counts as the same delivery.
            comes_back: Whether its user comes back by it after a wipe.
        """
        user = self._placement.user_of(delivery)
        event = admitted(delivery, record, user, first, self.output.now_ms)
        if comes_back:
            event = msgspec.structs.replace(event, comes_back=True)
        self._event = event
        kind = self._provider_of(event).types.get(event.type)
        if event.replay and text_header(record, IF_WAITING) and not self._waits(kind, event):
            pass  # A drain selected it in Postgres, which learns of the end of a wait later.
        elif kind is None:
            self._normalize(event, record)  # It writes no rows, so it needs no owner.
        elif event.subject and (
            kind.fills_lookup or (kind.of_user and kind.lookup and event.user_id is None)
        ):
            for subject in kind.subjects_of(event):
                self._to_subject(subject, event, record)
        elif kind.of_user and not kind.fills_lookup and event.user_id is None:
            self._without_owner(kind, event, record)
        else:
            owner = event.user_id if kind.of_user else event.subject
            self._to_owner(owner or event.event_id, event, record)
        self._event = None

    def skip_wiped(self, delivery: WebhookReceived, record: Incoming) -> None:
        """Record the outcome of a delivery of a wiped user, without any name; remove its record."""
        nameless = msgspec.structs.replace(delivery, subject="", reference=None)
        event = admitted(nameless, record, None, record.offset, self.output.now_ms)
        self.output.outcome(event, record, "skipped", WIPED)
        self.output.add(Outgoing(record.topic, record.partition, record.key, None))

    def _waits(self, kind: DeliveryType[Any] | None, event: WebhookAdmitted) -> bool:
        """Return whether a delivery is parked in this partition."""
        if kind is None or kind.lookup is None:
            return False
        table, waits = kind.lookup.table.name, self.state.waits
        return any(
            waits.get(LookupKey(table, subject), event.event_id) is not None
            for subject in kind.subjects_of(event)
        )

    def _without_owner(
        self, kind: DeliveryType[Any], event: WebhookAdmitted, record: Incoming
    ) -> None:
        """End a delivery that names neither a user nor a subject with which to look one up."""
        if kind.skip_reason(event.body) is not None:
            self._normalize(event, record)
            return
        if kind.unnamed is not None and kind.unnamed.reason:
            self.output.outcome(event, record, "skipped", kind.unnamed.reason)
            return
        detail = "expected a delivery with a subject, or a reference that is a user id of ours; "
        self.output.dead(record, event, NO_USER, detail + "found neither")

    def process_owned(self, event: WebhookAdmitted, record: Incoming, *, replayed: bool) -> None:
        """Write the rows of a delivery that came by a hop; its outcome was recorded before the hop.

        Args:
            event: The delivery.
            record: The record of the hop.
            replayed: Whether it was a dead letter of `events`, and needs another outcome.
        """
        self._event = event
        result = self._provider_of(event).normalize(event)
        self._merge(event, result)
        if replayed or not isinstance(result, Normalized):
            self.output.normalized(event, record, result)
        self._event = None

    def process_subject(self, subject: str, event: WebhookAdmitted, record: Incoming) -> None:
        """Process a delivery that came by a hop to the partition of a subject."""
        self._event = event
        self._resolve(self._resolution(subject, event, record))
        self._event = None

    def _to_owner(self, owner: str, event: WebhookAdmitted, record: Incoming) -> None:
        result = self._provider_of(event).normalize(event)
        if partition_of(owner.encode(), self._partitions) == self.output.partition:
            self.state.rows.check_room(updates_of(result))  # Before there is an outcome.
        self._record_outcome(event, record, result)
        key = event.event_id.encode()
        if updates_of(result) and not self._hops(EVENTS, owner, key, event):
            self._merge(event, result)

    def _to_subject(self, subject: str, event: WebhookAdmitted, record: Incoming) -> None:
        key = msgspec.json.encode((subject, event.event_id))
        if not self._hops(UNRESOLVED, subject, key, event):
            self._resolve(self._resolution(subject, event, record))

    def _hops(self, topic: str, owner: str, key: bytes, event: WebhookAdmitted) -> bool:
        """Send a delivery to its owner; return False if that is this partition.

        Args:
            topic: The topic of the hop.
            owner: The user or subject that owns the rows.
            key: Key of the hop's record, by which it can be removed.
            event: The delivery.
        """
        partition = partition_of(owner.encode(), self._partitions)
        if partition == self.output.partition:
            return False
        self.output.add(Outgoing(topic, partition, key, encode(event)))
        return True

    # -- rows and outcomes

    def _normalize(self, event: WebhookAdmitted, record: Incoming) -> NormalizeResult:
        """Normalize a delivery, and record its outcome."""
        result = self._provider_of(event).normalize(event)
        self._record_outcome(event, record, result)
        return result

    def _merge(self, event: WebhookAdmitted, result: NormalizeResult) -> None:
        """Write the rows of a delivery that this partition owns."""
        kind, updates = self._provider_of(event).types[event.type], updates_of(result)
        if kind.fills_lookup:
            updates = tuple(update for update in updates if kind.owns(update.table))
        self.state.rows.merge_delivery(updates, trace_headers(event) if event.trace else ())
        if event.user_id and isinstance(result, Normalized):
            self._seen.setdefault(event.user_id, []).append(event)

    def write_users_seen(self) -> None:
        """Write when users were first and last seen since the last call: two updates per user."""
        for user, events in self._seen.items():
            for update in first_seen(user, events):
                self.state.rows.merge(update)
        self._seen.clear()

    def _record_outcome(
        self, event: WebhookAdmitted, record: Incoming, result: NormalizeResult
    ) -> None:
        """Record the outcome of a delivery, and its effects on workflows unless it is dead."""
        self.output.normalized(event, record, result)
        if isinstance(result, Failed) or not event.effects:
            return
        declared = result.effects if isinstance(result, Normalized) else ()
        if not declared and not self._rules:
            return
        only = text_header(record, RULE)
        effects = [check_effect(effect) for effect in declared if only in (None, effect.name)]
        if self._rules:
            effects += decide(self._rules, event, only=only, evaluator=self._evaluator)
        for effect in effects:
            self.output.effect(event, record, effect)

    def _provider_of(self, event: WebhookAdmitted) -> Provider:
        provider = self._providers.get(event.source)
        if provider is None:
            known = ", ".join(self._providers)
            raise UnknownSource(
                f"expected a delivery of {known}, found one of {event.source}; usual cause: its "
                "package is not installed with this worker, or HEADWATER_SOURCES is another file"
            )
        return provider

    # -- resolving the user

    def _resolution(self, subject: str, event: WebhookAdmitted, record: Incoming) -> _Resolution:
        resolution = self._find_resolution(subject, event, record)
        if resolution is None:
            raise UnknownSource(
                f"expected a type whose users are looked up, found {event.type} of {event.source}; "
                "usual cause: another release, or another set of packages, admitted the delivery"
            )
        return resolution

    def _find_resolution(
        self, subject: str, event: WebhookAdmitted, record: Incoming
    ) -> _Resolution | None:
        """Return how to resolve a delivery; None if its provider is unknown or has no lookup."""
        provider = self._providers.get(event.source)
        kind = None if provider is None else provider.types.get(event.type)
        if provider is None or kind is None or kind.lookup is None:
            return None
        return _Resolution(event, subject, record, provider, kind, kind.lookup)

    def _resolve(self, resolution: _Resolution) -> None:
        event, subject = resolution.event, resolution.subject
        lookup = resolution.lookup
        named = event.user_id or self._placement.user_of(event)
        row = None if named else self.state.rows.get(lookup.table, (subject,))
        user = named or lookup.user_in(row)
        if user is None:
            self._park(resolution)
            return
        if self.state.wipes.fences.cover((user,), event.partition, event.offset):
            self._forget(resolution)
            return
        event = msgspec.structs.replace(
            self._unparked(resolution), user_id=user, our_id=lookup.our_id_in(row)
        )
        if not resolution.kind.fills_lookup:
            self._to_owner(user, event, resolution.record)
            return
        if named is None:
            # Perhaps only this subject's row names the user: inform the other subject.
            for other in resolution.kind.subjects_of(event):
                if other != subject:
                    self._to_subject(other, event, resolution.record)
        self._fill(resolution._replace(event=event))
        self._release(resolution)

    def _forget(self, resolution: _Resolution) -> None:
        """Remove a delivery that precedes a wipe and turns out to be of that user."""
        event = self._unparked(resolution)
        key, output = event.event_id.encode(), self.output
        output.add(Outgoing(WEBHOOKS, event.partition, key, None))
        if resolution.carries_outcome:
            output.add(Outgoing(OUTCOMES, output.partition, key, None, output.headers))

    def _unparked(self, resolution: _Resolution) -> WebhookAdmitted:
        """Return the delivery; if it was parked, as it was parked, and end its wait."""
        waits, event_id = self.state.waits, resolution.event.event_id
        waiting = waits.get(resolution.lookup_key, event_id)
        if waiting is None:
            return resolution.event
        waits.end(resolution.lookup_key, event_id)
        self.output.add(waits.record(resolution.lookup_key, event_id, None))
        return msgspec.structs.replace(
            waiting,
            released_at_ms=self.output.now_ms,
            released_by=position_of(resolution.record),
            replay=resolution.event.replay,
        )

    def _fill(self, resolution: _Resolution) -> None:
        """Write the subject's row of the lookup; the user's owner writes rows of the user."""
        event, user = resolution.event, resolution.event.user_id
        result = resolution.provider.normalize(event)
        if isinstance(result, Normalized):
            rows, row_key = self.state.rows, (resolution.lookup.table, (resolution.subject,))
            before = rows.get(*row_key)
            for update in result.updates:
                if (update.table, update.key) == row_key:
                    rows.merge(update)
            after = rows.get(*row_key)
            if resolution.kind.starts is not None and after is not None:
                started = resolution.kind.starts(event, before, after)
                result = msgspec.structs.replace(result, effects=(*result.effects, *started))
        if resolution.carries_outcome:
            self._record_outcome(event, resolution.record, result)
            key = event.event_id.encode()
            if user and updates_of(result) and not self._hops(EVENTS, user, key, event):
                self._merge(event, result)

    def _park(self, resolution: _Resolution) -> None:
        """Park a delivery of an unknown user, unless it is to be skipped."""
        event, record = resolution.event, resolution.record
        reason = resolution.kind.skip_reason(event.body)
        if reason is not None:
            if resolution.carries_outcome:
                self.output.outcome(event, record, "skipped", reason)
            return
        waits = self.state.waits
        waiting = waits.get(resolution.lookup_key, event.event_id)
        if waiting is None:
            waiting = msgspec.structs.replace(
                event, parked_at_ms=self.output.now_ms, waited_for=resolution.lookup.missing
            )
            waits.put(resolution.lookup_key, waiting)
        elif event.replay:
            waiting = msgspec.structs.replace(waiting, replay=event.replay)
            waits.put(resolution.lookup_key, waiting)
        self.output.add(waits.record(resolution.lookup_key, event.event_id, encode(waiting)))
        if resolution.carries_outcome:
            self.output.outcome(waiting, record, "parked", resolution.lookup.missing)

    # -- ends of waits

    def _release(self, resolution: _Resolution) -> None:
        """Process the parked deliveries of a subject after its user became known."""
        waits, lookup_key = self.state.waits, resolution.lookup_key
        if self.state.user_of(resolution.lookup, resolution.subject) is None:
            return  # The delivery that fills the lookup was a dead letter itself.
        for event in waits.take(lookup_key):
            record = _origin(event)
            parked = self._find_resolution(resolution.subject, event, record)
            if parked is None:  # Only a worker that has its provider can process it.
                waits.put(lookup_key, event)
                continue
            self.output.add(waits.record(lookup_key, event.event_id, None))
            event = msgspec.structs.replace(  # noqa: PLW2901
                event,
                released_at_ms=self.output.now_ms,
                released_by=position_of(resolution.record),
            )
            try:
                self._resolve(parked._replace(event=event))
            except (NotYetReadable, StoreCorrupted):
                raise
            except Exception as error:  # noqa: BLE001, it must not affect other parked deliveries
                self.output.failed(record, event, error)

    def expire_waits(self, after_ms: int, *, bytes_max: float = math.inf) -> None:
        """End the waits that have lasted too long, the oldest first, as dead letters.

        Args:
            after_ms: Duration of a wait after which it ends, in milliseconds.
            bytes_max: Size of deliveries after which the others are left for the next call.
        """
        waits, size = self.state.waits, 0
        for lookup_key, event in waits.begun_before(self.output.now_ms - after_ms):
            if size >= bytes_max:
                return
            record = _origin(event)
            resolution = self._find_resolution(lookup_key.subject, event, record)
            if resolution is None:  # Only a worker that has its provider can end it.
                continue
            size += _WAIT_BYTES + len(event.body)
            waits.end(lookup_key, event.event_id)
            self.output.add(waits.record(lookup_key, event.event_id, None))
            if resolution.carries_outcome:
                lookup = resolution.lookup
                detail = (
                    f"expected {lookup.expected} {resolution.subject} within {after_ms // 1000} "
                    f"s, found none; {lookup.cure}"
                )
                self.output.dead(record, event, lookup.missing, detail)


def admitted(
    delivery: WebhookReceived, record: Incoming, user: str | None, first: int, now_ms: int
) -> WebhookAdmitted:
    """Return a delivery as it is processed, with its user and its position.

    Args:
        delivery: The delivery.
        record: Its record.
        user: The user that it names, if any.
        first: Its first offset.
        now_ms: The time, in Unix milliseconds.
    """
    return WebhookAdmitted(
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
        headers=delivery.headers,
        origin=delivery.origin,
        trace=delivery.trace,
        user_id=user,
        partition=record.partition,
        offset=first,
        admitted_at_ms=now_ms,
        replay=text_header(record, REPLAY_OF) or "",
        effects=text_header(record, NO_EFFECTS) is None,
    )


def _origin(event: WebhookAdmitted) -> Incoming:
    """Return the record of a delivery in `webhooks`, for its dead letter and its replay."""
    received = WebhookReceived(**{name: getattr(event, name) for name in _RECEIVED})
    key, value = event.event_id.encode(), encode(received)
    at_ms, sizes = event.received_at_ms, (len(key), len(value))
    return Incoming(WEBHOOKS, event.partition, event.offset, at_ms, 0, key, value, None, *sizes, ())
