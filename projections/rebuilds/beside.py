"""The tables of workflows made again: in a schema of their own, compared, and put in place.

Rows of workflows are patches of a history, so they are made again by the projector's own code,
whose statements name no schema: a search path says whose tables they write. While two versions are
compared, the projector that serves waits for the lock on its offsets: both have the same records.

What differs is kept as text of rows, which Postgres reads back to the byte.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from headwater.projections.errors import store_edge
from headwater.projections.postgres.schemas import HEADWATER
from headwater.projections.postgres.statements import OF_WORKFLOWS, filled, listed, statement
from headwater.projections.rebuilds.rebuilds import Example
from headwater.projections.workflows.history import PROJECTION

__all__ = ["SCHEMA", "TablesBeside"]

#: Where the tables are made again.
SCHEMA: Final = "headwater_rebuilt"
_EXAMPLES: Final = 10
#: What the projector writes besides rows.
_BOOKS: Final = ("projection_offsets", "projection_errors")
_KINDS: Final = {
    "added": "before is null",
    "removed": "after is null",
    "changed": "before is not null and after is not null",
}


class TablesBeside:
    """The tables of workflows, twice.

    Errors: StoreUnavailable from every method.
    """

    def __init__(self, connection: AsyncConnection[Any], rebuild_id: str) -> None:
        self._connection = connection
        self._id = rebuild_id

    async def make(self) -> None:
        """Makes empty tables, unless this rebuild has begun to fill them."""
        with store_edge("make the tables of a rebuild"):
            async with self._connection.transaction():
                found = await self._do(statement("rebuild_in_schema"), schema=SCHEMA)
                if await found.fetchone() == (self._id,):
                    return
                await self.drop()
                await self._do(_named("create schema {schema}"))
                about = "comment on schema {schema} is {id}"
                await self._do(_named(about, id=sql.Literal(self._id)))
                for table in (*OF_WORKFLOWS, *_BOOKS):
                    create = "create table {schema}.{table} (like {served}.{table} including all)"
                    parts = {"table": sql.Identifier(table), "served": sql.Identifier(HEADWATER)}
                    await self._do(_named(create, **parts))

    async def drop(self) -> None:
        """Drops the tables that were made again."""
        with store_edge("drop the tables of a rebuild"):
            await self._do(_named("drop schema if exists {schema} cascade"))

    async def ends(self) -> dict[int, int]:
        """How far the tables are that serve: the next offset of each partition."""
        with store_edge("say how far the projection is"):
            return await self._ends("projection_positions_of")

    @asynccontextmanager
    async def standing_still(self) -> AsyncIterator[dict[int, int]]:
        """A transaction in which nothing is projected; gives how far the tables are that serve."""
        with store_edge("compare two versions of a projection"):
            async with self._connection.transaction():
                await self._do("set local timezone to 'UTC'")
                yield await self._ends("lock_projection")

    async def compare(self) -> tuple[dict[str, int], list[Example]]:
        """Keeps the rows that differ, and counts them, with some examples."""
        await self._do(statement("forget_rebuild_rows"), id=self._id)
        for table in OF_WORKFLOWS:
            await self._do(await self._difference(table), id=self._id, table=table)
        found = await self._do(statement("rebuild_counts"), id=self._id)
        added, removed, changed = await found.fetchone()
        counts = {"added": added, "removed": removed, "changed": changed}
        return counts, [each for kind in _KINDS for each in await self._examples(kind)]

    async def put(self, *, back: bool) -> None:
        """Puts rows in the place of others, but where these have changed since."""
        old, new = ("after", "before") if back else ("before", "after")
        for table in OF_WORKFLOWS:
            parts = {
                "table": sql.Identifier(table),
                "match": _match(await self._key(table), "t.{}", "(kept.o).{}"),
                "old": sql.Identifier(old),
                "new": sql.Identifier(new),
            }
            for query in ("take_rebuilt_rows", "put_rebuilt_rows"):
                await self._do(filled(query, **parts), id=self._id, table=table)
            await self._do("drop table taken")

    # -- statements

    async def _do(self, query: bytes | LiteralString, **parameters: object) -> Any:  # noqa: ANN401
        return await self._connection.execute(query, parameters or None)

    async def _ends(self, query: str) -> dict[int, int]:
        found = await self._do(statement(query), projection=PROJECTION)
        return dict(await found.fetchall())

    async def _key(self, table: str) -> list[str]:
        found = await self._do(statement("key_of_table"), table=f"{HEADWATER}.{table}")
        return [name for (name,) in await found.fetchall()]

    async def _difference(self, table: str) -> bytes:
        key = await self._key(table)
        return filled(
            "insert_rebuild_differences",
            rebuilt=sql.Identifier(SCHEMA, table),
            served=sql.Identifier(HEADWATER, table),
            match=_match(key, "b.{}", "a.{}"),
            key=listed([sql.SQL("coalesce(b.{0}, a.{0})").format(sql.Identifier(k)) for k in key]),
        )

    async def _examples(self, kind: str) -> list[Example]:
        query = filled("rebuild_examples", which=sql.SQL(_KINDS[kind]))
        found = await self._do(query, id=self._id, limit=_EXAMPLES)
        return [
            await self._example(kind, table, before, after)
            for table, before, after in await found.fetchall()
        ]

    async def _example(
        self, kind: str, table: str, before: str | None, after: str | None
    ) -> Example:
        old, new = await self._columns(table, before), await self._columns(table, after)
        names = old or new
        return Example(
            kind=kind,
            table=table,
            key={name: names[name] for name in await self._key(table)},
            columns={
                name: (old.get(name), new.get(name))
                for name in names
                if old.get(name) != new.get(name)
            },
        )

    async def _columns(self, table: str, row: str | None) -> dict[str, Any]:
        """A row by its columns; JSON as its text."""
        if row is None:
            return {}
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            cursor.adapters.register_loader("json", TextLoader)
            await cursor.execute(filled("row_from_text", table=sql.Identifier(table)), {"row": row})
            (found,) = await cursor.fetchall()
            return found


def _named(query: LiteralString, **parts: sql.Composable) -> bytes:
    return sql.SQL(query).format(schema=sql.Identifier(SCHEMA), **parts).as_bytes(None)


def _match(key: list[str], one: LiteralString, other: LiteralString) -> sql.Composed:
    pair = sql.SQL(f"{one} = {other}")
    return sql.SQL(" and ").join([pair.format(*[sql.Identifier(name)] * 2) for name in key])
