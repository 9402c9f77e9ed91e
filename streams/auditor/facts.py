"""Apply records of Kafka to the auditor's folds."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from headwater.processors.auditor.deliveries import DeliveryFold, Unsettled
from headwater.processors.auditor.histories import HistoryFold
from headwater.processors.auditor.state import AuditorState
from headwater.processors.runs.claims import Claims
from headwater.processors.wipes import SOURCE as WIPE_SOURCE
from headwater.processors.wipes import TYPE as WIPE_TYPE
from headwater.schemas.codec import decode, record_name
from headwater.schemas.epochs import epoch_of, is_claim
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.history import HistoryAppended
from headwater.schemas.records import DuplicateDropped, OutcomeRecorded, WebhookReceived
from headwater.schemas.topics import (
    DEAD_LETTERS,
    OUTCOMES,
    TRACES,
    UNRESOLVED,
    WEBHOOKS,
    WORKFLOW_HISTORY,
    retention_of,
)
from headwater.streams.kafka.dead_letters import (
    CONNECT_PREFIX,
    EVENT_ID,
    IF_WAITING,
    REPLAY_OF,
    RESTATED,
    text_header,
)
from headwater.streams.kafka.records import Incoming, position_of, text_of

#: Topics that show what became of deliveries; read after `webhooks`, up to earlier ends.
EVIDENCE: Final = (OUTCOMES, TRACES, DEAD_LETTERS)
_UNREADABLE: Final = (UndecodableRecord, UnknownSchema, msgspec.MsgspecError, UnicodeDecodeError)
#: How long before it is deleted a record no longer counts as a proof.
_MARGIN_MS: Final = 24 * 60 * 60 * 1000
_TRACES_KEPT_MS: Final = retention_of(TRACES) - _MARGIN_MS
_LETTERS_KEPT_MS: Final = retention_of(DEAD_LETTERS) - _MARGIN_MS
_DUPLICATE: Final = "duplicate_dropped"


class Facts:
    """Applies records to a state.

    Args:
        state: The state.
        may_recur: Returns whether equal events of a delivery's type may be several events.
    """

    def __init__(self, state: AuditorState, may_recur: Callable[[WebhookReceived], bool]) -> None:
        self.state = state
        self.deliveries = DeliveryFold(state.deliveries)
        self._may_recur = may_recur
        self._apply: dict[str, Callable[[Incoming], None]] = {
            WEBHOOKS: self._delivery,
            OUTCOMES: self._outcome,
            TRACES: self._trace,
            DEAD_LETTERS: self._letter,
            WORKFLOW_HISTORY: self._history,
        }

    def apply(self, records: Iterable[Incoming]) -> None:
        """Apply records of one partition, in order."""
        for record in records:
            self._apply[record.topic](record)

    # -- deliveries

    def _delivery(self, record: Incoming) -> None:
        key = (record.key or b"").decode(errors="replace")
        if record.value is None:
            self.deliveries.wipe(key)
            return
        if record.headers and (
            text_header(record, RESTATED) is not None or text_header(record, IF_WAITING)
        ):
            return  # They may change nothing, and then leave no trace.
        replayed = bool(record.headers) and text_header(record, REPLAY_OF) is not None
        try:
            delivery = decode(record.value, WebhookReceived)
        except _UNREADABLE:
            delivery = None
        if delivery is None or delivery.event_id != key:
            proof_until_ms = record.timestamp + _LETTERS_KEPT_MS  # It is a dead letter.
        elif delivery.source == WIPE_SOURCE and delivery.type == WIPE_TYPE:
            return  # An order to the partition, which has no outcome.
        else:
            recurs = self._may_recur(delivery)
            proof_until_ms = record.timestamp + _TRACES_KEPT_MS if recurs else 0
        unsettled = Unsettled(key, record.timestamp, proof_until_ms, replayed)
        self.deliveries.receive(record.partition, record.offset, unsettled)

    def _outcome(self, record: Incoming) -> None:
        epoch = epoch_of(record.headers)
        claims = self.state.claims.setdefault(record.partition, Claims())
        counts = claims.admit_epoch(epoch)
        if is_claim(record.headers):
            return
        if not counts:
            self.state.ignored += 1
            return
        event_id = (record.key or b"").decode(errors="replace")
        if record.value is None:
            by_owner = epoch is not None
            self.deliveries.remove_outcome(event_id, position_of(record), by_owner=by_owner)
            return
        try:
            outcome = decode(record.value, OutcomeRecorded)
        except _UNREADABLE:
            return
        # One that was reprocessed, or whose rows failed at their owner, has a further outcome.
        is_first = not outcome.replay and outcome.position.startswith((WEBHOOKS, UNRESOLVED))
        self.deliveries.settle(
            outcome.event_id,
            outcome.status,
            outcome.parked_at_ms,
            (outcome.partition, outcome.offset),
            record.partition if is_first else None,
            position_of(record),
        )

    def _trace(self, record: Incoming) -> None:
        try:
            if record.value is not None and record_name(record.value) == _DUPLICATE:
                dropped = decode(record.value, DuplicateDropped)
                self.deliveries.drop_copy(dropped.partition, dropped.offset)
        except _UNREADABLE:
            return

    def _letter(self, record: Incoming) -> None:
        # A dead letter that names its delivery has an outcome besides.
        fields = {name: text_of(value) for name, value in record.headers}
        partition, offset = (fields.get(CONNECT_PREFIX + name, "") for name in _POSITION)
        if fields.get(CONNECT_PREFIX + "topic") != WEBHOOKS or fields.get(EVENT_ID):
            return
        if partition.isdecimal() and offset.isdecimal():
            self.deliveries.refuse(int(partition), int(offset))

    # -- histories

    def _history(self, record: Incoming) -> None:
        if record.value is None:
            return  # It deletes a record of a deleted instance.
        try:
            appended = decode(record.value, HistoryAppended)
        except _UNREADABLE:
            return  # As for every reader; what follows it shows a gap.
        history = self.state.history(record.partition)
        HistoryFold(record.partition, history).apply(record.offset, appended)


_POSITION: Final = ("partition", "offset")
