"""Records as rows: what each topic of this projection says, ready for JSON.

Of several records of a key only the newest that can be read is written; a tombstone deletes. What
cannot be read becomes a row of `projection_errors`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec
import orjson

from headwater.projections.projector.records import (
    UNREADABLE,
    LogRecord,
    SqlRow,
    base64_text,
    refusal,
)
from headwater.schemas.codec import decode, decode_fields
from headwater.schemas.records import DuplicateDropped, OutcomeRecorded, Record, Stamp
from headwater.schemas.tables import TABLE_BY_TOPIC, UNSET, Table
from headwater.schemas.topics import DEAD_LETTERS, OUTCOMES, TRACES

__all__ = ["READERS", "TOPICS", "Rows", "refuse_unknown"]

#: The topics that this projection reads.
TOPICS: Final = (*TABLE_BY_TOPIC, OUTCOMES, TRACES, DEAD_LETTERS)

#: Shapes of rows whose column list is kept ready; a shape is which delivery set which column.
_SHAPES_MAX: Final = 4_096
#: Moments whose text is kept: senders sign whole seconds, so many deliveries share one.
_MOMENTS_MAX: Final = 4_096
#: The largest number that Postgres's bigint, and orjson, can hold.
_NUMBER_MAX: Final = 2**63 - 1
_CONNECT: Final = "__connect.errors."
_OWN: Final = "headwater."


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


def _place(record: LogRecord) -> tuple[str, int, int]:
    return (record.topic, record.partition, record.offset)


# --- rows, outcomes, duplicates: the newest readable record of a key counts ---------------------


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
        except UNREADABLE as error:
            rows.refuse(record, str(error))
            continue
        seen.add(key)


def _table_reader(table: Table) -> Callable[[list[LogRecord], Rows], None]:
    key_decoder = msgspec.json.Decoder(list[str])

    def read(data: bytes) -> SqlRow:
        # No Row in between: what Avro holds is nearly the row of the statement.
        sql_row = decode_fields(table, data)
        stamps, stamp_of = sql_row.pop("stamps"), sql_row.pop("stamp_of")
        sql_row["column_sources"] = {
            "deliveries": [_delivery(stamp) for stamp in stamps],
            "columns": _shape(table.name, stamp_of),
        }
        for time in table.times:
            held = sql_row[time.column] == time.value
            at = table.index[time.column]
            sql_row[time.name] = _sent_at(stamps, stamp_of, at) if held else None
        return sql_row

    def read_key(key: bytes) -> SqlRow:
        return dict(zip(table.key_names, key_decoder.decode(key), strict=True))

    return lambda group, rows: _read_newest(group, rows, table.name, read, read_key)


def _delivery(stamp: Stamp) -> dict[str, str]:
    return {
        "event_id": stamp.event_id,
        "position": stamp.position,
        "sent_at": _moment(stamp.sent_at_ms),
    }


_TABLE_BY_NAME: Final = {table.name: table for table in TABLE_BY_TOPIC.values()}


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(table: str, stamp_of: bytes) -> orjson.Fragment:
    """The columns' JSON, ready: most rows of a source are set in the same few ways."""
    # Columns are only ever added behind the others, so an older row has fewer.
    columns = dict(zip(_TABLE_BY_NAME[table].column_names, stamp_of, strict=False))
    return orjson.Fragment(orjson.dumps({n: at for n, at in columns.items() if at != UNSET}))


def _sent_at(stamps: tuple[Stamp, ...], stamp_of: bytes, at: int) -> str | None:
    """When the delivery was signed that set a column; None if none has."""
    if at >= len(stamp_of) or stamp_of[at] == UNSET:
        return None
    return _moment(stamps[stamp_of[at]].sent_at_ms)


@lru_cache(maxsize=_MOMENTS_MAX)
def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def _record_reader(
    table: str, key_name: str, kind: type[Record]
) -> Callable[[list[LogRecord], Rows], None]:
    """Reads records that are rows as they are."""

    def read(data: bytes) -> SqlRow:
        return decode(data, kind)

    def read_key(key: bytes) -> SqlRow:
        return {key_name: key.decode()}

    return lambda group, rows: _read_newest(group, rows, table, read, read_key)


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
        "key": base64_text(record.key),
        "value": base64_text(record.value),
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
    OUTCOMES: _record_reader("webhook_outcomes", "event_id", OutcomeRecorded),
    TRACES: _record_reader("duplicates", "request_id", DuplicateDropped),
    DEAD_LETTERS: _read_dead_letters,
}
