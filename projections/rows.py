"""Records as rows: what each topic of this projection says, ready for JSON.

Of several records of a key only the newest that can be read is written; a tombstone deletes. What
cannot be read becomes a row of `projection_errors`.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import orjson

from schemas.codec import decode, decode_row
from schemas.errors import HeadwaterError
from schemas.records import DeliveryTraced, OutcomeRecorded, Stamp
from schemas.tables import CONNECTIONS, TABLE_BY_TOPIC, Row, Table
from schemas.topics import DEAD_LETTERS, OUTCOMES, TRACES

__all__ = ["READERS", "TOPICS", "LogRecord", "Rows", "SqlRow", "refusal", "refuse_unknown"]

SqlRow: TypeAlias = dict[str, Any]

#: The topics that this projection reads.
TOPICS: Final = (*TABLE_BY_TOPIC, OUTCOMES, TRACES, DEAD_LETTERS)

#: Shapes of rows whose column list is kept ready; a shape is which delivery set which column.
_SHAPES_MAX: Final = 4_096
#: The largest number that Postgres's bigint, and orjson, can hold.
_NUMBER_MAX: Final = 2**63 - 1
_CONNECT: Final = "__connect.errors."
_OWN: Final = "headwater."
#: What reading a record may raise: not our record, or a moment that no calendar has.
_UNREADABLE: Final = (HeadwaterError, ValueError, OverflowError, OSError, msgspec.MsgspecError)


class LogRecord(Protocol):
    """A record of the log, as aiokafka gives it."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...  # noqa: D102


@dataclass(slots=True)
class Rows:
    """The rows of one plan, by table and key, while it is being made."""

    upserts: dict[str, dict[Any, SqlRow]] = field(default_factory=dict)
    deletes: dict[str, dict[Any, SqlRow]] = field(default_factory=dict)

    def upsert(self, table: str, key: object, row: SqlRow) -> None:
        """Writes a row, in the place of an earlier one of the same key."""
        self.upserts.setdefault(table, {})[key] = row

    def delete(self, table: str, key: object, row: SqlRow) -> None:
        """Deletes the row of a key."""
        self.deletes.setdefault(table, {})[key] = row

    def refuse(self, record: LogRecord, error: str) -> None:
        """Keeps a record that cannot be applied."""
        self.upsert("projection_errors", _place(record), refusal(record, error))


def refusal(record: LogRecord, error: str) -> SqlRow:
    """The row of `projection_errors` of a record."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "error": error,
        "value": _base64(record.value),
    }


def _place(record: LogRecord) -> tuple[str, int, int]:
    return (record.topic, record.partition, record.offset)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


# --- compacted topics: the newest readable record of a key counts -----------------------------


def _read_newest(
    group: list[LogRecord],
    rows: Rows,
    table: str,
    read: Callable[[bytes], SqlRow],
    read_key: Callable[[bytes], SqlRow],
) -> None:
    seen: set[bytes] = set()
    for record in reversed(group):
        key = record.key or b""
        if key in seen:
            continue
        try:
            if record.value is None:
                rows.delete(table, key, read_key(key))
            else:
                rows.upsert(table, key, read(record.value))
        except _UNREADABLE as error:
            rows.refuse(record, str(error))
            continue
        seen.add(key)


def _table_reader(table: Table) -> Callable[[list[LogRecord], Rows], None]:
    names = (*(c.name for c in table.key), *(c.name for c in table.columns))
    key_names = names[: len(table.key)]
    key_decoder = msgspec.json.Decoder(list[str])

    def read(data: bytes) -> SqlRow:
        row = decode_row(table, data)
        sql_row: SqlRow = dict(zip(names, row.key + row.values, strict=True))
        sql_row["column_sources"] = _sources(table, row.stamps)
        if table is CONNECTIONS:
            sql_row["deactivated_at"] = _deactivated_at(row)
        return sql_row

    def read_key(key: bytes) -> SqlRow:
        return dict(zip(key_names, key_decoder.decode(key), strict=True))

    return lambda group, rows: _read_newest(group, rows, table.name, read, read_key)


def _sources(table: Table, stamps: tuple[Stamp | None, ...]) -> SqlRow:
    """Which delivery set which column: every delivery once, then an index for each column."""
    deliveries: dict[int, int] = {}
    shape = [
        None if stamp is None else deliveries.setdefault(id(stamp), len(deliveries))
        for stamp in stamps
    ]
    first_columns = [shape.index(at) for at in range(len(deliveries))]
    return {
        "deliveries": [_delivery(stamps[column]) for column in first_columns],
        "columns": _shape(table.name, tuple(shape)),
    }


def _delivery(stamp: Stamp | None) -> SqlRow:
    assert stamp is not None  # noqa: S101, a shape names only columns that are set
    return {
        "event_id": stamp.event_id,
        "position": stamp.position,
        "sent_at": _moment(stamp.sent_at_ms),
    }


_TABLE_BY_NAME: Final = {table.name: table for table in TABLE_BY_TOPIC.values()}


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(table: str, shape: tuple[int | None, ...]) -> orjson.Fragment:
    """The columns' JSON, ready: most rows of a source are set in the same few ways."""
    names = (column.name for column in _TABLE_BY_NAME[table].columns)
    columns = {name: at for name, at in zip(names, shape, strict=True) if at is not None}
    return orjson.Fragment(orjson.dumps(columns))


def _deactivated_at(row: Row) -> str | None:
    at = CONNECTIONS.index["active"]
    stamp = row.stamps[at]
    return _moment(stamp.sent_at_ms) if stamp is not None and row.values[at] is False else None


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def _read_outcomes(group: list[LogRecord], rows: Rows) -> None:
    def read(data: bytes) -> SqlRow:
        return msgspec.structs.asdict(decode(data, OutcomeRecorded))

    def read_key(key: bytes) -> SqlRow:
        return {"event_id": key.decode()}

    _read_newest(group, rows, "webhook_outcomes", read, read_key)


# --- traces: the longest journey counts ---------------------------------------------------------


def _read_traces(group: list[LogRecord], rows: Rows) -> None:
    longest: dict[str, DeliveryTraced] = {}
    for record in group:
        try:
            if record.value is None:
                request_id = (record.key or b"").decode()
                longest.pop(request_id, None)
                rows.delete("traces", request_id, {"request_id": request_id})
                continue
            traced = decode(record.value, DeliveryTraced)
        except _UNREADABLE as error:
            rows.refuse(record, str(error))
            continue
        held = longest.get(traced.request_id)
        if held is None or len(traced.hops) >= len(held.hops):
            longest[traced.request_id] = traced
        rows.deletes.get("traces", {}).pop(traced.request_id, None)
    for request_id, traced in longest.items():
        hops = [msgspec.structs.asdict(hop) for hop in traced.hops]
        rows.upsert("traces", request_id, {**msgspec.structs.asdict(traced), "hops": hops})


# --- dead letters: original bytes, the story in headers ---------------------------------------


def _read_dead_letters(group: list[LogRecord], rows: Rows) -> None:
    for record in group:
        headers = [(name, _text(value)) for name, value in record.headers]
        story = dict(headers)
        try:
            if f"{_OWN}replayed" in story:
                marker = _replay(record, story)
                place = (record.partition, record.offset)
                rows.upsert("dead_letter_replays", place, marker)
            else:
                rows.upsert("dead_letters", _place(record), _dead_letter(record, headers, story))
        except ValueError as error:
            rows.refuse(record, f"expected the headers of a dead letter, found: {error}")


def _replay(record: LogRecord, story: Mapping[str, str | None]) -> SqlRow:
    partition, offset = (story[f"{_OWN}replayed"] or "").split("@")
    replayed_at_ms = _number(story.get(f"{_OWN}replayed_at_ms"))
    return {
        "partition": _number(partition),
        "offset": _number(offset),
        "replayed_at_ms": record.timestamp if replayed_at_ms is None else replayed_at_ms,
    }


def _dead_letter(
    record: LogRecord,
    headers: list[tuple[str, str | None]],
    story: Mapping[str, str | None],
) -> SqlRow:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "event_id": story.get(f"{_OWN}event_id") or None,
        "request_id": story.get(f"{_OWN}request_id") or None,
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": headers,
        "original_topic": story.get(f"{_CONNECT}topic"),
        "original_partition": _number(story.get(f"{_CONNECT}partition")),
        "original_offset": _number(story.get(f"{_CONNECT}offset")),
        "reason": story.get(f"{_OWN}reason") or "unknown",
        "message": story.get(f"{_CONNECT}exception.message"),
        "stage": story.get(f"{_CONNECT}stage"),
        "dead_at_ms": _number(story.get(f"{_OWN}dead_at_ms")) or record.timestamp,
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _number(text: str | None) -> int | None:
    if not text:
        return None
    number = int(text)
    if abs(number) > _NUMBER_MAX:
        raise ValueError(f"the number {text[:40]}")
    return number


def refuse_unknown(group: list[LogRecord], rows: Rows) -> None:
    """Refuses records of a topic that nobody here reads."""
    for record in group:
        rows.refuse(record, f"expected a record of {', '.join(TOPICS)}, found {record.topic}")


READERS: Final[dict[str, Callable[[list[LogRecord], Rows], None]]] = {
    **{topic: _table_reader(table) for topic, table in TABLE_BY_TOPIC.items()},
    OUTCOMES: _read_outcomes,
    TRACES: _read_traces,
    DEAD_LETTERS: _read_dead_letters,
}
