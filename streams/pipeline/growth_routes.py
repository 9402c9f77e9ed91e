"""Where records belong when the topics get more partitions, without I/O (ADR 0101).

The partition of a key is its hash modulo the number of partitions. If the new number is a multiple
of the old one, the keys of a partition are divided among that partition and new ones: of 4
partitions that become 12, partition 1 is divided among 1, 5 and 9, its targets. A record keeps its
offset in its target; the other targets have a gap record at that offset. So offsets that other
records, Postgres and clients refer to stay valid, and only partition numbers may be others.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.providers.provider import Placement
from headwater.processors.wipes import user_in, wipe_order_of
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.epochs import is_claim
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.history import (
    NO_LEADER_EPOCH,
    HistoryAppended,
    LeaderEpochNoted,
    instance_key,
    key_of_record,
)
from headwater.schemas.installed_tables import TABLE_BY_TOPIC
from headwater.schemas.records import OutcomeRecorded, UserForgotten, WebhookReceived
from headwater.schemas.tables import Owner, Table, begins_with_user
from headwater.schemas.topics import (
    ADMISSIONS,
    DEAD_LETTERS,
    EFFECTS,
    EVENTS,
    OUTCOMES,
    SKIPPED,
    TRACES,
    UNRESOLVED,
    WAITING,
    WEBHOOKS,
    WIPES,
    WORKFLOW_COMMANDS,
    WORKFLOW_HISTORY,
    WORKFLOW_REPLIES,
    WORKFLOW_SNAPSHOTS,
    Topic,
)
from headwater.streams.kafka.records import Incoming, partition_of

#: Key of records of the history that are about no instance.
_NO_INSTANCE: Final = instance_key("", "").encode()
_UNDECODABLE: Final = (UndecodableRecord, UnknownSchema, ValueError, msgspec.MsgspecError)


class Treatment(StrEnum):
    """What the new partitions of a topic receive."""

    #: Every record goes to the target of its owner.
    DIVIDED = "divided"
    #: Every target has all records.
    REPEATED = "repeated"
    #: All records stay in their partition; new partitions are empty.
    KEPT = "kept"
    #: No records, only their offsets: all of them were read, and later offsets must be greater.
    NUMBERED = "numbered"
    #: Nothing: what was there can be computed again, or no process waits for it.
    EMPTIED = "emptied"


_TREATMENTS: Final = MappingProxyType(
    {
        WEBHOOKS: Treatment.DIVIDED,
        # A claim does not name its owner. Claims of other partitions' deliveries are never used.
        ADMISSIONS: Treatment.REPEATED,
        EVENTS: Treatment.NUMBERED,
        UNRESOLVED: Treatment.NUMBERED,
        WAITING: Treatment.DIVIDED,
        WIPES: Treatment.REPEATED,
        EFFECTS: Treatment.NUMBERED,
        OUTCOMES: Treatment.DIVIDED,
        TRACES: Treatment.KEPT,
        DEAD_LETTERS: Treatment.KEPT,
        SKIPPED: Treatment.KEPT,
        WORKFLOW_COMMANDS: Treatment.NUMBERED,
        WORKFLOW_HISTORY: Treatment.DIVIDED,
        WORKFLOW_SNAPSHOTS: Treatment.EMPTIED,
        WORKFLOW_REPLIES: Treatment.EMPTIED,
    }
)


def treatment_of(topic: Topic) -> Treatment:
    """Return the treatment of a topic of the catalog.

    Raises:
        ValueError: None is declared for it.
    """
    if topic.name in TABLE_BY_TOPIC:
        return Treatment.DIVIDED
    if "all in partition 0" in topic.key:
        return Treatment.KEPT
    if topic.name not in _TREATMENTS:
        raise ValueError(f"expected a topic that may get more partitions, found {topic.name}")
    return _TREATMENTS[topic.name]


class Layout(NamedTuple):
    """Numbers of partitions; the second one is a multiple of the first one."""

    before: int
    after: int

    def targets(self, partition: int) -> range:
        """Return the partitions among which the keys of a partition are divided."""
        return range(partition, self.after, self.before)

    def place(self, owner: str, partition: int) -> int:
        """Return the target of an owner's record; if its partition is not the owner's, that one."""
        target = partition_of(owner.encode(), self.after)
        return target if target % self.before == partition else partition


#: Returns the names that may own a record, the likeliest first; the first one of its partition
#: does.
_Owners: TypeAlias = Callable[[Incoming], tuple[str | None, ...]]


class Router:
    """Finds the targets of a partition's records, which must be read in order, all of them.

    Args:
        topic: The topic.
        partition: The partition.
        layout: Numbers of partitions.
        placement: Owners of deliveries.
        removed: Keys of its tombstones, with the targets of later records (`note_removals`).
    """

    def __init__(
        self,
        topic: Topic,
        partition: int,
        layout: Layout,
        placement: Placement,
        removed: Mapping[bytes, AbstractSet[int]] = MappingProxyType({}),
    ) -> None:
        self.treatment = treatment_of(topic)
        self._topic = topic.name
        self._partition = partition
        self._layout = layout
        self._targets = tuple(layout.targets(partition))
        self._placement = placement
        self._removed = removed
        #: Targets of earlier records, of keys that have a tombstone.
        self._earlier: dict[bytes, set[int]] = {}
        self._owners = self._owners_in_topic()

    @property
    def targets(self) -> tuple[int, ...]:
        """The partitions that have the offsets of this one."""
        if self.treatment is Treatment.EMPTIED:
            return ()
        return self._targets[:1] if self.treatment is Treatment.KEPT else self._targets

    def route(self, record: Incoming) -> tuple[int, ...]:
        """Return the targets of a record."""
        if self.treatment is not Treatment.DIVIDED:
            is_copied = self.treatment in (Treatment.REPEATED, Treatment.KEPT)
            return self.targets if is_copied else ()
        key = record.key or b""
        if is_claim(record.headers) or self._is_of_partition(record):
            return self._targets
        if record.value is None:
            return self._targets_of_tombstone(record)
        target = self._target(record)
        if key in self._removed:
            self._earlier.setdefault(key, set()).add(target)
        return (target,)

    def _targets_of_tombstone(self, record: Incoming) -> tuple[int, ...]:
        """Return where records of the key of a tombstone are.

        In another partition it would be read in any order with a later record of the key. Earlier
        records may be gone by compaction.
        """
        if self.is_owner_in_key:
            return (self._target(record),)
        key = record.key or b""
        targets = self._earlier.get(key) or self._removed.get(key) or (self._partition,)
        return tuple(sorted(targets))

    @property
    def is_owner_in_key(self) -> bool:
        """Whether all records of a key go to one target, and which one depends only on the key."""
        table = TABLE_BY_TOPIC.get(self._topic)
        if table is None:
            return self._topic in (WAITING, WORKFLOW_HISTORY)
        return _is_owner_in_key(table)

    def value(self, record: Incoming) -> bytes | None:
        """Return the value of the copy of a record, without what is only true of the old ones.

        A fence gets the offsets of new partitions, and the leader epoch of commands is forgotten.
        """
        value: bytes | None = record.value
        if not value:
            return value
        if self._topic == WIPES:
            return self._with_all_offsets(value)
        if self._topic == WORKFLOW_HISTORY and key_of_record(record.key or b"") == _NO_INSTANCE:
            return _without_leader_epoch(value)
        return value

    def _with_all_offsets(self, value: bytes) -> bytes:
        """Return a wipe whose fence has the offsets of new partitions."""
        wipe = decode(value, UserForgotten)
        before, after = self._layout
        if len(wipe.fence) != before or before == after:
            return value
        fence = [wipe.fence[number % before] for number in range(after)]
        return encode(msgspec.structs.replace(wipe, fence=fence))

    def _is_of_partition(self, record: Incoming) -> bool:
        """Return whether a record of the history is about its partition, as a claim is."""
        if self._topic != WORKFLOW_HISTORY or record.value is None:
            return False
        try:
            return not decode(record.value, HistoryAppended).workflow
        except _UNDECODABLE:
            return False

    def _target(self, record: Incoming) -> int:
        try:
            owners = self._owners(record)
        except _UNDECODABLE:
            return self._partition
        before = self._layout.before
        for owner in owners:
            if owner and partition_of(owner.encode(), before) == self._partition:
                return self._layout.place(owner, self._partition)
        return self._partition

    def _owners_in_topic(self) -> _Owners:
        table = TABLE_BY_TOPIC.get(self._topic)
        if table is not None:
            return lambda record: (_owner_of_row(table, record),)
        return {
            WEBHOOKS: self._owners_of_delivery,
            WAITING: _owners_of_wait,
            OUTCOMES: _owners_of_outcome,
            WORKFLOW_HISTORY: _owners_of_event,
        }.get(self._topic, lambda _: ())

    def _owners_of_delivery(self, record: Incoming) -> tuple[str | None, ...]:
        delivery = decode(record.value, WebhookReceived)
        if wipe_order_of(delivery) is not None:
            return ()
        return (self._placement.owner_of(delivery),)


def note_removals(
    removed: dict[bytes, set[int]], records: Iterable[Incoming], router: Router
) -> None:
    """Note the keys of tombstones, with the targets of records that follow one of their key.

    Args:
        removed: What is known from the records before. Changed in place.
        records: Records of a partition, in order.
        router: Finds their targets.
    """
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            removed.setdefault(record.key, set())
        elif (later := removed.get(record.key)) is not None:
            later.update(router.route(record))


def _is_owner_in_key(table: Table) -> bool:
    return table.owner is Owner.SUBJECT or begins_with_user(table)


def _owner_of_row(table: Table, record: Incoming) -> str | None:
    if _is_owner_in_key(table):
        return msgspec.json.decode(record.key or b"", type=tuple[str, ...])[0]
    return user_in(table, decode_row(table, record.value or b""))


def _owners_of_wait(record: Incoming) -> tuple[str | None, ...]:
    _, subject, _ = msgspec.json.decode(record.key or b"", type=tuple[str, str, str])
    return (subject,)


def _owners_of_outcome(record: Incoming) -> tuple[str | None, ...]:
    """Return subject, user and id: the partition that resolved the user recorded the outcome."""
    outcome = decode(record.value, OutcomeRecorded)
    return (outcome.subject, outcome.user_id, outcome.event_id)


def _without_leader_epoch(value: bytes) -> bytes:
    """Return a record of the history without the leader epoch of the commands that it notes.

    The new topic of commands begins with epochs of its own: compared with those of the old one, it
    would look as if commands were lost. A note of lost commands stays as it is, because without a
    leader epoch it would also be about the outcomes of commands that were not lost.
    """
    try:
        record = decode(value, HistoryAppended)
    except _UNDECODABLE:
        return value
    noted = record.events[0] if record.events else None
    if not isinstance(noted, LeaderEpochNoted) or noted.lost_from >= 0:
        return value
    events = (LeaderEpochNoted(NO_LEADER_EPOCH), *record.events[1:])
    return encode(msgspec.structs.replace(record, events=events))


def _owners_of_event(record: Incoming) -> tuple[str | None, ...]:
    return (key_of_record(record.key or b"").decode(),)
