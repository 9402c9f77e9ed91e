"""What is done with deliveries: drops copies, finds users, and turns deliveries into rows.

It takes a batch and the state of its partition, and says what to append. It does no I/O but for the
store of that state, so it is tested as plain code. The agent appends what it returns, and only then
writes the store and lets the batch be committed. An error in `step` ends the worker: a state that
may be ahead of the log is thrown away with the process, and read again from what is durable.

Of an event id the first offset counts. It is claimed in the topic `admissions`, one record a batch.
A record is a copy when its id was claimed at a lower offset. After a crash a record meets its own
claim and passes again: nothing that follows minds seeing it twice.

What a partition owns is processed where it is read (`processing`). What belongs elsewhere takes one
hop, to `events` or `unresolved`, and is processed there in the same way, with the same state: one
worker owns a partition number of all three topics.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from headwater.processors.evaluations import Evaluator
from headwater.processors.providers.placement import Placement
from headwater.processors.triggers.rules import Rule
from headwater.processors.wipes import order_of, user_in
from headwater.schemas.codec import decode, decode_row, encode, record_name
from headwater.schemas.errors import NotYetReadable, UndecodableRecord
from headwater.schemas.installed_tables import ALL_TABLES, TABLE_BY_NAME
from headwater.schemas.records import (
    DuplicateDropped,
    RowRebuilt,
    WebhookAdmitted,
    WebhookReceived,
)
from headwater.schemas.topics import (
    ADMISSIONS,
    EVENTS,
    TRACES,
    UNRESOLVED,
    WAITING,
    WEBHOOKS,
    WIPES,
)
from headwater.streams.kafka.dead_letters import REPLAY_OF, text_header
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.pipeline.emission import Emission
from headwater.streams.pipeline.partition_state import PartitionState
from headwater.streams.pipeline.processing import Processing
from headwater.streams.pipeline.wiping import forget, is_wiped, subject_of, was_wiped

_ROW_REBUILT: Final = "row_rebuilt"
#: Bytes of the deliveries whose waits a tick ends: after an outage those of hours may be over.
_GIVEN_UP_BYTES: Final = 8 * 1024 * 1024


class Intake:
    """Deliveries in; rows, outcomes, and whatever else comes of them, out."""

    #: Names it in outcomes and dead letters.
    name: ClassVar[str] = "intake"
    #: The topics it consumes, partitioned alike: a partition of all of them has one state.
    sources: ClassVar[tuple[str, ...]] = (WEBHOOKS, EVENTS, UNRESOLVED)
    #: The topics, partitioned like the sources, that the states are read from.
    memory: ClassVar[tuple[str, ...]] = (
        ADMISSIONS,
        WAITING,
        WIPES,
        *(table.topic for table in ALL_TABLES),
    )

    def __init__(
        self,
        *,
        placement: Placement,
        partitions: int,
        park_for_ms: int,
        rules: Sequence[Rule] = (),
        evaluator: Evaluator | None = None,
    ) -> None:
        self._placement = placement
        self._partitions = partitions
        self._park_for_ms = park_for_ms
        self._rules = tuple(rules)
        self._evaluator = evaluator
        self._take = {
            WEBHOOKS: self._take_webhook,
            EVENTS: self._take_event,
            UNRESOLVED: self._take_unresolved,
        }

    def step(
        self, state: PartitionState, topic: str, records: Sequence[Incoming], now_ms: int
    ) -> list[Outgoing]:
        """Processes a batch of one topic: what it returns is durable before that is committed."""
        processing = self._processing(state, now_ms)
        take = self._take[topic]
        if topic == WEBHOOKS:
            state.claims.load(record.key for record in records if record.key)
        for record in records:
            try:
                take(state, processing, record)
            except (NotYetReadable, StoreCorrupted):
                raise
            except Exception as error:  # noqa: BLE001, one bad record is one dead letter
                processing.failed(record, error)
        processing.note_users()
        return state.claims.changed(now_ms) + state.rows.changed() + processing.emission.records

    def tick(self, state: PartitionState, now_ms: int) -> list[Outgoing]:
        """Ends the waits that lasted too long, and forgets what senders retry no more."""
        state.claims.expire(now_ms)
        processing = self._processing(state, now_ms)
        processing.give_up(self._park_for_ms, bytes_max=_GIVEN_UP_BYTES)
        return processing.emission.records

    def _processing(self, state: PartitionState, now_ms: int) -> Processing:
        partition, headers = state.partition, state.headers
        emission = Emission(stage=self.name, partition=partition, headers=headers, now_ms=now_ms)
        return Processing(
            self._placement, self._partitions, state, emission, self._rules, self._evaluator
        )

    def _take_webhook(
        self, state: PartitionState, processing: Processing, record: Incoming
    ) -> None:
        if record.value is None:
            return  # The tombstone of a wiped delivery.
        delivery = decode(record.value, WebhookReceived)
        order = order_of(delivery)
        if order is not None:
            processing.note_users()  # What came before the order is not to be noted after it.
            processing.emission.records += forget(state, order, delivery, record)
            return
        if record.key != delivery.event_id.encode():
            raise UndecodableRecord(
                f"expected the event id as key, {delivery.event_id!r}, found {record.key!r}"
            )
        first = state.claims.first(delivery.event_id, record.offset)
        if was_wiped(state, self._placement, delivery, min(first, record.offset)):
            processing.emission.add(_removed(record))
        elif first < record.offset and not _is_replayed(record):
            processing.emission.add(_dropped(delivery, record, first, processing.emission.now_ms))
        else:
            processing.admit(delivery, record, min(first, record.offset))

    def _take_event(self, state: PartitionState, processing: Processing, record: Incoming) -> None:
        if record.value is None:
            return
        if record_name(record.value) == _ROW_REBUILT:
            _take_rebuilt(state, record)
            return
        event = decode(record.value, WebhookAdmitted)
        if is_wiped(state, event):
            processing.emission.add(_removed(record))
        else:
            processing.own(event, record, replayed=_is_replayed(record))

    def _take_unresolved(
        self, state: PartitionState, processing: Processing, record: Incoming
    ) -> None:
        if record.value is None:
            return
        event = decode(record.value, WebhookAdmitted)
        if is_wiped(state, event):
            processing.emission.add(_removed(record))
            return
        processing.under(subject_of(record.key), event, record)


def _removed(record: Incoming) -> Outgoing:
    """The tombstone of what came back of a wiped delivery: a copy, a replay, or a late hop."""
    return Outgoing(record.topic, record.partition, record.key, None)


def _take_rebuilt(state: PartitionState, record: Incoming) -> None:
    rebuilt = decode(record.value, RowRebuilt)
    table = TABLE_BY_NAME.get(rebuilt.table)
    if table is None:
        raise UndecodableRecord(f"expected a table of ours, found {rebuilt.table}")
    row = None if rebuilt.row is None else decode_row(table, rebuilt.row)
    if row is not None:
        row = state.wipes.fences.left(user_in(table, row), row)
    state.rows.adopt(table, record.key or b"", row, rebuilt.ends)


def _is_replayed(record: Incoming) -> bool:
    return bool(record.headers) and text_header(record, REPLAY_OF) is not None


def _dropped(delivery: WebhookReceived, record: Incoming, first: int, now_ms: int) -> Outgoing:
    """The trace of a copy."""
    dropped = DuplicateDropped(
        request_id=delivery.request_id,
        event_id=delivery.event_id,
        partition=record.partition,
        offset=record.offset,
        first_offset=first,
        received_at_ms=delivery.received_at_ms,
        at_ms=now_ms,
    )
    return Outgoing(TRACES, record.partition, delivery.request_id.encode(), encode(dropped))
