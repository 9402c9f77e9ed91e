"""Rebuild the tables of workflows in a separate schema, compare them, and switch the rows.

Rows of workflows are patches of a history, so the projector's own code rebuilds them: its
statements name no schema, and the search path selects the tables. While two versions are compared,
the serving projector waits for the lock on its offsets, so both have the same records.

Differing rows are stored as text, which Postgres reads back exactly.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from headwater.projections.errors import store_edge
from headwater.projections.postgres.connections import HEADWATER
from headwater.projections.postgres.statements import filled, listed, statement
from headwater.projections.postgres.writes import OF_WORKFLOWS
from headwater.projections.rebuilds.rebuilds import Example
from headwater.projections.workflows.history import PROJECTION

#: Schema of the rebuilt tables.
SCHEMA: Final = "headwater_rebuilt"
_EXAMPLES: Final = 10
#: Tables that the projector writes in addition to rows.
_BOOKKEEPING: Final = ("projection_offsets", "projection_errors")
_KINDS: Final = {
    "added": "before is null",
    "removed": "after is null",
    "changed": "before is not null and after is not null",
}


class ShadowTables:
    """A second set of the tables of workflows.

    All methods raise StoreUnavailable.
    """

    def __init__(self, connection: AsyncConnection[Any], rebuild_id: str) -> None:
        self._connection = connection
        self._id = rebuild_id

    async def make(self) -> None:
        """Create empty tables, unless this rebuild has created them already."""
        with store_edge("make the tables of a rebuild"):
            async with self._connection.transaction():
                cursor = await self._do(statement("rebuild_in_schema"), schema=SCHEMA)
                if await cursor.fetchone() == (self._id,):
                    return
                await self.drop()
                await self._do(_with_schema("create schema {schema}"))
                comment = "comment on schema {schema} is {id}"
                await self._do(_with_schema(comment, id=sql.Literal(self._id)))
                for table in (*OF_WORKFLOWS, *_BOOKKEEPING):
                    create = "create table {schema}.{table} (like {served}.{table} including all)"
                    parts = {"table": sql.Identifier(table), "served": sql.Identifier(HEADWATER)}
                    await self._do(_with_schema(create, **parts))

    async def drop(self) -> None:
        """Drop the rebuilt tables."""
        with store_edge("drop the tables of a rebuild"):
            await self._do(_with_schema("drop schema if exists {schema} cascade"))

    async def ends(self) -> dict[int, int]:
        """Return the next offset of each partition in the serving tables."""
        with store_edge("return applied offsets"):
            return await self._ends("projection_positions_of")

    @asynccontextmanager
    async def paused_projection(self) -> AsyncIterator[dict[int, int]]:
        """Open a transaction in which nothing is projected; yield the serving tables' offsets."""
        with store_edge("compare two versions of a projection"):
            async with self._connection.transaction():
                await self._do("set local timezone to 'UTC'")
                yield await self._ends("lock_projection")

    async def compare(self) -> tuple[dict[str, int], list[Example]]:
        """Store the rows that differ. Return their counts and some examples."""
        await self._do(statement("forget_rebuild_rows"), id=self._id)
        for table in OF_WORKFLOWS:
            await self._do(await self._difference(table), id=self._id, table=table)
        cursor = await self._do(statement("rebuild_counts"), id=self._id)
        added, removed, changed = await cursor.fetchone()
        counts = {"added": added, "removed": removed, "changed": changed}
        examples = [example for kind in _KINDS for example in await self._examples(kind)]
        return counts, examples

    async def put(self, *, back: bool) -> None:
        """Replace rows by rebuilt ones, or back, except rows that have changed since."""
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
        cursor = await self._do(statement(query), projection=PROJECTION)
        return dict(await cursor.fetchall())

    async def _key(self, table: str) -> list[str]:
        cursor = await self._do(statement("key_of_table"), table=f"{HEADWATER}.{table}")
        return [name for (name,) in await cursor.fetchall()]

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
        cursor = await self._do(query, id=self._id, limit=_EXAMPLES)
        return [
            await self._example(kind, table, before, after)
            for table, before, after in await cursor.fetchall()
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
        """Return a row by column, with JSON as text."""
        if row is None:
            return {}
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            cursor.adapters.register_loader("json", TextLoader)
            await cursor.execute(filled("row_from_text", table=sql.Identifier(table)), {"row": row})
            (columns,) = await cursor.fetchall()
            return columns


def _with_schema(query: LiteralString, **parts: sql.Composable) -> bytes:
    return sql.SQL(query).format(schema=sql.Identifier(SCHEMA), **parts).as_bytes(None)


def _match(key: list[str], left: LiteralString, right: LiteralString) -> sql.Composed:
    pair = sql.SQL(f"{left} = {right}")
    return sql.SQL(" and ").join([pair.format(*[sql.Identifier(name)] * 2) for name in key])
