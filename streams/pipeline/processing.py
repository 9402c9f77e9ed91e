"""What becomes of a delivery at a partition: rows that the partition owns, or a hop to their owner.

The rows of a user lie where the user's key does, the rows in which users are looked up where their
subject's does. A delivery whose user is not known yet waits in the compacted topic `waiting`. The
delivery that brings the user releases it; a wait that lasts too long ends as a dead letter.

A delivery can concern two subjects and is looked at under each; each time the row of that subject
is written, and under the subject that the delivery names first its outcome, too.

An outcome has one home. What normalizing comes to depends on the delivery and its user alone, so
whoever knows both says it, at once; if the user lives elsewhere, the hop to `events` is for the
rows alone. Two partitions that spoke of one delivery would have no order between them.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headwater.processors.evaluations import Evaluator
from headwater.processors.providers.envelope import UNREADABLE
from headwater.processors.providers.heard_of import heard_of
from headwater.processors.providers.placement import Placement
from headwater.processors.providers.provider import NO_USER, DeliveryType, Lookup, Provider
from headwater.processors.providers.results import (
    Failed,
    Normalized,
    NormalizeResult,
    updates_of,
)
from headwater.processors.triggers.decide import checked, decide
from headwater.processors.triggers.rules import Rule
from headwater.schemas.codec import encode
from headwater.schemas.errors import NotYetReadable, UnknownSource
from headwater.schemas.records import WebhookAdmitted, WebhookReceived
from headwater.schemas.topics import EVENTS, OUTCOMES, UNRESOLVED, WEBHOOKS
from headwater.streams.kafka.dead_letters import NO_EFFECTS, REPLAY_OF, RULE, text_header
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of, position_of
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.pipeline.emission import Emission
from headwater.streams.pipeline.partition_state import PartitionState, Wanted

_RECEIVED: Final = WebhookReceived.__struct_fields__
#: What the end of a wait takes beside the body of its delivery.
_WAIT_BYTES: Final = 1024


class _Found(NamedTuple):
    """A delivery under one of its subjects, and what its provider declares of its type."""

    event: WebhookAdmitted
    subject: str
    record: Incoming
    provider: Provider
    kind: DeliveryType[Any]
    lookup: Lookup

    @property
    def wanted(self) -> Wanted:
        """What it waits for if its user is not known."""
        return Wanted(self.lookup.table.name, self.subject)

    @property
    def carries_outcome(self) -> bool:
        """Whether the delivery's outcome is recorded under this subject."""
        return self.subject == self.event.subject


class Processing:
    """Processes deliveries at a partition, one after the other: a batch of them, or what is due."""

    def __init__(
        self,
        placement: Placement,
        partitions: int,
        state: PartitionState,
        emission: Emission,
        rules: Sequence[Rule],
        evaluator: Evaluator | None = None,
    ) -> None:
        self._placement = placement
        self._providers = placement.providers
        self._partitions = partitions
        self._state = state
        self.emission = emission
        self._rules = rules
        self._evaluator = evaluator
        #: By user, the deliveries that brought rows of theirs.
        self._heard: dict[str, list[WebhookAdmitted]] = {}
        #: The delivery at hand, once it is known.
        self._event: WebhookAdmitted | None = None

    def failed(self, record: Incoming, error: Exception) -> None:
        """Makes a dead letter of what was at hand when an error was raised."""
        self.emission.failed(record, self._event, error)
        self._event = None

    # -- where it is processed

    def admit(self, delivery: WebhookReceived, record: Incoming, first: int) -> None:
        """Processes a delivery that is no copy, or sends it to whoever owns what it changes.

        Shape:  first is its first offset: what a replay says comes from the same delivery.
        """
        if delivery.type == UNREADABLE and delivery.source in self._providers:
            delivery = self._providers[delivery.source].reroute(delivery)
        user = self._placement.user_of(delivery)
        event = self._event = admitted(delivery, record, user, first, self.emission.now_ms)
        kind = self._provider_of(event).types.get(event.type)
        if kind is None:
            self._decide(event, record)  # It fills nothing, so nobody owns what it fills.
        elif event.subject and (
            kind.fills_lookup or (kind.of_user and kind.lookup and event.user_id is None)
        ):
            for subject in kind.subjects_of(event):
                self._to_subject(subject, event, record)
        elif kind.of_user and not kind.fills_lookup and event.user_id is None:
            self._of_nobody(kind, event, record)
        else:
            owner = event.user_id if kind.of_user else event.subject
            self._to_owner(owner or event.event_id, event, record)
        self._event = None

    def _of_nobody(self, kind: DeliveryType[Any], event: WebhookAdmitted, record: Incoming) -> None:
        """Ends a delivery that names neither a user nor a subject whose user could be found."""
        if kind.skip_reason(event.body) is not None:
            self._decide(event, record)
            return
        detail = "expected a delivery with a subject, or a reference that is a user id of ours; "
        self.emission.dead(record, event, NO_USER, detail + "found neither")

    def own(self, event: WebhookAdmitted, record: Incoming, *, replayed: bool) -> None:
        """Writes the rows of a delivery that came by a hop: its outcome was said before the hop.

        Shape:  replayed, if it was a dead letter of `events`: then it needs another outcome.
        """
        self._event = event
        result = self._provider_of(event).normalize(event)
        self._merge(event, result)
        if replayed or not isinstance(result, Normalized):
            self.emission.normalized(event, record, result)
        self._event = None

    def under(self, subject: str, event: WebhookAdmitted, record: Incoming) -> None:
        """Processes a delivery that came by a hop to a subject whose row says more."""
        self._event = event
        self._resolve(self._found(subject, event, record))
        self._event = None

    def _to_owner(self, owner: str, event: WebhookAdmitted, record: Incoming) -> None:
        result = self._decide(event, record)
        key = event.event_id.encode()
        if updates_of(result) and not self._hops(EVENTS, owner, key, event):
            self._merge(event, result)

    def _to_subject(self, subject: str, event: WebhookAdmitted, record: Incoming) -> None:
        key = msgspec.json.encode((subject, event.event_id))
        if not self._hops(UNRESOLVED, subject, key, event):
            self._resolve(self._found(subject, event, record))

    def _hops(self, topic: str, owner: str, key: bytes, event: WebhookAdmitted) -> bool:
        """Sends a delivery to its owner, unless that is here.

        Shape:  the key is the record's own, so that it can be removed.
        """
        partition = partition_of(owner.encode(), self._partitions)
        if partition == self.emission.partition:
            return False
        self.emission.add(Outgoing(topic, partition, key, encode(event)))
        return True

    # -- rows and outcomes

    def _decide(self, event: WebhookAdmitted, record: Incoming) -> NormalizeResult:
        """Normalizes a delivery whose owner is known, and says what became of it."""
        result = self._provider_of(event).normalize(event)
        self._conclude(event, record, result)
        return result

    def _merge(self, event: WebhookAdmitted, result: NormalizeResult) -> None:
        """Writes the rows of a delivery that its owner has, who is here."""
        merge = self._state.rows.merge
        kind = self._provider_of(event).types[event.type]
        for update in updates_of(result):
            if not kind.fills_lookup or kind.owns(update.table):
                merge(update)
        if event.user_id and isinstance(result, Normalized):
            self._heard.setdefault(event.user_id, []).append(event)

    def note_users(self) -> None:
        """Writes when the users of a batch were heard of: two updates each, however many came."""
        for user, events in self._heard.items():
            for update in heard_of(user, events):
                self._state.rows.merge(update)
        self._heard.clear()

    def _conclude(self, event: WebhookAdmitted, record: Incoming, result: NormalizeResult) -> None:
        """Says what became of a delivery, and what it does to workflows unless it is dead."""
        self.emission.normalized(event, record, result)
        if isinstance(result, Failed) or not event.effects:
            return
        wanted = result.effects if isinstance(result, Normalized) else ()
        if not wanted and not self._rules:
            return
        only = text_header(record, RULE)
        found = [checked(effect) for effect in wanted if only in (None, effect.name)]
        if self._rules:
            found += decide(self._rules, event, only=only, evaluator=self._evaluator)
        for each in found:
            self.emission.effect(event, record, each)

    def _provider_of(self, event: WebhookAdmitted) -> Provider:
        provider = self._providers.get(event.source)
        if provider is None:
            known = ", ".join(self._providers)
            raise UnknownSource(
                f"expected a delivery of {known}, found one of {event.source}; usual cause: its "
                "package is not installed beside this worker, or HEADWATER_SOURCES is another file"
            )
        return provider

    # -- finding the user

    def _found(self, subject: str, event: WebhookAdmitted, record: Incoming) -> _Found:
        found = self._find(subject, event, record)
        if found is None:
            raise UnknownSource(
                f"expected a type whose users are looked up, found {event.type} of {event.source}; "
                "usual cause: another release, or another set of packages, admitted the delivery"
            )
        return found

    def _find(self, subject: str, event: WebhookAdmitted, record: Incoming) -> _Found | None:
        """What a delivery's provider declares of it; None if that is nothing, or no lookup."""
        provider = self._providers.get(event.source)
        kind = None if provider is None else provider.types.get(event.type)
        if provider is None or kind is None or kind.lookup is None:
            return None
        return _Found(event, subject, record, provider, kind, kind.lookup)

    def _resolve(self, found: _Found) -> None:
        event, subject = found.event, found.subject
        lookup = found.lookup
        named = event.user_id or self._placement.user_of(event)
        row = None if named else self._state.rows.get(lookup.table, (subject,))
        user = named or lookup.user_in(row)
        if user is None:
            self._without_user(found)
            return
        if self._state.wipes.fences.cover((user,), event.partition, event.offset):
            self._forget(found)
            return
        event = msgspec.structs.replace(
            self._waited(found), user_id=user, our_id=lookup.our_id_in(row)
        )
        if not found.kind.fills_lookup:
            self._to_owner(user, event, found.record)
            return
        if named is None:
            # Perhaps only this subject's row names the user: tell the other subject.
            for other in found.kind.subjects_of(event):
                if other != subject:
                    self._to_subject(other, event, found.record)
        self._fill(found._replace(event=event))
        self._release(found)

    def _forget(self, found: _Found) -> None:
        """Removes a delivery of before a wipe, which is known only now to be of that user."""
        event = self._waited(found)
        key, emission = event.event_id.encode(), self.emission
        emission.add(Outgoing(WEBHOOKS, event.partition, key, None))
        if found.carries_outcome:
            emission.add(Outgoing(OUTCOMES, emission.partition, key, None, emission.headers))

    def _waited(self, found: _Found) -> WebhookAdmitted:
        """The delivery; if it waited until now, as it waited, and the wait is over."""
        waits, event_id = self._state.waits, found.event.event_id
        waiting = waits.get(found.wanted, event_id)
        if waiting is None:
            return found.event
        waits.end(found.wanted, event_id)
        self.emission.add(waits.record(found.wanted, event_id, None))
        return msgspec.structs.replace(
            waiting,
            released_at_ms=self.emission.now_ms,
            released_by=position_of(found.record),
            replay=found.event.replay,
        )

    def _fill(self, found: _Found) -> None:
        """Writes the subject's row of the lookup; what is the user's is written with the user."""
        event, user = found.event, found.event.user_id
        result = found.provider.normalize(event)
        if isinstance(result, Normalized):
            rows, place = self._state.rows, (found.lookup.table, (found.subject,))
            before = rows.get(*place)
            for update in result.updates:
                if (update.table, update.key) == place:
                    rows.merge(update)
            after = rows.get(*place)
            if found.kind.starts is not None and after is not None:
                started = found.kind.starts(event, before, after)
                result = msgspec.structs.replace(result, effects=(*result.effects, *started))
        if found.carries_outcome:
            self._conclude(event, found.record, result)
            key = event.event_id.encode()
            if user and updates_of(result) and not self._hops(EVENTS, user, key, event):
                self._merge(event, result)

    def _without_user(self, found: _Found) -> None:
        event, record = found.event, found.record
        reason = found.kind.skip_reason(event.body)
        if reason is not None:
            if found.carries_outcome:
                self.emission.outcome(event, record, "skipped", reason)
            return
        waits = self._state.waits
        waiting = waits.get(found.wanted, event.event_id)
        if waiting is None:
            waiting = msgspec.structs.replace(
                event, parked_at_ms=self.emission.now_ms, waited_for=found.lookup.missing
            )
            waits.put(found.wanted, waiting)
        elif event.replay:
            waiting = msgspec.structs.replace(waiting, replay=event.replay)
            waits.put(found.wanted, waiting)
        self.emission.add(waits.record(found.wanted, event.event_id, encode(waiting)))
        if found.carries_outcome:
            self.emission.outcome(waiting, record, "parked", found.lookup.missing)

    # -- ends of waits

    def _release(self, found: _Found) -> None:
        """Goes on with the deliveries that waited for a subject's user."""
        waits, wanted = self._state.waits, found.wanted
        if self._state.user_of(found.lookup, found.subject) is None:
            return  # The delivery that fills the lookup was a dead letter itself.
        for event in waits.take(wanted):
            record = _origin(event)
            waited = self._find(found.subject, event, record)
            if waited is None:  # Only a worker that has its provider can go on with it.
                waits.put(wanted, event)
                continue
            self.emission.add(waits.record(wanted, event.event_id, None))
            event = msgspec.structs.replace(  # noqa: PLW2901
                event, released_at_ms=self.emission.now_ms, released_by=position_of(found.record)
            )
            try:
                self._resolve(waited._replace(event=event))
            except (NotYetReadable, StoreCorrupted):
                raise
            except Exception as error:  # noqa: BLE001, nor does it harm those that wait beside it
                self.emission.failed(record, event, error)

    def give_up(self, after_ms: int, *, bytes_max: float = math.inf) -> None:
        """Ends the waits that last as long as this, or longer, the oldest first.

        Shape:  once those that were ended have so many bytes, the others are for the next call.
        """
        waits, size = self._state.waits, 0
        for wanted, event in waits.begun_before(self.emission.now_ms - after_ms):
            if size >= bytes_max:
                return
            record = _origin(event)
            found = self._find(wanted.subject, event, record)
            if found is None:  # Only a worker that has its provider can end it.
                continue
            size += _WAIT_BYTES + len(event.body)
            waits.end(wanted, event.event_id)
            self.emission.add(waits.record(wanted, event.event_id, None))
            if found.carries_outcome:
                detail = (
                    f"expected {found.lookup.expected} {found.subject} within {after_ms // 1000} "
                    f"s, found none; {found.lookup.cure}"
                )
                self.emission.dead(record, event, found.lookup.missing, detail)


def admitted(
    delivery: WebhookReceived, record: Incoming, user: str | None, first: int, now_ms: int
) -> WebhookAdmitted:
    """A delivery as it is processed: with the user that it names, and where it lies.

    Shape:  first is its first offset.
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
        user_id=user,
        partition=record.partition,
        offset=first,
        admitted_at_ms=now_ms,
        replay=text_header(record, REPLAY_OF) or "",
        effects=text_header(record, NO_EFFECTS) is None,
    )


def _origin(event: WebhookAdmitted) -> Incoming:
    """A delivery as it lies in `webhooks`: what a dead letter of it is, and what is replayed."""
    received = WebhookReceived(**{name: getattr(event, name) for name in _RECEIVED})
    key, value = event.event_id.encode(), encode(received)
    at_ms, sizes = event.received_at_ms, (len(key), len(value))
    return Incoming(WEBHOOKS, event.partition, event.offset, at_ms, 0, key, value, None, *sizes, ())
