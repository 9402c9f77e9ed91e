"""Carrying out a rebuild, the side of Postgres: one connection, which holds the lock on it."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson
from psycopg import AsyncConnection, Rollback

from headwater.projections.errors import store_edge
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import statement
from headwater.projections.rebuilds.rebuilds import Example, Wipes

__all__ = ["ChangedRow", "RebuildWork", "RowRecord", "Wipes"]

_CONNECT_TIMEOUT_S: Final = 2
_PAGE: Final = 1_000


class ChangedRow(NamedTuple):
    """A row that comes out otherwise, as records of its topic."""

    number: int
    partition: int
    key: bytes
    before: bytes | None
    after: bytes | None


class RowRecord(NamedTuple):
    """A row as a record of its topic, for the projector's own code."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    offset: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


class RebuildWork:
    """What is written of a rebuild.

    Errors: StoreUnavailable from every method.
    """

    def __init__(self, dsn: str, rebuild_id: str) -> None:
        self._dsn = dsn
        self._id = rebuild_id
        self._connection: AsyncConnection[Any] | None = None

    async def begin(self) -> bool:
        """Connects; returns whether nobody else carries the rebuild out."""
        with store_edge("begin a rebuild"):
            self._connection = await AsyncConnection.connect(
                own_dsn(self._dsn), autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
            )
            found = await self._do("lock_rebuild")
            row = await found.fetchone()
            return bool(row and row[0])

    async def progress(self, applied: int, total: int) -> None:
        """Says how far it is."""
        with store_edge("note the progress of a rebuild"):
            await self._do("rebuild_progress", applied=applied, total=total)

    async def wipes(self) -> Wipes:
        """Which wipes Postgres knows of."""
        with store_edge("read which wipes there are"):
            found = await self._do("wipes_known")
            return Wipes(*await found.fetchone())

    async def compared(
        self,
        wipes: Wipes,
        rows: Iterable[ChangedRow],
        counts: dict[str, int],
        examples: Sequence[Example],
        ends: Sequence[int],
    ) -> bool:
        """Keeps the rows that differ, in the place of those of an earlier comparison.

        Shape:  False, and nothing is kept, if somebody was wiped since these wipes were known: the
                rows may be theirs.
        """
        with store_edge("keep the rows of a rebuild"):
            connection = self.connection
            async with connection.transaction():
                await self._do("forget_rebuild_rows")
                async with connection.cursor() as cursor:
                    given = ({"id": self._id, **row._asdict()} for row in rows)
                    await cursor.executemany(statement("insert_rebuild_row"), given)
                await self.note(counts, examples, ends)
                await self._do("lock_wipes")
                kept = await self.wipes() == wipes
                if not kept:
                    raise Rollback
        return kept

    async def note(
        self, counts: dict[str, int], examples: Sequence[Example], ends: Sequence[int]
    ) -> None:
        """Says that it is compared, up to these ends, and how many rows differ."""
        with store_edge("note what a rebuild has compared"):
            await self._do(
                "rebuild_compared",
                **counts,
                examples=orjson.dumps(examples, default=_plain).decode(),
                ends=orjson.dumps(list(ends)).decode(),
            )

    async def rows(self, after: int = 0) -> AsyncIterator[list[ChangedRow]]:
        """The rows that differ, some at a time."""
        number = after
        while True:
            with store_edge("read the rows of a rebuild"):
                found = await self._do("rebuild_rows", number=number, limit=_PAGE)
                page = [ChangedRow(*row) for row in await found.fetchall()]
            if not page:
                return
            yield page
            number = page[-1].number + 1

    async def sent(self, number: int) -> None:
        """Says of how many rows the owners were told."""
        with store_edge("note what was sent"):
            await self._do("rebuild_sent", sent=number)

    async def ended(self, state: str, error: str = "") -> None:
        """Says where it has come to."""
        with store_edge("end a rebuild"):
            await self._do("rebuild_ended", state=state, error=error)

    async def close(self) -> None:
        """Disconnects, which lets others carry it out."""
        if self._connection is not None:
            await self._connection.close()

    @property
    def connection(self) -> AsyncConnection[Any]:
        """The one that holds the lock."""
        if self._connection is None:
            raise RuntimeError("expected a rebuild that was begun")
        return self._connection

    async def _do(self, name: str, **parameters: object) -> Any:  # noqa: ANN401 (a cursor)
        return await self.connection.execute(statement(name), {"id": self._id, **parameters})


def _plain(value: object) -> object:
    if isinstance(value, Example):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    raise TypeError
