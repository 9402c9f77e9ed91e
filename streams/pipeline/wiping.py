"""A partition forgets a user: rows and waits at once, and records as they are found in its topics.

The order to do so is a delivery of its own, in each partition of `webhooks`. What it leads to is
durable before it is committed: the fence, which is kept, and the tombstones of rows and waits. Then
the owner looks through all that its partition has in other topics, as long as the fence says that
this is not done; after a crash it begins again (ADR 0029).
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

import msgspec

from headwater.processors.providers.placement import Placement
from headwater.processors.wipes import (
    SOURCE,
    TYPE,
    WipeOrder,
    digest,
    forget_effect,
    is_before,
    user_in,
    wipe_order_of,
)
from headwater.schemas.codec import decode, decode_row, encode, record_name
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.records import (
    EffectDecided,
    OutcomeRecorded,
    RowRebuilt,
    UserForgotten,
    WebhookAdmitted,
    WebhookReceived,
)
from headwater.schemas.topics import DEAD_LETTERS, EFFECTS, EVENTS, OUTCOMES, UNRESOLVED, WEBHOOKS
from headwater.streams.kafka.dead_letters import EVENT_ID
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.pipeline.partition_state import PartitionState

#: The topics that are looked through, in this order: the first ones say which deliveries there are.
#: What is found is removed in the opposite order, so that whoever begins again after a crash still
#: finds what says so.
LOOKED_THROUGH: Final = (OUTCOMES, WEBHOOKS, EVENTS, UNRESOLVED, EFFECTS, DEAD_LETTERS)
#: How what is found is called in answers; what is not named is not counted.
_COUNTED: Final = {
    WEBHOOKS: "raw_events",
    OUTCOMES: "traces",
    EFFECTS: "effects",
    DEAD_LETTERS: "dead_letters",
}
_WAITING: Final = "waiting"
Names: TypeAlias = tuple[str | None, str]
_UNREADABLE: Final = (UndecodableRecord, UnknownSchema, ValueError, msgspec.MsgspecError)


def forget(
    state: PartitionState, order: WipeOrder, delivery: WebhookReceived, record: Incoming
) -> list[Outgoing]:
    """Forgets a user's rows and waits; returns what says so, but for rows, which have changed."""
    before = state.wipes.get(order.user_id)
    forgets_instances = _effect(order, delivery, record)
    if before is not None and before.wipe_id == order.wipe_id and not before.names:
        return [forgets_instances]  # It was read again, and is done.
    forgotten = state.rows.forget(order.user_id, order.fence)
    names = [order.user_id, *forgotten.subjects]
    counts: dict[str, int] = {}
    if before is not None and before.names:
        # It was begun before a crash, or an earlier one was, which this one completes: rows are
        # gone, and who their subjects were is known.
        names += before.names
        counts = dict(zip(before.found, before.counts, strict=True))
    names = list(dict.fromkeys(names))
    ended = state.waits.forget(names, order.fence)
    counts = _at_least(counts, {**forgotten.counts, _WAITING: len(ended)})
    wipe = UserForgotten(
        wipe_id=order.wipe_id,
        digests=_digests(names, before),
        names=names,
        fence=list(order.fence),
        found=list(counts),
        counts=list(counts.values()),
        ordered_at_ms=delivery.received_at_ms,
    )
    return [state.wipes.put(wipe), *ended, forgets_instances]


def _effect(order: WipeOrder, delivery: WebhookReceived, record: Incoming) -> Outgoing:
    effect = forget_effect(order, delivery)
    key = msgspec.json.encode((effect.event_id, effect.name))
    return Outgoing(EFFECTS, record.partition, key, encode(effect))


def was_wiped(
    state: PartitionState, placement: Placement, delivery: WebhookReceived, first: int
) -> bool:
    """Whether a delivery in `webhooks` does not count any more: its first offset says so."""
    fences = state.wipes.fences
    if not fences.reach(state.partition, first):
        return False
    names = names_of(delivery, placement.user_of(delivery))
    return fences.cover(names, state.partition, first)


def names_of(delivery: WebhookReceived, user: str | None) -> Names:
    """The names by which a wipe knows a delivery in `webhooks`: its user's, or whom it is about."""
    return (user or delivery.reference, "" if user else delivery.subject)


def is_wiped(state: PartitionState, event: WebhookAdmitted) -> bool:
    """Whether a delivery that comes by a hop does not count any more."""
    names = (event.user_id,) if event.user_id else (event.reference, event.subject)
    return state.wipes.fences.cover(names, event.partition, event.offset)


def subject_of(key: bytes | None) -> str:
    """The subject that a hop of the topic `unresolved` is for."""
    subject, _ = msgspec.json.decode(key or b"", type=tuple[str, str])
    return subject


def _at_least(known: Mapping[str, int], found: Mapping[str, int]) -> dict[str, int]:
    """What was found by somebody who was cut off, or by now: who begins again finds the rest."""
    return {name: max(known.get(name, 0), found.get(name, 0)) for name in {**known, **found}}


def _digests(names: Iterable[str], before: UserForgotten | None) -> list[str]:
    known = [] if before is None else before.digests
    return list(dict.fromkeys([*map(digest, names), *known]))


class Search:
    """Looks through the records of a partition for those of a wipe, topic by topic."""

    def __init__(self, wipe: UserForgotten, partition: int) -> None:
        self.wipe = wipe
        self._partition = partition
        self._names = set(wipe.names)
        self._bytes = [name.encode() for name in wipe.names]
        self._events: set[str] = set()
        #: Deliveries that name one of the subjects, and yet belong to another user.
        self._others: set[str] = set()
        #: Keys by topic whose last record is the user's; whether they are counted.
        self._keys: defaultdict[str, dict[bytes, bool]] = defaultdict(dict)
        #: Deliveries that are removed already, and counted all the same.
        self._gone: set[bytes] = set()
        self._wanted = {
            OUTCOMES: self._is_outcome,
            WEBHOOKS: self._is_delivery,
            EVENTS: self._is_hop,
            UNRESOLVED: self._is_hop,
            EFFECTS: self._is_effect,
            DEAD_LETTERS: self._is_letter,
        }

    def look(self, topic: str, records: Iterable[Incoming]) -> None:
        """Looks at records of a topic, in order."""
        is_wanted, keys = self._wanted[topic], self._keys[topic]
        for record in records:
            key = record.key or b""
            if record.value is None:
                self._gone_by_now(topic, record, counted=keys.pop(key, False))
                continue
            # What cannot be read is somebody else's; what became of it is a dead letter.
            with contextlib.suppress(*_UNREADABLE):
                if is_wanted(record):
                    keys[key] = True
                elif topic == WEBHOOKS and self._is_order(record):
                    keys[key] = False

    def _gone_by_now(self, topic: str, record: Incoming, *, counted: bool) -> None:
        """A delivery that has gone since the wipe was ordered went for it: a copy of it came."""
        is_since = not is_before(self.wipe.fence, self._partition, record.offset)
        if counted and topic == WEBHOOKS and is_since:
            self._gone.add(record.key or b"")

    def removals(self, topic: str, headers: Headers) -> list[Outgoing]:
        """The tombstones of what was found in a topic."""
        fenced = headers if topic == OUTCOMES else None
        return [Outgoing(topic, self._partition, key, None, fenced) for key in self._keys[topic]]

    def counted(self) -> UserForgotten:
        """The wipe with what was found: durable before any of it goes, so that it is told."""
        counts = {name: sum(self._keys[topic].values()) for topic, name in _COUNTED.items()}
        counts[_COUNTED[WEBHOOKS]] += len(self._gone - self._keys[WEBHOOKS].keys())
        counts = _at_least(dict(zip(self.wipe.found, self.wipe.counts, strict=True)), counts)
        return msgspec.structs.replace(self.wipe, found=list(counts), counts=list(counts.values()))

    def done(self, now_ms: int) -> UserForgotten:
        """The wipe when nothing is left to be looked for: it names nobody."""
        return msgspec.structs.replace(self.counted(), names=[], done_at_ms=now_ms)

    def _is_order(self, record: Incoming) -> bool:
        order = wipe_order_of(decode(record.value, WebhookReceived))
        return order is not None and order.user_id == self.wipe.names[0]

    def _is_delivery(self, record: Incoming) -> bool:
        delivery = decode(record.value, WebhookReceived)
        named = {delivery.reference, delivery.subject}
        if delivery.source == SOURCE and delivery.type == TYPE:
            return False
        return self._is_theirs(delivery.event_id, named, self._partition, record.offset)

    def _is_outcome(self, record: Incoming) -> bool:
        outcome = decode(record.value, OutcomeRecorded)
        if outcome.user_id is not None and outcome.user_id != self.wipe.names[0]:
            self._others.add(outcome.event_id)
            return False
        named = {outcome.user_id, outcome.subject}
        return self._is_theirs(outcome.event_id, named, outcome.partition, outcome.offset)

    def _is_hop(self, record: Incoming) -> bool:
        if record_name(record.value) == "row_rebuilt":
            return self._is_row(decode(record.value, RowRebuilt), record.key or b"")
        event = decode(record.value, WebhookAdmitted)
        if event.user_id is not None and event.user_id != self.wipe.names[0]:
            return False
        named = {event.user_id, event.reference, event.subject}
        return self._is_theirs(event.event_id, named, event.partition, event.offset)

    def _is_row(self, rebuilt: RowRebuilt, key: bytes) -> bool:
        """Whether a rebuilt row, on its way to its owner, is of the user."""
        table = TABLE_BY_NAME.get(rebuilt.table)
        if table is None or rebuilt.row is None:
            return any(name in key for name in self._bytes)
        return user_in(table, decode_row(table, rebuilt.row)) in self._names

    def _is_theirs(
        self, event_id: str, named: AbstractSet[str | None], partition: int, offset: int
    ) -> bool:
        if event_id in self._others:
            return False
        if named & self._names and is_before(self.wipe.fence, partition, offset):
            self._events.add(event_id)
        return event_id in self._events

    def _is_effect(self, record: Incoming) -> bool:
        return decode(record.value, EffectDecided).event_id in self._events

    def _is_letter(self, record: Incoming) -> bool:
        event_id = next((v.decode() for name, v in record.headers if name == EVENT_ID and v), "")
        if event_id:
            return event_id in self._events
        return any(name in (record.value or b"") for name in self._bytes)
