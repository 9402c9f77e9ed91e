"""Lineage, as far as Postgres knows it: a row with its sources, and where deliveries lie."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg import sql

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import filled, key_columns, read_columns, statement
from headwater.schemas.tables import Table

__all__ = ["LocatedDelivery", "Source", "SourcedRow", "deliveries_of_row", "named", "row"]

_SETTING: Final = {
    name: filled("setting_rows", of=sql.Identifier(name)) for name in ("user_id", "subject")
}


class Source(msgspec.Struct, frozen=True):
    """The delivery of a value; version is that of the normalizer."""

    event_id: str
    position: str
    sent_at: datetime
    version: int = 1


class SourcedRow(msgspec.Struct, frozen=True):
    """A row: its key as Postgres writes it, its values, and the source of each that is set."""

    key: dict[str, str]
    values: Mapping[str, Any]
    sources: Mapping[str, Source]


class LocatedDelivery(msgspec.Struct, frozen=True):
    """A delivery with an outcome, and where it lies in the topic webhooks."""

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
    """A row of a projection table by its key.

    Errors: StoreUnavailable; RecordRefused for a key that its columns cannot hold.
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
    found = msgspec.convert(rows[0]["column_sources"], _Sources)
    return SourcedRow(
        key=rows[0]["key"],
        values=rows[0],
        sources={name: found.deliveries[at] for name, at in found.columns.items()},
    )


async def deliveries_of_row(
    reader: PooledReader,
    *,
    user_id: str | None,
    subject: str,
    types: Sequence[tuple[str, str]],
    limit: int,
) -> list[LocatedDelivery]:
    """The deliveries of a user that may have set a row, newest first; without one, of a subject.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(
        _SETTING["user_id" if user_id else "subject"],
        of=user_id or subject,
        sources=[source for source, _ in types],
        types=[type_ for _, type_ in types],
        limit=limit,
    )
    return msgspec.convert(rows, list[LocatedDelivery])


async def named(reader: PooledReader, event_ids: Sequence[str]) -> list[LocatedDelivery]:
    """Where deliveries lie.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("deliveries_named"), event_ids=list(event_ids))
    return msgspec.convert(rows, list[LocatedDelivery])
