"""Tables in a separate schema, filled by the projector's own code, to compare the serving ones.

The projector's statements name no schema, so the search path selects the tables; values are
represented as in the serving tables, and only real differences differ. Two versions are compared
at the same offsets: while they are completed, the serving projector waits for the lock on its
offsets.

Differing rows are stored as text, which Postgres reads back exactly. The tables are not logged: if
the server crashes they are empty, with their offsets.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, LiteralString, TypeAlias

from psycopg import AsyncConnection, sql
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from headwater.projections.errors import store_edge
from headwater.projections.postgres.connections import schemas_of
from headwater.projections.postgres.statements import filled, listed, statement
from headwater.projections.postgres.writes import OF_WORKFLOWS
from headwater.projections.rebuilds.rebuilds import Example
from headwater.projections.workflows.history import PROJECTION

#: Offsets by topic and partition.
Offsets: TypeAlias = Mapping[str, Mapping[int, int]]

_EXAMPLES: Final = 10
#: Tables that the projector writes in addition to rows.
_BOOKKEEPING: Final = ("projection_offsets", "projection_errors", "deletions")
#: A process that freezes while the projector waits does not stop it.
_IDLE_S: Final = 60
#: Longest statement for which the projector waits: rows of a switch are written in half a minute a
#: million.
_PAUSED_STATEMENT_MIN: Final = 10
#: Differing rows that are stored together.
_PAGE: Final = 1_000
_CURSOR: Final = "headwater_differences"
_KINDS: Final = {
    "added": "before is null",
    "removed": "after is null",
    "changed": "before is not null and after is not null",
}


class ShadowTables:
    """A second set of the tables of workflows; `ShadowTable` is one of a projection table.

    The projector of workflows waits during the whole comparison, because it deletes instances, and
    differences about them must not be stored after that.

    All methods raise StoreUnavailable.

    Args:
        connection: Of the rebuild.
        rebuild_id: The rebuild that the tables belong to.
        projection: Name of the projection.
        topics: The topics with its rows. While it is paused, their offsets do not move.
        tables: The tables.
        neutral: Columns that are no difference, and what replaces them in the text of rows.

    Attributes:
        compares_paused: Whether the projector waits while rows are compared.
    """

    compares_paused: bool = True

    def __init__(
        self,
        connection: AsyncConnection[Any],
        rebuild_id: str,
        *,
        topics: Sequence[str],
        projection: str = PROJECTION,
        tables: Sequence[str] = OF_WORKFLOWS,
        neutral: Mapping[str, LiteralString] = MappingProxyType({}),
    ) -> None:
        self._connection = connection
        schemas = schemas_of(connection.info.dsn)
        self._served, self._rebuilt = schemas.tables, schemas.rebuilt
        #: Stores the rows that differ.
        self._writer = connection
        self._id = rebuild_id
        self._projection = projection
        self._topics = list(topics)
        self._tables = tables
        self._neutral = neutral

    async def make(self) -> None:
        """Create empty tables, unless this rebuild has created them already."""
        with store_edge("make the tables of a rebuild"):
            async with self._connection.transaction():
                cursor = await self._do(statement("rebuild_in_schema"), schema=self._rebuilt)
                if await cursor.fetchone() == (self._id,):
                    return
                await self.drop()
                await self._do(self._with_schema("create schema {schema}"))
                comment = "comment on schema {schema} is {id}"
                await self._do(self._with_schema(comment, id=sql.Literal(self._id)))
                for table in (*self._tables, *_BOOKKEEPING):
                    create = "create unlogged table {schema}.{table} (like {served} including all)"
                    parts = {"table": sql.Identifier(table), "served": self._served_table(table)}
                    await self._do(self._with_schema(create, **parts))

    async def drop(self) -> None:
        """Drop the rebuilt tables."""
        with store_edge("drop the tables of a rebuild"):
            await self._do(self._with_schema("drop schema if exists {schema} cascade"))

    async def analyze(self) -> None:
        """Collect statistics of the filled tables, by which Postgres plans the comparison."""
        with store_edge("analyze the tables of a rebuild"):
            for table in self._tables:
                analyze = "analyze {schema}.{table}"
                await self._do(self._with_schema(analyze, table=sql.Identifier(table)))

    async def ends(self) -> Offsets:
        """Return the next offsets in the serving tables."""
        with store_edge("return applied offsets"):
            return await self._ends("projection_positions_of")

    @asynccontextmanager
    async def paused_projection(self) -> AsyncIterator[Offsets]:
        """Open a transaction in which nothing is projected; yield the serving tables' offsets."""
        with store_edge("compare two versions of a projection"):
            async with self._connection.transaction():
                yield await self.lock(self._connection)

    @asynccontextmanager
    async def comparable(
        self, complete: Callable[[Offsets], Awaitable[bool]]
    ) -> AsyncIterator[bool]:
        """Complete both versions up to the same offsets, and open a transaction to compare them.

        Args:
            complete: Completes the shadow tables up to these offsets, or returns False.
        """
        async with self.paused_projection() as ends:
            yield await complete(ends)

    async def lock(self, connection: AsyncConnection[Any]) -> Offsets:
        """Make the projector wait for the end of this transaction; return its offsets."""
        await connection.execute("set local timezone to 'UTC'")
        for setting, value in (
            ("idle_in_transaction_session_timeout", f"{_IDLE_S}s"),
            ("statement_timeout", f"{_PAUSED_STATEMENT_MIN}min"),
        ):
            query = sql.SQL("set local {} to {}").format(sql.Identifier(setting), value)
            await connection.execute(query)
        return await self._ends("lock_projection", connection)

    async def compare(self) -> tuple[dict[str, int], list[Example]]:
        """Store the rows that differ. Return their counts and some examples."""
        with store_edge("compare two versions of a projection"):
            for table in self._tables:
                await self._store_differences(table)
            return await self._counts_and_examples()

    async def _store_differences(self, table: str) -> None:
        cursor = await self._writer.execute(statement("next_rebuild_row"), {"id": self._id})
        (number,) = await cursor.fetchone() or (0,)
        async with (
            self._connection.transaction(),
            self._connection.cursor(_CURSOR) as differing,
            self._writer.cursor() as storing,
        ):
            await differing.execute(await self._difference(table), {"table": table})
            while rows := await differing.fetchmany(_PAGE):
                parameters = [
                    {"id": self._id, "number": number + index, "partition": None, "key": key,
                     "before": before, "after": after}
                    for index, (key, before, after) in enumerate(rows)
                ]  # fmt: skip
                await storing.executemany(statement("insert_rebuild_row"), parameters)
                number += len(rows)

    async def _counts_and_examples(self) -> tuple[dict[str, int], list[Example]]:
        await self.leave_out_refused()
        cursor = await self._writer.execute(statement("rebuild_counts"), {"id": self._id})
        added, removed, changed = await cursor.fetchone() or (0, 0, 0)
        counts = {"added": added, "removed": removed, "changed": changed}
        examples = [example for kind in _KINDS for example in await self._examples(kind)]
        return counts, examples

    async def put(self, *, back: bool, now_ms: int) -> None:
        """Replace rows by rebuilt ones, or back, except rows that have changed since."""
        del now_ms  # Rows of workflows have no time of their own.
        old, new = ("after", "before") if back else ("before", "after")
        for table in self._tables:
            parts = {
                "served": self._served_table(table),
                "match": match(await self.key_of(table), "t.{}", "(kept.o).{}"),
                "old": sql.Identifier(old),
                "new": sql.Identifier(new),
            }
            for query in ("take_rebuilt_rows", "put_rebuilt_rows"):
                await self._do(filled(query, **parts), id=self._id, table=table)
            await self._do("drop table taken")

    # -- how rows are compared

    async def leave_out_refused(self) -> None:
        """Forget differences of rows that Postgres refuses to store."""

    async def differs(self, table: str) -> sql.Composable:
        """Return the condition that the rows `b`, which serves, and `a`, which is right, differ.

        JSON has no equality operator and its text matters, so whole rows are compared as text.
        """
        before, after = await self.text_of(table, "b"), await self.text_of(table, "a")
        return sql.SQL("{} is distinct from {}").format(before, after)

    async def text_of(self, table: str, row: LiteralString) -> sql.Composable:
        """Return the text of a row by its alias; null if there is none."""
        cursor = await self._do(statement("columns_of_table"), name=table)
        names = [name for name, _ in await cursor.fetchall()]
        if self._neutral.keys().isdisjoint(names):
            return sql.SQL(f"{row}::text")
        columns = [
            sql.SQL(self._neutral[name])
            if name in self._neutral
            else sql.SQL(f"{row}.{{}}").format(sql.Identifier(name))
            for name in names
        ]
        key, *_ = await self.key_of(table)
        return sql.SQL(
            f"case when {row}.{{key}} is not null then row({{columns}})::{{table}}::text end"
        ).format(
            key=sql.Identifier(key),
            columns=listed(columns),
            table=self._served_table(table),
        )

    def is_shown(self, table: str, column: str) -> bool:
        """Return whether examples contain a column in which rows differ."""
        del table, column
        return True

    # -- statements

    def _served_table(self, table: str) -> sql.Identifier:
        return sql.Identifier(self._served, table)

    def _with_schema(self, query: LiteralString, **parts: sql.Composable) -> bytes:
        schema = sql.Identifier(self._rebuilt)
        return sql.SQL(query).format(schema=schema, **parts).as_bytes(None)

    async def _do(self, query: bytes | LiteralString, **parameters: object) -> Any:  # noqa: ANN401
        return await self._connection.execute(query, parameters or None)

    async def _ends(self, query: str, connection: AsyncConnection[Any] | None = None) -> Offsets:
        cursor = await (connection or self._connection).execute(
            statement(query), {"projection": self._projection, "topics": self._topics}
        )
        ends: dict[str, dict[int, int]] = {topic: {} for topic in self._topics}
        for topic, partition, offset in await cursor.fetchall():
            ends[topic][partition] = offset
        return ends

    async def key_of(self, table: str) -> list[str]:
        """Return the columns of a table's primary key."""
        cursor = await self._do(statement("key_of_table"), table=f"{self._served}.{table}")
        return [name for (name,) in await cursor.fetchall()]

    async def _difference(self, table: str) -> bytes:
        key = await self.key_of(table)
        return filled(
            "rebuild_differences",
            differs=await self.differs(table),
            before=await self.text_of(table, "b"),
            after=await self.text_of(table, "a"),
            rebuilt=sql.Identifier(self._rebuilt, table),
            served=self._served_table(table),
            match=match(key, "b.{}", "a.{}"),
            key=listed([sql.SQL("coalesce(b.{0}, a.{0})").format(sql.Identifier(k)) for k in key]),
        )

    async def _examples(self, kind: str) -> list[Example]:
        query = filled("rebuild_examples", which=sql.SQL(_KINDS[kind]))
        cursor = await self._writer.execute(query, {"id": self._id, "limit": _EXAMPLES})
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
            key={name: names[name] for name in await self.key_of(table)},
            columns={
                name: (old.get(name), new.get(name))
                for name in names
                if old.get(name) != new.get(name) and self.is_shown(table, name)
            },
        )

    async def _columns(self, table: str, row: str | None) -> dict[str, Any]:
        """Return a row by column, with JSON as text."""
        if row is None:
            return {}
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            cursor.adapters.register_loader("json", TextLoader)
            query = filled("row_from_text", served=self._served_table(table))
            await cursor.execute(query, {"row": row})
            (columns,) = await cursor.fetchall()
            return columns


def match(key: Sequence[str], left: LiteralString, right: LiteralString) -> sql.Composed:
    """Return the condition that two rows have the same key, by templates of their columns."""
    pair = sql.SQL(f"{left} = {right}")
    return sql.SQL(" and ").join([pair.format(*[sql.Identifier(name)] * 2) for name in key])
