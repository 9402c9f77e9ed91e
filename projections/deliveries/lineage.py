"""Lineage from Postgres: a row with its sources, and positions of deliveries."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg import sql

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import filled, key_columns, read_columns, statement
from headwater.schemas.tables import Table

__all__ = [
    "LocatedDelivery",
    "Source",
    "SourcedRow",
    "deliveries_by_id",
    "deliveries_of_row",
    "row",
]

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
