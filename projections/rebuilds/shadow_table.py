"""A second set of the rows of one projection table, to compare and repair the serving rows.

Rows are compared by their values. Who set them (`column_sources`), when they were written and in
which transaction are no differences, but are right again in a row that is written.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, DataError, sql
from typing_extensions import override

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.errors import store_edge
from headwater.projections.postgres.statements import (
    SqlColumn,
    key_columns,
    listed,
    template,
    value_columns,
)
from headwater.projections.postgres.writes import delete_synced, upsert_of
from headwater.projections.rebuilds.shadow_tables import Offsets, ShadowTables, match
from headwater.schemas.codec import decode_row
from headwater.schemas.tables import Table
from headwater.schemas.topics import WIPES

#: Begins a snapshot. A full join of tens of millions of rows takes minutes.
_SNAPSHOT: Final[tuple[LiteralString, ...]] = (
    "set transaction isolation level repeatable read, read only",
    "set local timezone to 'UTC'",
    "set local statement_timeout to '1h'",
)
#: Columns that differ with every write of a row.
_NEUTRAL: Final[dict[str, LiteralString]] = {
    "changed_in": "'0'::xid8",
    "updated_at": "'epoch'::timestamptz",
}


class ShadowTable(ShadowTables):
    """A second set of the rows of a projection table.

    A wipe removes rows, too, so the topic of wipes is paused with that of the table.

    Rows are compared in a snapshot, while the projector and readers of sync continue: the
    transaction of the snapshot writes nothing, and another connection stores what differs.

    Args:
        connect: Opens another connection.
    """

    compares_paused = False

    def __init__(
        self,
        connection: AsyncConnection[Any],
        rebuild_id: str,
        table: Table,
        connect: Callable[[], Awaitable[AsyncConnection[Any]]],
    ) -> None:
        super().__init__(
            connection,
            rebuild_id,
            projection=DELIVERIES.name,
            topics=[table.topic, WIPES],
            tables=[table.name],
            neutral=_NEUTRAL,
        )
        self._table = table
        self._connect = connect
        #: What rows were compared in; None if that was before this process.
        self._snapshot: str | None = None
        self._values = frozenset(column.name for column in value_columns(table))

    @override
    @asynccontextmanager
    async def comparable(
        self, complete: Callable[[Offsets], Awaitable[bool]]
    ) -> AsyncIterator[bool]:
        with store_edge("compare two versions of a projection"):
            async with AsyncExitStack() as exits:
                other = await exits.enter_async_context(await self._connect())
                # If the server has ended it, it fails at its end, and the snapshot is not used.
                async with other.transaction():
                    is_complete = await complete(await self.lock(other))
                    await exits.enter_async_context(self._connection.transaction())
                    for query in _SNAPSHOT:
                        await self._connection.execute(query)
                    cursor = await self._connection.execute("select pg_current_snapshot()::text")
                    (self._snapshot,) = await cursor.fetchone() or (None,)
                await other.execute("set timezone to 'UTC'")
                self._writer = other
                exits.callback(setattr, self, "_writer", self._connection)
                yield is_complete

    @override
    async def put(self, *, back: bool, now_ms: int) -> None:
        old, new = ("after", "before") if back else ("before", "after")
        parameters = {
            "id": self._id,
            "now_ms": now_ms,
            "table": self._table.name,
            "compared_at": None if back else self._snapshot,
        }
        to_delete = await self._rows("rows_to_delete", "(removed.o).{}", old, new)
        await self._connection.execute(delete_synced(self._table, to_delete), parameters)
        to_write = await self._rows("rows_to_write", "(written.n).{}", old, new)
        await self._connection.execute(upsert_of(self._table, to_write), parameters)

    async def _rows(
        self, query: str, stored: LiteralString, old: LiteralString, new: LiteralString
    ) -> sql.Composed:
        """Return a query of the rows to put that are still as the comparison left them."""
        return template(query).format(
            served=self._served_table(self._table.name),
            deletions=self._served_table("deletions"),
            match=match(self._table.key_names, "t.{}", stored),
            pairs=listed(
                [
                    sql.SQL("{}, (written.n).{}").format(sql.Literal(name), sql.Identifier(name))
                    for name in self._table.key_names
                ]
            ),
            current=await self.text_of(self._table.name, "t"),
            old=sql.Identifier(old),
            new=sql.Identifier(new),
        )

    @override
    async def differs(self, table: str) -> sql.Composable:
        columns = (*key_columns(self._table), *value_columns(self._table))
        return sql.SQL("({}) is distinct from ({})").format(
            _comparable("b", columns), _comparable("a", columns)
        )

    @override
    async def leave_out_refused(self) -> None:
        """Forget the removal of rows whose newest version Postgres refuses: it keeps an older one.

        `projection_errors` has these records, and `headwater doctor` reports them.
        """
        key = key_columns(self._table)
        forget = template("forget_refused_difference").format(
            key=listed([column.parameter for column in key])
        )
        errors = "select value from {}.projection_errors where value is not null"
        cursor = await self._writer.execute(sql.SQL(errors).format(sql.Identifier(self._rebuilt)))
        for (value,) in await cursor.fetchall():
            texts = zip(self._table.key_names, decode_row(self._table, value).key, strict=True)
            parameters = {"id": self._id, "table": self._table.name, **dict(texts)}
            with suppress(DataError):  # The key itself is refused, so there is no row.
                async with self._writer.transaction():
                    await self._writer.execute(forget, parameters)

    @override
    def is_shown(self, table: str, column: str) -> bool:
        return column in self._values


def _comparable(row: LiteralString, columns: Sequence[SqlColumn]) -> sql.Composed:
    """Return columns of a row with types that have an equality operator."""
    plain, text = sql.SQL(f"{row}.{{}}"), sql.SQL(f"{row}.{{}}::text")
    return listed([(text if c.type == "json" else plain).format(c.identifier) for c in columns])
