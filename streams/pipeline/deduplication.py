"""Processing of deliveries: drop duplicates, resolve users, and turn deliveries into rows.

It takes the batches of a commit unit and the state of their partition, and returns the records to
append. Where units begin and end does not change the rows. It does no I/O except in the store of
that state, so it is tested as plain code. The partition runner appends the records, and only then
writes the store and lets the batches be committed. An error in `step` ends the worker: state that
may be ahead of the log is discarded with the process, and restored from the log.

The first offset of an event id is the valid one. It is claimed in the topic `admissions`, one
record per unit. A record is a duplicate if its id was claimed at a lower offset. After a crash a
record meets its own claim and is processed again, which changes nothing.

A delivery that the partition owns is processed where it is read (`processing`). Any other takes one
hop, to `events` or `unresolved`, and is processed there in the same way, with the same state: one
worker owns a partition number of all three topics.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec

from headwater.processors.evaluations import Evaluator
from headwater.processors.providers.provider import Placement, reroute
from headwater.processors.triggers.rules import Rule
from headwater.processors.wipes import user_in, wipe_order_of
from headwater.schemas.codec import decode, decode_row, encode, record_name
from headwater.schemas.errors import NotYetReadable, UndecodableRecord
from headwater.schemas.installed_tables import ALL_TABLES, TABLE_BY_NAME
from headwater.schemas.records import DuplicateDropped, RowRebuilt, WebhookAdmitted, WebhookReceived
from headwater.schemas.topics import (
    ADMISSIONS,
    EVENTS,
    TRACES,
    UNRESOLVED,
    WAITING,
    WEBHOOKS,
    WIPES,
)
from headwater.streams.kafka.dead_letters import REPLAY_OF, RESTATED, text_header
from headwater.streams.kafka.dead_letters import original as original_headers
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.pipeline.partition_state import Claim, PartitionState
from headwater.streams.pipeline.processing import Processing
from headwater.streams.pipeline.record_batch import RecordBatch
from headwater.streams.pipeline.wiping import (
    accept_here,
    accepted_by,
    comes_back,
    forget,
    is_skipped,
    is_wiped,
    subject_of,
    was_wiped,
)

_ROW_REBUILT: Final = "row_rebuilt"
#: Bytes of deliveries whose waits one tick ends: those of hours may expire after an outage.
_EXPIRED_BYTES: Final = 8 * 1024 * 1024


class Intake:
    """Turns deliveries into rows, outcomes, effects and dead letters."""

    #: Stage name in outcomes and dead letters.
    name: ClassVar[str] = "intake"
    #: Topics it consumes, partitioned alike: a partition number of all of them has one state.
    sources: ClassVar[tuple[str, ...]] = (WEBHOOKS, EVENTS, UNRESOLVED)
    #: Topics, partitioned like the sources, that the states are restored from.
    memory: ClassVar[tuple[str, ...]] = (
        ADMISSIONS,
        WAITING,
        WIPES,
        *(table.topic for table in ALL_TABLES),
    )

    def __init__(
        self,
        partitions: int,
        *,
        placement: Placement,
        park_for_ms: int,
        rules: Sequence[Rule] = (),
        evaluator: Evaluator | None = None,
    ) -> None:
        self._placement = placement
        self._partitions = partitions
        self._park_for_ms = park_for_ms
        self._rules = tuple(rules)
        self._evaluator = evaluator
        self._handlers = {
            WEBHOOKS: self._take_webhook,
            EVENTS: self._take_event,
            UNRESOLVED: self._take_unresolved,
        }

    def begin(self, state: PartitionState, now_ms: int) -> Processing:
        """Begin a commit unit: its `results` must be durable before its batches are committed."""
        partition, headers = state.partition, state.headers
        output = RecordBatch(stage=self.name, partition=partition, headers=headers, now_ms=now_ms)
        return Processing(
            self._placement, self._partitions, state, output, self._rules, self._evaluator
        )

    def step(self, unit: Processing, topic: str, records: Sequence[Incoming], now_ms: int) -> None:
        """Process a batch of a commit unit."""
        unit.output.now_ms = now_ms
        handle = self._handlers[topic]
        if topic == WEBHOOKS:
            unit.state.claims.load(record.key for record in records if record.key)
        for record in records:
            try:
                handle(unit, record)
            except (NotYetReadable, StoreCorrupted):
                raise
            except Exception as error:  # noqa: BLE001, one bad record is one dead letter
                unit.failed(record, error)

    def tick(self, state: PartitionState, now_ms: int) -> list[Outgoing]:
        """Expire waits that lasted too long, and event ids that senders no longer retry."""
        state.claims.expire(now_ms)
        unit = self.begin(state, now_ms)
        unit.expire_waits(self._park_for_ms, bytes_max=_EXPIRED_BYTES)
        return unit.results()

    def _take_webhook(self, unit: Processing, record: Incoming) -> None:
        if record.value is None:
            return  # The tombstone of a wiped delivery.
        state = unit.state
        delivery = decode(record.value, WebhookReceived)
        order = wipe_order_of(delivery)
        if order is not None:
            unit.write_users_seen()  # Users seen before the wipe must not be written after.
            unit.output.records += forget(state, order, delivery, record)
            return
        if record.key != delivery.event_id.encode():
            raise UndecodableRecord(
                f"expected the event id as key, {delivery.event_id!r}, found {record.key!r}"
            )
        original = original_of(state, self._placement, delivery, record)
        # A wipe finds the names that an unreadable delivery turns out to have.
        delivery = reroute(delivery, self._placement.providers)
        if was_wiped(state, self._placement, delivery, original.offset):
            state.claims.claim(original.claims, Claim(record.offset, delivery.sent_at_ms))
            unit.output.add(_removed(record))
            return
        user = self._placement.user_of(delivery)
        returns = comes_back(state, self._placement, delivery, user)
        if not returns and is_skipped(state, self._placement, delivery, user):
            # Not claimed: when the user has come back, the same bytes are new.
            unit.skip_wiped(delivery, record)
        elif original.offset < record.offset and not is_replayed(record):
            self._drop(unit, delivery, record, original)
        else:
            state.claims.claim(original.claims, Claim(record.offset, delivery.sent_at_ms))
            if returns:
                names = accepted_by(delivery, user, state.partition, original.offset)
                unit.output.records += state.wipes.accept(names)
            unit.admit(delivery, record, original.offset, comes_back=returns)

    @staticmethod
    def _drop(
        unit: Processing, delivery: WebhookReceived, record: Incoming, original: "Original"
    ) -> None:
        """Drop a duplicate.

        Compaction keeps the last record of an event id. If that was sent later than the first, by
        which rows are ordered, a rebuild would compute other rows; so the delivery is appended
        once more, as of the time of the first.
        """
        if text_header(record, RESTATED) is not None:
            return
        unit.output.add(_dropped(delivery, record, original, unit.output.now_ms))
        sent_at_ms = original.sent_at_ms
        if sent_at_ms not in (None, delivery.sent_at_ms):
            restated = msgspec.structs.replace(delivery, sent_at_ms=sent_at_ms)
            headers = [*original_headers(record), (RESTATED, str(record.offset).encode())]
            out = Outgoing(record.topic, record.partition, record.key, encode(restated), headers)
            unit.output.add(out)

    def _take_event(self, unit: Processing, record: Incoming) -> None:
        if record.value is None:
            return
        if record_name(record.value) == _ROW_REBUILT:
            unit.write_users_seen()  # As for a wipe.
            _take_rebuilt(unit.state, record)
            return
        event = decode(record.value, WebhookAdmitted)
        if is_wiped(unit.state, event):
            unit.output.add(_removed(record))
            return
        unit.output.records += accept_here(unit.state, event)
        unit.process_owned(event, record, replayed=is_replayed(record))

    def _take_unresolved(self, unit: Processing, record: Incoming) -> None:
        if record.value is None:
            return
        event = decode(record.value, WebhookAdmitted)
        if is_wiped(unit.state, event):
            unit.output.add(_removed(record))
            return
        unit.output.records += accept_here(unit.state, event)
        unit.process_subject(subject_of(record.key), event, record)


def _removed(record: Incoming) -> Outgoing:
    """Return the tombstone of a wiped delivery's duplicate, replay, or late hop."""
    return Outgoing(record.topic, record.partition, record.key, None)


def _take_rebuilt(state: PartitionState, record: Incoming) -> None:
    rebuilt = decode(record.value, RowRebuilt)
    table = TABLE_BY_NAME.get(rebuilt.table)
    if table is None:
        raise UndecodableRecord(f"expected a table of ours, found {rebuilt.table}")
    row = None if rebuilt.row is None else decode_row(table, rebuilt.row)
    if row is not None:
        row = state.wipes.fences.remaining(table, user_in(table, row), row)
    state.rows.adopt(table, record.key or b"", row, rebuilt.ends)


class Original(NamedTuple):
    """The delivery that a record contains, or that it copies.

    Attributes:
        offset: Its first offset.
        event_id: Its id, or that of the copy if it is not known.
        claims: The ids to claim, if it is not a copy.
        sent_at_ms: When the first delivery with the same id was sent, in Unix milliseconds; None if
            there is none, or it has another id.
    """

    offset: int
    event_id: str
    claims: tuple[str, ...]
    sent_at_ms: int | None = None


def original_of(
    state: PartitionState, placement: Placement, delivery: WebhookReceived, record: Incoming
) -> Original:
    """Return the delivery that a record contains or copies.

    Of most deliveries, the same id at a higher offset is a copy. The id of an event that may recur,
    such as the opening of a connection, also includes its time: that of the provider; without one,
    that of the signature, which is another for each attempt. So an event with the same bytes and
    only a signature's time is a copy unless it was signed after the latest opposite event.
    """
    own, kind, claims = delivery.event_id, placement.kind_of(delivery), state.claims
    claim = claims.known(own)
    new = Original(record.offset, own, (own,))
    if claim is not None:
        new = Original(min(claim.offset, record.offset), own, (own,), claim.sent_at_ms)
    if kind is None or kind.latest is None or is_replayed(record):
        return new
    recurrence = placement.recurrence_of(delivery)
    assert recurrence is not None, "its type may recur"  # noqa: S101
    same_bytes = recurrence.same_bytes
    new = new._replace(claims=(own, same_bytes))
    claims.load_more([same_bytes.encode()])
    first = claims.known(same_bytes)
    if claim is not None or recurrence.has_own_time or first is None:
        return new
    if first.offset >= record.offset:
        return new
    table = kind.lookup.table if kind.lookup else None
    row = None if table is None else state.rows.get(table, (delivery.subject,))
    latest = kind.latest(row)
    if latest.opposite_ms is not None and delivery.sent_at_ms > latest.opposite_ms:
        return new
    return Original(first.offset, latest.same or own, ())


def is_replayed(record: Incoming) -> bool:
    """Return whether a record was appended again, to be processed although it is known."""
    return bool(record.headers) and text_header(record, REPLAY_OF) is not None


def _dropped(
    delivery: WebhookReceived, record: Incoming, original: Original, now_ms: int
) -> Outgoing:
    """Return the trace of a duplicate."""
    dropped = DuplicateDropped(
        request_id=delivery.request_id,
        event_id=original.event_id,
        partition=record.partition,
        offset=record.offset,
        first_offset=original.offset,
        received_at_ms=delivery.received_at_ms,
        at_ms=now_ms,
    )
    return Outgoing(TRACES, record.partition, delivery.request_id.encode(), encode(dropped))
