"""Lineage: a delivery with its passes and results, and a row with its sources."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg import sql

from headwater.projections.deliveries.queries import DeadLetter, Hop, Outcome, RejectedField
from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.postgres.statements import (
    filled,
    key_columns,
    listed,
    read_columns,
    statement,
)
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Table


class DeliveryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of deliveries: all fields that are set must match."""

    source: str | None = None
    type: str | None = None
    user_id: str | None = None
    status: str | None = None
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery and its outcome; or a refused request, which has no event id."""

    received_at: datetime
    request_id: str
    event_id: str
    source: str
    type: str
    subject: str
    user_id: str | None
    status: str
    reason: str
    rows: int
    rejected: int


class Deliveries(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries, newest first; `cursor` continues with older ones, None if there are none."""

    rows: tuple[Delivery, ...]
    cursor: str | None


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of a delivery through the pipeline; a replay begins another one."""

    status: str
    reason: str
    rows: int
    rejected: int
    rejected_fields: tuple[RejectedField, ...] = ()
    rejected_fields_total: int = 0
    at: datetime
    position: str
    replay: str = ""
    hops: tuple[Hop, ...]


class Copy(msgspec.Struct, frozen=True):
    """A duplicate of a delivery, which was dropped."""

    request_id: str
    at: datetime


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow instance that a delivery started, or to which it sent an event."""

    name: str
    workflow: str
    instance_id: str
    event_type: str | None
    at: datetime


class ChangedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row with values of a delivery, and the columns that have them."""

    table: str
    key: dict[str, str]
    columns: tuple[str, ...]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A request that brought no new delivery, and why."""

    request_id: str
    source: str
    code: str
    reason: str
    detail: str
    size: int
    peer: str
    left_out: int
    at: datetime


class DeliveryWhole(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a delivery: its passes, oldest first, and their results."""

    outcome: Outcome
    journeys: tuple[Journey, ...]
    copies: tuple[Copy, ...]
    effects: tuple[Effect, ...]
    rows: tuple[ChangedRow, ...]
    dead_letters: tuple[DeadLetter, ...]


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    received_at: datetime
    request_id: str


def _rows_query(table: Table) -> bytes:
    key = key_columns(table)
    pairs = [
        sql.SQL("{}, t.{}").format(sql.Literal(column.name), column.identifier) for column in key
    ]
    of_user = sql.SQL("user_id = %(user_id)s")
    of_subject = sql.SQL("{} = %(subject)s or user_id = %(user_id)s").format(key[0].identifier)
    owned = of_user if key[0].name == "user_id" else of_subject
    return filled(
        "rows_of_delivery",
        table_name=sql.Literal(table.name),
        table=sql.Identifier(table.name),
        pairs=listed(list(pairs)),
        owned=owned,
    )


_ROWS: Final = tuple(_rows_query(table) for table in ALL_TABLES)


async def deliveries(
    reader: PooledReader, filters: DeliveryFilter, *, limit: int, after: str | None = None
) -> Deliveries:
    """Return deliveries and refused requests, newest first.

    Raises:
        InvalidCursor: The cursor cannot be read.
        StoreUnavailable: Postgres does not answer.
    """
    limit = bounded(limit)
    position = None if after is None else unpack(after, _Cursor)
    parameters = msgspec.structs.asdict(filters)
    parameters["since"] = filters.since or "-infinity"
    parameters["until"] = filters.until or "infinity"
    parameters["received_at"] = position.received_at if position else "infinity"
    parameters["request_id"] = position.request_id if position else ""
    with valid_cursor():
        rows = await reader.answers(statement("deliveries"), **parameters, limit=limit + 1)
    page = msgspec.convert(rows[:limit], tuple[Delivery, ...])
    more = len(rows) > limit
    cursor = pack(_Cursor(page[-1].received_at, page[-1].request_id)) if more else None
    return Deliveries(rows=page, cursor=cursor)


async def delivery(reader: PooledReader, event_or_request_id: str) -> DeliveryWhole | None:
    """Return everything about a delivery, by its id or that of a request that brought it.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    matches = await reader.answers(statement("delivery_of"), id=event_or_request_id)
    event_id = matches[0]["event_id"] if matches else event_or_request_id
    rows = await reader.answers(statement("outcome"), event_id=event_id)
    if not rows:
        return None
    outcome = msgspec.convert(rows[0], Outcome)

    async def read(query: str) -> list[Row]:
        return await reader.answers(statement(query), event_id=event_id)

    changed = await rows_with_values_of(reader, outcome)
    return DeliveryWhole(
        outcome=outcome,
        journeys=msgspec.convert(await read("journeys"), tuple[Journey, ...]),
        copies=msgspec.convert(await read("copies"), tuple[Copy, ...]),
        effects=msgspec.convert(await read("effects_of"), tuple[Effect, ...]),
        rows=changed,
        dead_letters=msgspec.convert(await read("dead_letters_of"), tuple[DeadLetter, ...]),
    )


async def rows_with_values_of(reader: PooledReader, outcome: Outcome) -> tuple[ChangedRow, ...]:
    """Return the rows that have values of a delivery.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {
        "user_id": outcome.user_id,
        "subject": outcome.subject,
        "event_id": outcome.event_id,
    }
    rows = [row for query in _ROWS for row in await reader.answers(query, **parameters)]
    return msgspec.convert(rows, tuple[ChangedRow, ...])


async def refusal(reader: PooledReader, request_id: str) -> Refusal | None:
    """Return a request that was refused, or was a handshake.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("refusal"), request_id=request_id)
    return msgspec.convert(rows[0], Refusal) if rows else None


# -- rows and positions

_SETTING: Final = {
    name: filled("setting_rows", of=sql.Identifier(name)) for name in ("user_id", "subject")
}


class Source(msgspec.Struct, frozen=True):
    """The delivery that set a value; `version` is that of the normalizer."""

    event_id: str
    position: str
    sent_at: datetime
    version: int = 1


class SourcedRow(msgspec.Struct, frozen=True):
    """A row: its key as text, its values, and the source of each value that is set."""

    key: dict[str, str]
    values: Mapping[str, Any]
    sources: Mapping[str, Source]


class LocatedDelivery(msgspec.Struct, frozen=True):
    """A delivery with an outcome, and its position in the topic webhooks."""

    event_id: str
    source: str
    type: str
    user_id: str | None
    partition: int
    offset: int


class _Sources(msgspec.Struct, frozen=True):
    deliveries: tuple[Source, ...]
    columns: dict[str, int]


async def row(reader: PooledReader, table: Table, key: Sequence[str]) -> SourcedRow | None:
    """Return a row of a projection table by its key.

    Raises:
        StoreUnavailable: Postgres does not answer.
        RecordRefused: The key does not fit its columns.
    """
    columns = key_columns(table)
    pairs = [sql.SQL("{}, t.{}").format(sql.Literal(c.name), c.identifier) for c in columns]
    query = filled(
        "row_of_key",
        columns=read_columns(table),
        table=sql.Identifier(table.name),
        pairs=sql.SQL(", ").join(pairs),
        match=sql.SQL(" and ").join([c.named for c in columns]),
    )
    rows = await reader.answers(query, **dict(zip(table.key_names, key, strict=True)))
    if not rows:
        return None
    column_sources = msgspec.convert(rows[0]["column_sources"], _Sources)
    return SourcedRow(
        key=rows[0]["key"],
        values=rows[0],
        sources={
            name: column_sources.deliveries[index] for name, index in column_sources.columns.items()
        },
    )


async def deliveries_of_row(
    reader: PooledReader,
    *,
    user_id: str | None,
    subject: str,
    types: Sequence[tuple[str, str]],
    limit: int,
) -> list[LocatedDelivery]:
    """Return the deliveries that may have set a row, newest first.

    They are selected by user, or by subject if there is no user.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(
        _SETTING["user_id" if user_id else "subject"],
        of=user_id or subject,
        sources=[source for source, _ in types],
        types=[type_ for _, type_ in types],
        limit=limit,
    )
    return msgspec.convert(rows, list[LocatedDelivery])


async def deliveries_by_id(reader: PooledReader, event_ids: Sequence[str]) -> list[LocatedDelivery]:
    """Return the positions of deliveries.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("deliveries_named"), event_ids=list(event_ids))
    return msgspec.convert(rows, list[LocatedDelivery])
