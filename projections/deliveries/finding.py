"""Finding deliveries, and all that is known of one: how each journey went, and what came of it."""

from datetime import datetime
from typing import Final

import msgspec
from psycopg import sql

from headwater.projections.deliveries.queries import DeadLetter, Hop, Outcome
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.postgres.reader import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, key_columns, listed, statement
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Table

__all__ = [
    "ChangedRow",
    "Copy",
    "Deliveries",
    "Delivery",
    "DeliveryWhole",
    "Effect",
    "Journey",
    "Refusal",
    "Wanted",
    "deliveries",
    "delivery",
    "refusal",
    "rows_with_values_of",
]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries: all that is given has to fit."""

    source: str | None = None
    type: str | None = None
    user_id: str | None = None
    status: str | None = None
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery and what became of it; or a request that was refused, which has no event id."""

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
    """Deliveries, newest first; `cursor` continues with older ones, None when there are none."""

    rows: tuple[Delivery, ...]
    cursor: str | None


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """One way of a delivery through the pipeline; a replay begins another."""

    status: str
    reason: str
    rows: int
    rejected: int
    at: datetime
    position: str
    replay: str = ""
    hops: tuple[Hop, ...]


class Copy(msgspec.Struct, frozen=True):
    """A copy of a delivery, which was dropped."""

    request_id: str
    at: datetime


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What a delivery did to a workflow: it started an instance, or sent it an event."""

    name: str
    workflow: str
    instance_id: str
    event_type: str | None
    at: datetime


class ChangedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that has values of a delivery, and in which columns."""

    table: str
    key: dict[str, str]
    columns: tuple[str, ...]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A request that brought nothing new, and why."""

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
    """All that is known of a delivery: its journeys oldest first, and what came of them."""

    outcome: Outcome
    journeys: tuple[Journey, ...]
    copies: tuple[Copy, ...]
    effects: tuple[Effect, ...]
    rows: tuple[ChangedRow, ...]
    dead_letters: tuple[DeadLetter, ...]


class _Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
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
    reader: PooledReader, wanted: Wanted, *, limit: int, after: str | None = None
) -> Deliveries:
    """Deliveries, and requests that were refused, newest first.

    Errors: InvalidCursor, StoreUnavailable.
    """
    limit = bounded(limit)
    place = None if after is None else unpack(after, _Place)
    asked = msgspec.structs.asdict(wanted)
    asked["since"] = wanted.since or "-infinity"
    asked["until"] = wanted.until or "infinity"
    asked["received_at"] = place.received_at if place else "infinity"
    asked["request_id"] = place.request_id if place else ""
    with valid_cursor():
        rows = await reader.answers(statement("deliveries"), **asked, limit=limit + 1)
    page = msgspec.convert(rows[:limit], tuple[Delivery, ...])
    more = len(rows) > limit
    cursor = pack(_Place(page[-1].received_at, page[-1].request_id)) if more else None
    return Deliveries(rows=page, cursor=cursor)


async def delivery(reader: PooledReader, named: str) -> DeliveryWhole | None:
    """All that is known of a delivery, by its id or that of a request that brought it.

    Errors: StoreUnavailable.
    """
    found = await reader.answers(statement("delivery_of"), id=named)
    event_id = found[0]["event_id"] if found else named
    rows = await reader.answers(statement("outcome"), event_id=event_id)
    if not rows:
        return None
    outcome = msgspec.convert(rows[0], Outcome)

    async def of(query: str) -> list[Row]:
        return await reader.answers(statement(query), event_id=event_id)

    changed = await rows_with_values_of(reader, outcome)
    return DeliveryWhole(
        outcome=outcome,
        journeys=msgspec.convert(await of("journeys"), tuple[Journey, ...]),
        copies=msgspec.convert(await of("copies"), tuple[Copy, ...]),
        effects=msgspec.convert(await of("effects_of"), tuple[Effect, ...]),
        rows=changed,
        dead_letters=msgspec.convert(await of("dead_letters_of"), tuple[DeadLetter, ...]),
    )


async def rows_with_values_of(reader: PooledReader, outcome: Outcome) -> tuple[ChangedRow, ...]:
    """The rows that have values of a delivery.

    Errors: StoreUnavailable.
    """
    about = {"user_id": outcome.user_id, "subject": outcome.subject, "event_id": outcome.event_id}
    found = [row for query in _ROWS for row in await reader.answers(query, **about)]
    return msgspec.convert(found, tuple[ChangedRow, ...])


async def refusal(reader: PooledReader, request_id: str) -> Refusal | None:
    """A request that was refused, or greeted.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("refusal"), request_id=request_id)
    return msgspec.convert(rows[0], Refusal) if rows else None
