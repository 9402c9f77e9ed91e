"""Records as the topics carry them, for tests of the projections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headwater.projections.deliveries.plan import plan
from headwater.projections.projector.projection import Batch, Span
from headwater.projections.projector.store import Store
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.records import DuplicateDropped, OutcomeRecorded, Stamp
from headwater.schemas.tables import DAILY_SUMMARY, Row, Table, Value
from headwater.schemas.topics import DEAD_LETTERS, OUTCOMES, TRACES
from tests.fakes.delivery_log import an_answer

RECEIVED_AT_MS = 1_767_225_600_000


@dataclass(frozen=True)
class Written:
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    offset: int = 0
    timestamp: int = 1_700_000_000_000


def stamp(event_id: str = "e1", sent_at_ms: int = 1_767_225_600_123, offset: int = 17) -> Stamp:
    return Stamp(0, sent_at_ms, 0, event_id, 3, offset)


def row(table: Table, key: tuple[str, ...], by: Stamp | None = None, **values: Value) -> Row:
    by = by or stamp()
    cells = tuple(values.get(column.name) for column in table.columns)
    return Row(key, cells, tuple(None if cell is None else by for cell in cells))


def table_record(table: Table, row: Row, partition: int = 0) -> Written:
    return Written(table.topic, partition, table.row_key(row.key), encode_row(table, row))


def day(user: str, date: str, partition: int = 0, **values: Value) -> Written:
    return table_record(
        DAILY_SUMMARY, row(DAILY_SUMMARY, (user, "garmin", date), **values), partition
    )


def outcome(event_id: str, partition: int = 0, **values: str | int | None) -> Written:
    record = OutcomeRecorded(
        event_id=event_id,
        request_id=f"req-{event_id}",
        source="terra",
        type="daily",
        subject="t1",
        user_id="user_1",
        status="processed",
        reason="",
        rows=1,
        partition=3,
        offset=17,
        received_at_ms=RECEIVED_AT_MS,
        admitted_at_ms=RECEIVED_AT_MS + 1,
        at_ms=RECEIVED_AT_MS + 250,
        stage="normalize",
        position="events/2@9",
    )
    record = msgspec.structs.replace(record, **values)
    return Written(OUTCOMES, partition, event_id.encode(), encode(record))


def dead_letter(reason: str, dead_at_ms: int = RECEIVED_AT_MS, **ours: str) -> Written:
    headers = {
        **{f"headwater.{name}": value for name, value in ours.items()},
        "__connect.errors.topic": "webhooks",
        "headwater.reason": reason,
        "headwater.dead_at_ms": str(dead_at_ms),
    }
    named = [(name, value.encode()) for name, value in headers.items()]
    return Written(DEAD_LETTERS, 0, b"key", b"value", named)


def dead_letter_gone(offset: int) -> Written:
    """The marker of a dead letter that its topic has no more."""
    headers = [("headwater.expired", f"0@{offset}".encode())]
    return Written(DEAD_LETTERS, 0, None, None, headers)


def duplicate(request_id: str, partition: int = 0, received_at_ms: int = RECEIVED_AT_MS) -> Written:
    record = DuplicateDropped(
        request_id=request_id,
        event_id="e1",
        partition=3,
        offset=18,
        first_offset=17,
        received_at_ms=received_at_ms,
        at_ms=received_at_ms + 5,
    )
    return Written(TRACES, partition, request_id.encode(), encode(record))


def answer(request_id: str, partition: int = 0, **changes: str) -> Written:
    record = an_answer(request_id, **changes)
    return Written(TRACES, partition, request_id.encode(), encode(record))


def batch(records: Sequence[Written], starts: Mapping[tuple[str, int], int]) -> Batch:
    """A batch of records numbered on from where each partition starts."""
    ends = dict(starts)
    numbered = []
    for record in records:
        position = (record.topic, record.partition)
        offset = ends.setdefault(position, 0)
        numbered.append(
            Written(
                record.topic, record.partition, record.key, record.value, record.headers, offset
            )
        )
        ends[position] = offset + 1
    spans = {position: Span(starts.get(position, 0), end) for position, end in ends.items()}
    return Batch(records=numbered, spans=spans, plan=plan(numbered))


async def apply(
    store: Store, records: Sequence[Written], starts: Mapping[tuple[str, int], int] | None = None
) -> None:
    """Applies records on from where Postgres is."""
    places = sorted({(record.topic, record.partition) for record in records})
    await store.apply(batch(records, starts or await store.offsets(places)))
