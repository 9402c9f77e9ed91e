"""Wipe a user from a partition: rows and waits at once, then records found in its topics.

A wipe is ordered by a delivery in each partition of `webhooks`. Its effects are durable before it
is committed: the fence, which is kept, and the tombstones of rows and waits. Then the owner
searches the other topics of its partition for as long as the fence records that this is not done;
after a crash it starts over (ADR 0029).
"""

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from itertools import zip_longest
from typing import Final, TypeAlias

import msgspec

from headwater.processors.providers.envelope import UNREADABLE
from headwater.processors.providers.provider import AfterWipe, Placement
from headwater.processors.wipes import (
    SOURCE,
    TYPE,
    WipeOrder,
    digest,
    forget_effect,
    is_before,
    is_sent_after,
    user_in,
    wipe_order_of,
)
from headwater.schemas.codec import decode, decode_row, encode, record_name
from headwater.schemas.errors import MalformedPayload, UndecodableRecord, UnknownSchema
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.records import (
    Delivery,
    EffectDecided,
    NameAccepted,
    OutcomeRecorded,
    RowRebuilt,
    TopicEnds,
    UserForgotten,
    WebhookAdmitted,
    WebhookReceived,
)
from headwater.schemas.topics import DEAD_LETTERS, EFFECTS, EVENTS, OUTCOMES, UNRESOLVED, WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import CONNECT_PREFIX, EVENT_ID, text_header
from headwater.streams.kafka.readers import Offsets
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.pipeline.partition_state import PartitionState

#: The topics to search, in this order: the first ones determine which deliveries are the user's.
#: Records are removed in the opposite order, so that a search that starts over after a crash can
#: still determine them.
SWEPT_TOPICS: Final = (OUTCOMES, WEBHOOKS, EVENTS, UNRESOLVED, EFFECTS, DEAD_LETTERS)
#: Names of the counts in responses; records of other topics are not counted.
_COUNTED: Final = {
    WEBHOOKS: "raw_events",
    OUTCOMES: "traces",
    EFFECTS: "effects",
    DEAD_LETTERS: "dead_letters",
}
_WAITING: Final = "waiting"
_TOPIC: Final = CONNECT_PREFIX + "topic"
_OFFSET: Final = CONNECT_PREFIX + "offset"
Names: TypeAlias = tuple[str | None, str]
_UNDECODABLE: Final = (UndecodableRecord, UnknownSchema, ValueError, msgspec.MsgspecError)


def forget(
    state: PartitionState, order: WipeOrder, delivery: WebhookReceived, record: Incoming
) -> list[Outgoing]:
    """Wipe a user's rows and waits; return the records to append, except those of changed rows."""
    before = state.wipes.get(order.user_id)
    same = before if before is not None and before.wipe_id == order.wipe_id else None
    fence = _later(same.fence if same else (), order.fence)
    forgets_instances = _effect(order, delivery, record)
    if same is not None and not same.names and fence == same.fence:
        return [forgets_instances]  # It is read again, and done.
    known = {*map(digest, order.subjects), *(same.digests if same else ())}
    forgotten = state.rows.forget(order.user_id, fence, known)
    names = [order.user_id, *forgotten.subjects, *order.subjects]
    counts: dict[str, int] = {}
    if before is not None and (before.names or same):
        # This wipe, or an earlier one that this one completes, began before: rows are removed
        # already, and their subjects are known.
        names += before.names
        counts = dict(zip(before.found, before.counts, strict=True))
    names = list(dict.fromkeys(names))
    ended = state.waits.forget(names, fence)
    counts = _at_least(counts, {**forgotten.counts, _WAITING: len(ended)})
    wipe = UserForgotten(
        wipe_id=order.wipe_id,
        digests=_digests(names, before),
        names=names,
        fence=fence,
        found=list(counts),
        counts=list(counts.values()),
        ordered_at_ms=delivery.received_at_ms,
        # Not those of an earlier wipe, nor of what was received while this one was ordered.
        accepted=tuple(
            name
            for name in (before.accepted if before else ())
            if not is_before(fence, name.partition, name.offset)
        ),
        topics=tuple(TopicEnds(topic, list(ends)) for topic, ends in order.topics.items()),
    )
    return [state.wipes.put(wipe), *ended, forgets_instances]


def _later(fence: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the later offsets of two fences."""
    return list(map(max, zip_longest(fence, other, fillvalue=0)))


def _effect(order: WipeOrder, delivery: WebhookReceived, record: Incoming) -> Outgoing:
    effect = forget_effect(order, delivery)
    key = msgspec.json.encode((effect.event_id, effect.name))
    return Outgoing(EFFECTS, record.partition, key, encode(effect))


def was_wiped(
    state: PartitionState, placement: Placement, delivery: WebhookReceived, first: int
) -> bool:
    """Return whether a delivery in `webhooks` is wiped, by its first offset."""
    fences = state.wipes.fences
    if not fences.reach(state.partition, first):
        return False
    names = names_of(delivery, placement.user_of(delivery))
    return fences.cover(names, state.partition, first)


def comes_back(
    state: PartitionState, placement: Placement, delivery: WebhookReceived, user: str | None
) -> bool:
    """Return whether a user who was wiped has connected again by a delivery in `webhooks`."""
    kind = placement.kind_of(delivery)
    if kind is None or kind.after_wipe is not AfterWipe.COMES_BACK:
        return False
    names = (user, delivery.reference, delivery.subject)
    wiped_ms = state.wipes.fences.wiped_since(names, delivery.received_at_ms)
    if wiped_ms is None or not is_sent_after(delivery.sent_at_ms, wiped_ms):
        return False
    try:
        return kind.skip_reason(delivery.body) is None
    except MalformedPayload:
        return False


def accepted_by(
    delivery: Delivery, user: str | None, partition: int, offset: int
) -> list[NameAccepted]:
    """Return the names that are accepted again by a delivery at a position, the user's first."""
    names = dict.fromkeys((user, delivery.reference, delivery.subject))
    at = delivery.received_at_ms, partition, offset
    return [NameAccepted(digest(name), *at) for name in names if name]


def accept_here(state: PartitionState, event: WebhookAdmitted) -> list[Outgoing]:
    """Accept a user who has come back by a delivery that came by a hop; return the records."""
    if not event.comes_back:
        return []
    names = accepted_by(event, event.user_id, event.partition, event.offset)
    return state.wipes.accept_early(names) if event.user_id else state.wipes.accept(names)


def is_skipped(
    state: PartitionState, placement: Placement, delivery: Delivery, user: str | None
) -> bool:
    """Return whether a delivery is skipped that may name a wiped user or connection.

    That is for a delivery by which the user does not come back.
    """
    kind, names = placement.kind_of(delivery), (user, delivery.reference, delivery.subject)
    if kind is not None and kind.after_wipe is AfterWipe.ACCEPTED:
        return False
    wiped_ms = state.wipes.fences.skips_since(names, delivery.received_at_ms, delivery.origin)
    if wiped_ms is None:
        return False
    if kind is not None and kind.unnamed is not None and user and not delivery.subject:
        is_later = is_sent_after(delivery.sent_at_ms, wiped_ms)
        return not (is_later and state.rows.of_user(kind.unnamed.table, user))
    return True


def names_of(delivery: WebhookReceived, user: str | None) -> Names:
    """Return the names by which a wipe finds a delivery in `webhooks`: its user, or its subject."""
    return (user or delivery.reference, "" if user else delivery.subject)


def is_wiped(state: PartitionState, event: WebhookAdmitted) -> bool:
    """Return whether a delivery that came by a hop is wiped."""
    names = (event.user_id,) if event.user_id else (event.reference, event.subject)
    return state.wipes.fences.cover(names, event.partition, event.offset)


def subject_of(key: bytes | None) -> str:
    """Return the subject of a hop in the topic `unresolved`."""
    subject, _ = msgspec.json.decode(key or b"", type=tuple[str, str])
    return subject


def _at_least(known: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    """Merge counts of an interrupted search with those of a later one, which finds the rest."""
    return {name: max(known.get(name, 0), counts.get(name, 0)) for name in {**known, **counts}}


def _digests(names: Iterable[str], before: UserForgotten | None) -> list[str]:
    known = [] if before is None else before.digests
    return list(dict.fromkeys([*map(digest, names), *known]))


class WipeSearch:
    """Searches the records of a partition for those of a wipe, topic by topic."""

    def __init__(self, wipe: UserForgotten, partition: int) -> None:
        self.wipe = wipe
        self._partition = partition
        self._names = set(wipe.names)
        self._bytes = [name.encode() for name in wipe.names]
        self._pattern = _pattern_of(wipe.names)
        self._events: set[str] = set()
        #: Deliveries of the user that are not wiped: they came after the fence.
        self._later: set[str] = set()
        #: By topic, keys whose last record is the user's, with the delivery if it is counted.
        self._keys: defaultdict[str, dict[bytes, str | None]] = defaultdict(dict)
        #: Deliveries that are removed already, and counted all the same.
        self._removed: set[bytes] = set()
        self._matchers = {
            OUTCOMES: self._of_outcome,
            WEBHOOKS: self._of_delivery,
            EVENTS: self._of_hop,
            UNRESOLVED: self._of_hop,
            EFFECTS: self._of_effect,
            DEAD_LETTERS: self._of_letter,
        }

    def examine(self, topic: str, records: Iterable[Incoming]) -> None:
        """Examine records of a topic, in order."""
        matches, keys = self._matchers[topic], self._keys[topic]
        for record in records:
            key = record.key or b""
            if record.value is None:
                self._note_removal(topic, record, counted=keys.pop(key, None) is not None)
                continue
            # A record that cannot be decoded is not ours, and is a dead letter.
            with contextlib.suppress(*_UNDECODABLE):
                event_id = matches(record)
                if event_id is not None:
                    keys[key] = event_id
                elif topic == WEBHOOKS and self._is_order(record):
                    keys[key] = None

    def exclude(self, outcomes: Iterable[Incoming]) -> None:
        """Exclude records of deliveries that turn out to be another user's: they name this one.

        All outcomes are read again for that, after the other topics. To remember all deliveries of
        other users would take some 110 bytes for each delivery that the partition ever received.

        Args:
            outcomes: Records of the topic `webhook-outcomes`.
        """
        others: set[str] = set()
        for record in outcomes:
            with contextlib.suppress(*_UNDECODABLE):
                outcome = decode(record.value, OutcomeRecorded) if record.value else None
                if outcome and outcome.event_id in self._events and not self._may_be_of(outcome):
                    others.add(outcome.event_id)
        if others:
            for keys in self._keys.values():
                for key in [key for key, event_id in keys.items() if event_id in others]:
                    del keys[key]
            self._removed -= {event_id.encode() for event_id in others}

    def _may_be_of(self, outcome: OutcomeRecorded) -> bool:
        return outcome.user_id in (None, self.wipe.names[0])

    def _note_removal(self, topic: str, record: Incoming, *, counted: bool) -> None:
        """Count a delivery that was removed after the wipe was ordered: it was a duplicate."""
        is_since = not is_before(self.wipe.fence, self._partition, record.offset)
        if counted and topic == WEBHOOKS and is_since:
            self._removed.add(record.key or b"")

    def removals(self, topic: str, headers: Headers) -> list[Outgoing]:
        """Return the tombstones of matching records of a topic."""
        fenced = headers if topic == OUTCOMES else None
        return [Outgoing(topic, self._partition, key, None, fenced) for key in self._keys[topic]]

    def counted(self) -> UserForgotten:
        """Return the wipe with its counts, to be durable before any record is removed."""
        counts = {
            name: sum(event_id is not None for event_id in self._keys[topic].values())
            for topic, name in _COUNTED.items()
        }
        counts[_COUNTED[WEBHOOKS]] += len(self._removed - self._keys[WEBHOOKS].keys())
        counts = _at_least(dict(zip(self.wipe.found, self.wipe.counts, strict=True)), counts)
        return msgspec.structs.replace(self.wipe, found=list(counts), counts=list(counts.values()))

    def done(self, now_ms: int) -> UserForgotten:
        """Return the wipe when the search is done: without names."""
        return msgspec.structs.replace(self.counted(), names=[], done_at_ms=now_ms)

    # Each of these returns the delivery of a record that is the user's, empty without one, or None.

    def _is_order(self, record: Incoming) -> bool:
        order = wipe_order_of(decode(record.value, WebhookReceived))
        return order is not None and order.user_id == self.wipe.names[0]

    def _of_delivery(self, record: Incoming) -> str | None:
        delivery = decode(record.value, WebhookReceived)
        if delivery.source == SOURCE and delivery.type == TYPE:
            return None
        named = self._named_by(delivery)
        return self._theirs(delivery.event_id, named, self._partition, record.offset)

    def _named_by(self, delivery: WebhookReceived) -> AbstractSet[str | None]:
        """Return whom a delivery names: an unreadable one may do so anywhere."""
        if delivery.type != UNREADABLE:
            return {delivery.reference, delivery.subject}
        texts = (delivery.body, *(text.encode() for text in delivery.headers))
        return self._names if any(map(self._pattern.search, texts)) else frozenset()

    def _of_outcome(self, record: Incoming) -> str | None:
        outcome = decode(record.value, OutcomeRecorded)
        if not self._may_be_of(outcome):
            return None
        named = {outcome.user_id, outcome.subject}
        return self._theirs(outcome.event_id, named, outcome.partition, outcome.offset)

    def _of_hop(self, record: Incoming) -> str | None:
        if record_name(record.value) == "row_rebuilt":
            is_row = self._is_row(decode(record.value, RowRebuilt), record.key or b"")
            return "" if is_row else None
        event = decode(record.value, WebhookAdmitted)
        if event.user_id not in (None, self.wipe.names[0]):
            return None
        named = {event.user_id, event.reference, event.subject}
        return self._theirs(event.event_id, named, event.partition, event.offset)

    def _is_row(self, rebuilt: RowRebuilt, key: bytes) -> bool:
        """Return whether a rebuilt row, on its way to its owner, is the user's."""
        table = TABLE_BY_NAME.get(rebuilt.table)
        if table is None or rebuilt.row is None:
            return any(name in key for name in self._bytes)
        return user_in(table, decode_row(table, rebuilt.row)) in self._names

    def _theirs(
        self, event_id: str, named: AbstractSet[str | None], partition: int, offset: int
    ) -> str | None:
        if named & self._names:
            is_wiped = is_before(self.wipe.fence, partition, offset)
            (self._events if is_wiped else self._later).add(event_id)
        return event_id if event_id in self._events else None

    def _of_effect(self, record: Incoming) -> str | None:
        """Match by the delivery, or if that is not known, by a name.

        A worker that died may have left an effect, and the delivery was removed or skipped since.
        A delivery of another user may mention them, and its effect is carried out.
        """
        event_id = decode(record.value, EffectDecided).event_id
        if event_id in self._events:
            return event_id
        if event_id in self._later or not self._pattern.search(record.value or b""):
            return None
        self._events.add(event_id)
        return event_id

    def _of_letter(self, record: Incoming) -> str | None:
        event_id = next((v.decode() for name, v in record.headers if name == EVENT_ID and v), "")
        if not event_id:
            return "" if any(name in (record.value or b"") for name in self._bytes) else None
        topic = text_header(record, _TOPIC)
        if event_id in self._events:
            return event_id
        if topic in (EVENTS, UNRESOLVED):
            return self._of_hop(record)  # Its delivery may be in another partition.
        if topic == EFFECTS:
            return self._of_effect(record)  # The same, if partitions were added since (ADR 0101).
        if topic != WEBHOOKS:
            return None
        delivery, offset = decode(record.value, WebhookReceived), text_header(record, _OFFSET)
        named = self._named_by(delivery)
        return self._theirs(event_id, named, self._partition, int(offset or 0))


def _pattern_of(names: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern of names in a body, as text or escaped in JSON, but not of longer names."""
    spellings = {text for name in names for text in (name, json.dumps(name)[1:-1])}
    either = b"|".join(re.escape(text.encode()) for text in sorted(spellings))
    return re.compile(rb"(?<![\w-])(?:%s)(?![\w-])" % either)


# -- order wipes: append a delivery `user_wiped` to every partition of `webhooks`, after its fence

#: The hexadecimal digits of an event id.
_ID_CHARS = 32
#: Orders of one wipe; see `processors.wipes`.
_ORDERS: Final = 2


class WipeLog:
    """Orders wipes. A wipe that has been ordered is carried out, whichever processes crash."""

    def __init__(
        self, *, cluster: Cluster, clock: Callable[[], int], topics: Sequence[str] = ()
    ) -> None:
        self._clock = clock
        #: Topics of sources.
        self._topics = topics
        self._appender = Appender(cluster=cluster, client_id="headwater-wipes")
        self._offsets = Offsets(cluster, "headwater-wipes")

    async def stop(self) -> None:
        """Disconnect."""
        await self._offsets.stop()
        await self._appender.stop()

    async def order(self, user_id: str, wipe_id: str, subjects: Iterable[str] = ()) -> int:
        """Order a wipe; return, when it is durable, how many partitions carry it out.

        Args:
            user_id: The user.
            wipe_id: Id of the wipe.
            subjects: The user's subjects as far as they are known.

        Raises:
            BrokerUnavailable: Some partitions may have it; the call can be repeated safely.
        """
        partitions, now_ms = range(await self.partitions()), self._clock()
        ends = [await self._offsets.ends([WEBHOOKS], partition) for partition in partitions]
        fence = tuple(end[WEBHOOKS] for end in ends)
        topics = await self._offsets.ends_of(self._topics) if self._topics else {}
        for number in range(_ORDERS):
            order = WipeOrder(wipe_id, user_id, fence, tuple(subjects), topics)
            sent = await self._appender.append_or_stop(order_records(order, number, now_ms))
            at = {batch.partition: offset for batch, offset in sent}
            fence = tuple(at[partition] for partition in partitions)
        return len(partitions)

    async def partitions(self) -> int:
        """Return how many partitions carry out each wipe.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        return await self._appender.partitions(WEBHOOKS)


def order_records(order: WipeOrder, number: int, now_ms: int) -> list[Outgoing]:
    """Return the records of an order of a wipe, one for each partition.

    Args:
        order: The order.
        number: Its number among the orders of the wipe.
        now_ms: The time, in Unix milliseconds; the same for all orders of the wipe.
    """
    body = msgspec.json.encode(order)
    records = []
    for partition in range(len(order.fence)):
        identity = f"{TYPE}\0{order.wipe_id}\0{partition}\0{number}"
        event_id = sha256(identity.encode()).hexdigest()[:_ID_CHARS]
        delivery = WebhookReceived(
            event_id=event_id,
            request_id=order.wipe_id,
            source=SOURCE,
            type=TYPE,
            subject=order.user_id,
            sent_at_ms=now_ms,
            updated_at_ms=0,
            received_at_ms=now_ms,
            body=body,
        )
        records.append(Outgoing(WEBHOOKS, partition, event_id.encode(), encode(delivery)))
    return records
