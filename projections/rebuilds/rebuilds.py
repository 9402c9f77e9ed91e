"""Rebuilds and verifications in Postgres: request, read and carry out, one at a time."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from psycopg import AsyncConnection

from headwater.projections.errors import store_edge
from headwater.projections.postgres.connections import PooledReader, Row, own_dsn
from headwater.projections.postgres.statements import statement

#: States in which work is pending.
PENDING_STATES = ("building", "switching", "switching_back")


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A row that differs: its columns with the value in Postgres and the right one."""

    kind: str
    table: str
    key: dict[str, Any]
    columns: dict[str, tuple[Any, Any]]


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuild with all details, or a verification, which has no version."""

    id: str
    projection: str
    version: int | None
    dry_run: bool
    state: str
    applied: int
    total: int
    added: int
    removed: int
    changed: int
    examples: tuple[Example, ...]
    ends: tuple[int, ...]
    sent: int
    error: str
    created_at: datetime

    @property
    def is_verification(self) -> bool:
        """Whether rows are only compared."""
        return self.version is None


class Wipes(NamedTuple):
    """Changes with every wipe that Postgres receives."""

    number: int
    latest: datetime | None


async def wipes_known(reader: PooledReader) -> Wipes:
    """Return which wipes Postgres has received.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    (row,) = await reader.answers(statement("wipes_known"))
    return Wipes(**row)


async def begin(
    reader: PooledReader,
    rebuild_id: str,
    projection: str,
    *,
    dry_run: bool = False,
    verify: bool = False,
) -> Rebuild | None:
    """Request a rebuild or a verification; None if one of this projection is in progress.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {
        "id": rebuild_id, "projection": projection, "dry_run": dry_run, "verify": verify
    }  # fmt: skip
    return _one(await reader.writes(statement("begin_rebuild"), parameters))


async def find(reader: PooledReader, rebuild_id: str) -> Rebuild | None:
    """Return a rebuild.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    return _one(await reader.answers(statement("rebuild"), id=rebuild_id))


async def latest(reader: PooledReader, *, limit: int) -> list[Rebuild]:
    """Return rebuilds, newest first.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("rebuilds"), limit=limit)
    return msgspec.convert(rows, list[Rebuild])


async def request_state(
    reader: PooledReader, rebuild_id: str, state: str, *, after: tuple[str, ...]
) -> Rebuild | None:
    """Request the next state of a rebuild; None if its current state does not allow that.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"id": rebuild_id, "state": state, "after": list(after)}
    return _one(await reader.writes(statement("request_rebuild_state"), parameters))


async def under_way(reader: PooledReader) -> list[str]:
    """Return the rebuilds with pending work.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("rebuilds_under_way"), states=list(PENDING_STATES))
    return [row["id"] for row in rows]


async def are_locked(reader: PooledReader) -> bool:
    """Return whether a process carries out a rebuild.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    (row,) = await reader.answers(statement("rebuilds_locked"))
    return bool(row["number"])


def _one(rows: list[Row]) -> Rebuild | None:
    return msgspec.convert(rows[0], Rebuild) if rows else None


# -- work under the lock

_CONNECT_TIMEOUT_S: Final = 2
_NOTE_EVERY_S: Final = 0.5
_PAGE: Final = 1_000


class ChangedRow(NamedTuple):
    """A row that its owner has to change, as records of its topic."""

    number: int
    partition: int
    key: bytes
    before: bytes | None
    after: bytes | None


class RowRecord(NamedTuple):
    """A row as a record of its topic, for the projector's code."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    offset: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


class RebuildWork:
    """Stores the progress and results of a rebuild.

    All methods raise StoreUnavailable.
    """

    def __init__(self, dsn: str, rebuild_id: str) -> None:
        self._dsn = dsn
        self._id = rebuild_id
        self._connection: AsyncConnection[Any] | None = None
        self._noted_at_s = 0.0

    async def begin(self) -> bool:
        """Connect. Return False if another process carries out a rebuild."""
        with store_edge("begin a rebuild"):
            self._connection = await self.connect()
            cursor = await self._do("lock_rebuilds")
            row = await cursor.fetchone()
            return bool(row and row[0])

    async def connect(self) -> AsyncConnection[Any]:
        """Open another connection."""
        with store_edge("connect for a rebuild"):
            return await AsyncConnection.connect(
                own_dsn(self._dsn), autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
            )

    async def progress(self, applied: int, total: int) -> None:
        """Record the progress."""
        with store_edge("record the progress of a rebuild"):
            await self._do("rebuild_progress", applied=applied, total=total)

    async def note_progress(self, applied: int, total: int) -> None:
        """Record the progress, if that was not done just before."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._noted_at_s > _NOTE_EVERY_S:
            self._noted_at_s = now_s
            await self.progress(applied, total)

    async def wipes(self) -> Wipes:
        """Return which wipes Postgres has received."""
        with store_edge("read which wipes there are"):
            cursor = await self._do("wipes_known")
            return Wipes(*await cursor.fetchone())

    async def has_wipes_under_way(self) -> bool:
        """Return whether owners still remove rows of a wiped user."""
        with store_edge("read which wipes there are"):
            cursor = await self._do("wipes_under_way")
            (number,) = await cursor.fetchone()
            return bool(number)

    async def forget_rows(self) -> None:
        """Forget the rows of an earlier comparison."""
        with store_edge("forget the rows of a rebuild"):
            await self._do("forget_rebuild_rows")

    async def store_rows(self, rows: Iterable[ChangedRow]) -> None:
        """Store rows that their owners have to change."""
        with store_edge("keep the rows of a rebuild"):
            async with self.connection.transaction(), self.connection.cursor() as cursor:
                parameters = ({"id": self._id, **row._asdict()} for row in rows)
                await cursor.executemany(statement("insert_rebuild_row"), parameters)

    async def forget_row(self, partition: int, key: bytes) -> None:
        """Forget that an owner has to change a row."""
        with store_edge("forget a row of a rebuild"):
            await self._do("forget_rebuild_row", partition=partition, key=key)

    async def store_counts(
        self, counts: dict[str, int], examples: Sequence[Example], ends: Sequence[int]
    ) -> None:
        """Record how many rows differ, compared up to these end offsets."""
        with store_edge("record what a rebuild has compared"):
            await self._do(
                "rebuild_compared",
                **counts,
                examples=orjson.dumps(examples, default=_plain).decode(),
                ends=orjson.dumps(list(ends)).decode(),
            )

    async def rows(self, after: int = 0) -> AsyncIterator[list[ChangedRow]]:
        """Yield the rows that owners have to change, page by page."""
        number = after
        while True:
            with store_edge("read the rows of a rebuild"):
                cursor = await self._do("rebuild_rows", number=number, limit=_PAGE)
                page = [ChangedRow(*row) for row in await cursor.fetchall()]
            if not page:
                return
            yield page
            number = page[-1].number + 1

    async def record_sent(self, number: int) -> None:
        """Record how many rows were published to the owners."""
        with store_edge("record what was sent"):
            await self._do("rebuild_sent", sent=number)

    async def end(self, state: str, error: str = "") -> None:
        """Record the final state."""
        with store_edge("end a rebuild"):
            await self._do("rebuild_ended", state=state, error=error)

    async def close(self) -> None:
        """Disconnect, which releases the lock."""
        if self._connection is not None:
            await self._connection.close()

    @property
    def connection(self) -> AsyncConnection[Any]:
        """The connection that holds the lock."""
        if self._connection is None:
            raise RuntimeError("expected a rebuild that was begun")
        return self._connection

    async def _do(self, name: str, **parameters: object) -> Any:  # noqa: ANN401 (a cursor)
        return await self.connection.execute(statement(name), {"id": self._id, **parameters})


def _plain(value: object) -> object:
    if isinstance(value, Example):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    raise TypeError
