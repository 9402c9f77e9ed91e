"""The projection of deliveries: the newest record of a key is a row.

Of several records of a key, only the newest readable one is written; a tombstone deletes. A record
that cannot be read becomes a row of `projection_errors`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headwater.processors.runs.claims import Claims
from headwater.projections.deliveries.row_readers import ROW_READERS, ROW_TYPES
from headwater.projections.postgres.statements import names_user, wiped_rows
from headwater.projections.projector.projection import (
    UNREADABLE,
    LogRecord,
    Plan,
    Projection,
    SqlRow,
    base64_text,
    refusal,
    row_statements,
)
from headwater.schemas.codec import decode, record_name
from headwater.schemas.epochs import CLAIM_KEY, HIDDEN, WIPED, epoch_of
from headwater.schemas.history import SendEvent
from headwater.schemas.installed_tables import ALL_TABLES, TABLE_BY_TOPIC
from headwater.schemas.records import EffectDecided, UserForgotten
from headwater.schemas.tables import Table
from headwater.schemas.topics import DEAD_LETTERS, EFFECTS, OUTCOMES, TRACES, WIPES

#: Topics of this projection.
TOPICS: Final = (*TABLE_BY_TOPIC, OUTCOMES, EFFECTS, TRACES, DEAD_LETTERS, WIPES)

#: Largest number of Postgres's bigint, and of orjson.
_NUMBER_MAX: Final = 2**63 - 1
_CONNECT: Final = "__connect.errors."
_OWN: Final = "headwater."


@dataclass(slots=True)
class Rows:
    """The rows of one plan under construction, by table and key.

    Upserts of a table are either all binary rows (bytes) or all rows for JSON. They are in rounds,
    because a statement can write a row only once. Deletes are executed before upserts.
    """

    upserts: dict[str, list[dict[Any, Any]]] = field(default_factory=dict)
    deletes: dict[str, dict[Any, SqlRow]] = field(default_factory=dict)

    def upsert(self, table: str, key: object, row: SqlRow | bytes) -> None:
        """Write a row, replacing an earlier one with the same key."""
        self.upserts.setdefault(table, [{}])[0][key] = row

    def append(self, table: str, key: object, row: bytes) -> None:
        """Write a row after earlier ones with the same key; Postgres merges them."""
        rounds = self.upserts.setdefault(table, [{}])
        for round_rows in rounds:
            if key not in round_rows:
                round_rows[key] = row
                return
        rounds.append({key: row})

    def forget(self, table: str, key: object) -> None:
        """Write none of the rows of a key."""
        for round_rows in self.upserts.get(table, ()):
            round_rows.pop(key, None)

    def delete(self, table: str, key: object, row: SqlRow) -> None:
        """Delete the row of a key."""
        self.deletes.setdefault(table, {})[key] = row

    def refuse(self, record: LogRecord, error: str) -> None:
        """Store a record that cannot be applied."""
        self.upsert("projection_errors", _position(record), refusal(record, error))


def _position(record: LogRecord) -> tuple[str, int, int]:
    return (record.topic, record.partition, record.offset)


# --- rows, outcomes, duplicates: the newest readable record of a key ---------------------------


def _read_newest(
    group: list[LogRecord],
    rows: Rows,
    table: str,
    read: Callable[[bytes], bytes],
    read_key: Callable[[bytes], SqlRow],
) -> None:
    seen: set[bytes] = set()
    for record in reversed(group):
        key = record.key or b""
        if key in seen:
            continue
        try:
            if HIDDEN in record.headers:
                rows.delete(table, key, read_key(key))
            elif record.value is not None:
                rows.upsert(table, key, read(record.value))
            elif WIPED in record.headers:
                deleted = _wiped_key(read_key(key))
                rows.delete(wiped_rows(TABLE_BY_TOPIC[record.topic]), key, deleted)
            else:
                rows.delete(table, key, read_key(key))
        except UNREADABLE as error:
            rows.refuse(record, str(error))
            continue
        seen.add(key)


def _wiped_key(key: SqlRow) -> dict[str, Any]:
    """Return the key of a row removed by a wipe, with the user if the key has one."""
    return {**key, "wiped_user": key.get("user_id")}


def _reader(
    table: str, read_key: Callable[[bytes], SqlRow]
) -> Callable[[list[LogRecord], Rows], None]:
    read = ROW_READERS[table]
    return lambda group, rows: _read_newest(group, rows, table, read, read_key)


def _table_key(table: Table) -> Callable[[bytes], SqlRow]:
    decoder = msgspec.json.Decoder(list[str])
    return lambda key: dict(zip(table.key_names, decoder.decode(key), strict=True))


def _plain_key(name: str) -> Callable[[bytes], SqlRow]:
    return lambda key: {name: key.decode()}


_outcome_key = _plain_key("event_id")


def _read_outcomes(group: list[LogRecord], rows: Rows) -> None:
    """Read all outcomes of a delivery: earlier ones are the results of earlier replays."""
    table = "webhook_outcomes"
    read = ROW_READERS[table]
    for record in group:
        key = record.key or b""
        try:
            if record.value is None:
                rows.delete(table, key, _outcome_key(key))
                rows.forget(table, key)
            else:
                rows.append(table, key, read(record.value))
        except UNREADABLE as error:
            rows.refuse(record, str(error))


_read_duplicates = _reader("duplicates", _plain_key("request_id"))
_read_answers = _reader("request_answers", _plain_key("request_id"))
_ANSWERED: Final = "request_answered"


def _read_traces(group: list[LogRecord], rows: Rows) -> None:
    _read_answers([r for r in group if record_name(r.value) == _ANSWERED], rows)
    _read_duplicates([r for r in group if record_name(r.value) != _ANSWERED], rows)


_effect_key: Final = msgspec.json.Decoder(tuple[str, str]).decode


def _read_effects(group: list[LogRecord], rows: Rows) -> None:
    for record in group:
        try:
            if record.value is None:
                event_id, name = _effect_key(record.key or b"")
                rows.delete("effects", (event_id, name), {"event_id": event_id, "name": name})
                rows.forget("effects", (event_id, name))
                continue
            effect = decode(record.value, EffectDecided)
        except UNREADABLE as error:
            rows.refuse(record, str(error))
            continue
        command = effect.command
        row = {
            "event_id": effect.event_id,
            "name": effect.name,
            "workflow": effect.workflow,
            "instance_id": effect.instance_id,
            "event_type": command.type if isinstance(command, SendEvent) else None,
            "at_ms": record.timestamp,
        }
        rows.upsert("effects", (effect.event_id, effect.name), row)


# --- dead letters: original bytes, with metadata in headers -----------------------------------


def _read_dead_letters(group: list[LogRecord], rows: Rows) -> None:
    positions: dict[bytes, list[tuple[str, int, int]]] = {}
    for record in group:
        headers = [(name, _text(value)) for name, value in record.headers]
        metadata = dict(headers)
        key = record.key or b""
        try:
            if record.value is None and not metadata:
                rows.delete("dead_letters", key, _letter_key(key))
                for position_of_key in positions.pop(key, ()):
                    rows.forget("dead_letters", position_of_key)
                continue
            if f"{_OWN}replayed" in metadata:
                marker = _replay(record, metadata)
                position = (record.partition, record.offset)
                rows.upsert("dead_letter_replays", position, marker)
            elif f"{_OWN}expired" in metadata:
                marker = _expiry(record, metadata)
                rows.upsert("dead_letter_expiries", (marker["partition"], marker["offset"]), marker)
            else:
                rows.upsert(
                    "dead_letters", _position(record), _dead_letter(record, headers, metadata)
                )
                positions.setdefault(key, []).append(_position(record))
        except ValueError as error:
            rows.refuse(record, f"expected the headers of a dead letter, found: {error}")


def _letter_key(key: bytes) -> dict[str, Any]:
    names = ("topic", "partition", "offset", "reason", "rule")
    return dict(zip(names, _decode_letter_key(key), strict=True))


_decode_letter_key: Final = msgspec.json.Decoder(tuple[str, int, int, str, str]).decode


def _expiry(record: LogRecord, metadata: Mapping[str, str | None]) -> dict[str, Any]:
    partition, offset = (metadata[f"{_OWN}expired"] or "").split("@")
    return {
        "partition": _number(partition),
        "offset": _number(offset),
        "expired_at_ms": record.timestamp,
    }


def _replay(record: LogRecord, metadata: Mapping[str, str | None]) -> SqlRow:
    partition, offset = (metadata[f"{_OWN}replayed"] or "").split("@")
    replayed_at_ms = _number(metadata.get(f"{_OWN}replayed_at_ms"))
    return {
        "partition": _number(partition),
        "offset": _number(offset),
        "replayed_at_ms": record.timestamp if replayed_at_ms is None else replayed_at_ms,
    }


def _dead_letter(
    record: LogRecord,
    headers: list[tuple[str, str | None]],
    metadata: Mapping[str, str | None],
) -> SqlRow:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "event_id": metadata.get(f"{_OWN}event_id") or None,
        "request_id": metadata.get(f"{_OWN}request_id") or None,
        "key": base64_text(dict(record.headers).get(f"{_OWN}key")),
        "value": base64_text(record.value),
        "headers": headers,
        "original_topic": metadata.get(f"{_CONNECT}topic"),
        "original_partition": _number(metadata.get(f"{_CONNECT}partition")),
        "original_offset": _number(metadata.get(f"{_CONNECT}offset")),
        "reason": metadata.get(f"{_OWN}reason") or "unknown",
        "message": metadata.get(f"{_CONNECT}exception.message"),
        "stage": metadata.get(f"{_CONNECT}stage"),
        "rule": metadata.get(f"{_OWN}rule"),
        "dead_at_ms": _number(metadata.get(f"{_OWN}dead_at_ms")) or record.timestamp,
    }


# --- wipes: users whose rows were deleted, and unreadable records -------------------------------


def _read_wipes(group: list[LogRecord], rows: Rows) -> None:
    names: dict[str, list[str]] = {}
    for record in group:
        try:
            wipe = decode(record.value, UserForgotten)
        except UNREADABLE as error:
            rows.refuse(record, str(error))
            continue
        if not wipe.wipe_id:
            continue  # Its order was not read yet.
        # The record of the wipe's end has no names anymore.
        user_names = names.setdefault(wipe.digests[0], wipe.names)
        row = {
            "user_sha256": wipe.digests[0],
            "partition": record.partition,
            "wipe_id": wipe.wipe_id,
            "names": user_names,
            "found": dict(zip(wipe.found, wipe.counts, strict=True)),
            "ordered_at_ms": wipe.ordered_at_ms,
            "done_at_ms": wipe.done_at_ms,
        }
        rows.upsert("wipes", (wipe.digests[0], record.partition), row)
        for table in filter(names_user, ALL_TABLES):
            for user in wipe.names[:1]:
                deleted = dict.fromkeys(table.key_names) | {"wiped_user": user}
                rows.delete(wiped_rows(table), wipe.digests[0], deleted)


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
    """Refuse records of an unknown topic."""
    for record in group:
        rows.refuse(record, f"expected a record of {', '.join(TOPICS)}, found {record.topic}")


READERS: Final[dict[str, Callable[[list[LogRecord], Rows], None]]] = {
    **{topic: _reader(table.name, _table_key(table)) for topic, table in TABLE_BY_TOPIC.items()},
    OUTCOMES: _read_outcomes,
    EFFECTS: _read_effects,
    TRACES: _read_traces,
    DEAD_LETTERS: _read_dead_letters,
    WIPES: _read_wipes,
}


# -- the projection


def plan(records: Iterable[LogRecord]) -> Plan:
    """Plan records of any topics, each partition in order."""
    by_topic: dict[str, list[LogRecord]] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
    rows = Rows()
    for topic, group in by_topic.items():
        READERS.get(topic, refuse_unknown)(group, rows)
    deletes = [
        row_statement
        for table, keyed in rows.deletes.items()
        for row_statement in row_statements(table, list(keyed.values()), delete=True)
    ]
    upserts = [
        row_statement
        for table, rounds in rows.upserts.items()
        for keyed in rounds
        for row_statement in row_statements(table, list(keyed.values()))
    ]
    unreadable = sum(map(len, rows.upserts.get("projection_errors", ())))
    return Plan(statements=(*deletes, *upserts), unreadable=unreadable)


def _admitted(records: Sequence[LogRecord], claims: Claims) -> Sequence[LogRecord]:
    """Return the admitted records without claims, and update the newest epoch."""
    return [
        record
        for record in records
        if claims.admit_epoch(_epoch_of(record)) and record.key != CLAIM_KEY
    ]


def _epoch_of(record: LogRecord) -> int | None:
    try:
        return epoch_of(record.headers)
    except ValueError:
        return None  # An owner did not write it; its type follows from its bytes.


#: Projects the tables, outcomes, duplicates and dead letters.
DELIVERIES: Final = Projection(
    name="headwater",
    group="headwater-projector",
    topics=TOPICS,
    read=_admitted,
    plan=plan,
    row_types=ROW_TYPES,
    is_synced=True,
)
