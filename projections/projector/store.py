"""The projector's side of Postgres: a batch's rows and its next offsets, in one transaction.

Postgres alone knows how far a projection is. Each transaction first locks the offsets that it is
about to move and compares: what Postgres already has is left out, what would leave a gap is
refused. So a batch may be applied twice, late, or by a projector that has lost its partitions
without knowing, and nothing is written twice or goes back. With the offsets go the claims of
partitions that have an owner, so that reading on knows which records count.

A commit waits for the disk only where the gateway waits for the projection
(`Projection.is_waited_for`). Elsewhere synchronous_commit is off: rows and offsets are one
transaction, so a server that crashes loses both or neither, and what it lost is read from Kafka
again. What of that a reader had seen, it sees once more: each connection begins an epoch
(`deliveries.sync`). The commits of steps are not made here, and wait.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection, errors

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.projections.errors import BatchTooSlow, RecordRefused, store_edge
from headwater.projections.postgres.binary_rows import BinaryRows, BinaryRowsDumper, array_of
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import DELETES, UPSERTS, statement
from headwater.projections.projector.plan import Admitted, Batch, Partition, Plan, admit, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord, refusal
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.history import NO_CAUSE, NO_LEADER_EPOCH
from headwater.schemas.topics import DEAD_LETTERS, TRACES, retention_of

__all__ = ["SYNC_KEPT_DAYS", "Place", "Store"]

#: psycopg knows no shorter one; a server that is up answers within milliseconds.
_CONNECT_TIMEOUT_S: Final = 2
#: A batch takes a tenth of a second; a server that needs this long is gone or frozen.
_APPLY_TIMEOUT_S: Final = 60.0
#: The server's own limit comes first: only then does it say what took so long.
_STATEMENT_TIMEOUT_S: Final = 50.0
#: For how long readers of sync may be away: for as long their cursors are good.
SYNC_KEPT_DAYS: Final = 30
_SYNC_KEPT_MS: Final = SYNC_KEPT_DAYS * 24 * 60 * 60 * 1000
#: For how long the topics keep what dead letters and dropped copies are rows of.
_KEPT_MS: Final = {
    "letters_before_ms": retention_of(DEAD_LETTERS),
    "traces_before_ms": retention_of(TRACES),
}
_PRUNE_EVERY_MS: Final = 60 * 60 * 1000


class Place(NamedTuple):
    """How far a partition is applied: the next offset, and the claims before it.

    The leader epoch is that of the record before it, or a later one that was there then.
    """

    next_offset: int
    claims: Claims
    leader_epoch: int = NO_LEADER_EPOCH


class Store:
    """One connection of a projector, opened when needed and dropped when something is wrong.

    Args:
        schemas: Where tables are looked for before Headwater's own schema.
    """

    def __init__(
        self,
        dsn: str,
        *,
        projection: Projection,
        clock: Callable[[], int],
        statement_timeout_s: float = _STATEMENT_TIMEOUT_S,
        schemas: Sequence[str] = (),
    ) -> None:
        self._schemas = schemas
        self._statement_timeout = f"{round(statement_timeout_s * 1_000)}ms"
        self._dsn = dsn
        self._projection = projection.name
        self._clock = clock
        self._plan = projection.plan
        self._row_types = projection.row_types
        self._is_synced = projection.is_synced
        self._synchronous_commit = "on" if projection.is_waited_for else "off"
        self._pruned_at_ms = 0
        #: The oids that this session's row types have, by table.
        self._oids: dict[str, int] = {}
        self._connection: AsyncConnection[Any] | None = None

    async def offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the first offset of each partition that is not applied yet.

        Raises:
            StoreUnavailable: Postgres does not answer.
        """
        return {of: place.next_offset for of, place in (await self.places(partitions)).items()}

    async def places(self, partitions: Sequence[Partition]) -> dict[Partition, Place]:
        """Return from where to read each partition, and with which claims.

        Raises:
            StoreUnavailable: Postgres does not answer.
        """
        try:
            with store_edge("say how far the projection is"):
                async with asyncio.timeout(_APPLY_TIMEOUT_S):
                    connection = await self._connected()
                    named = self._named(partitions)
                    await connection.execute(statement("register_offsets"), named)
                    found = await connection.execute(statement("read_positions"), named)
                    return {
                        (topic, number): Place(offset, Claims(epoch, cause), leader_epoch)
                        for topic, number, offset, epoch, cause, leader_epoch in (
                            await found.fetchall()
                        )
                    }
        except StoreUnavailable:
            await self.close()
            raise

    async def apply(self, batch: Batch) -> tuple[Admitted, int]:
        """Apply a batch.

        Returns:
            What of it was new, and how many records were refused.

        Raises:
            StoreUnavailable: As far as is known nothing was applied; apply the same batch again.
            BatchTooSlow: The same, but apply fewer records at a time.
        """
        try:
            with store_edge("apply a batch"):
                async with asyncio.timeout(_APPLY_TIMEOUT_S):
                    return await self._apply(batch)
        except BaseException as error:
            # After a time-out or a cancellation the connection may be amid a transaction.
            await self.close()
            if isinstance(error.__cause__, errors.QueryCanceled | TimeoutError):
                raise BatchTooSlow(str(error)) from error
            raise

    async def apply_all(self, pages: AsyncIterator[Sequence[LogRecord]]) -> None:
        """Write rows in one transaction, page by page; offsets are not moved.

        Raises:
            StoreUnavailable: Nothing was written.
        """
        try:
            with store_edge("write many rows at once"):
                connection = await self._connected()
                async with connection.transaction():
                    async for page in pages:
                        async with asyncio.timeout(_APPLY_TIMEOUT_S):
                            await self._halve(connection, page)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = await AsyncConnection.connect(
                own_dsn(self._dsn, *self._schemas),
                autocommit=True,
                connect_timeout=_CONNECT_TIMEOUT_S,
                application_name=f"headwater-projector {self._projection}",
            )
            await self._begin_session(self._connection)
        return self._connection

    async def _begin_session(self, connection: AsyncConnection[Any]) -> None:
        if self._is_synced:
            await connection.execute(statement("begin_epoch"), {"now_ms": self._clock()})
        await connection.execute(
            statement("projector_session"),
            {
                "statement_timeout": self._statement_timeout,
                "synchronous_commit": self._synchronous_commit,
            },
        )
        self._oids = await self._make_row_types(connection)

    async def _make_row_types(self, connection: AsyncConnection[Any]) -> dict[str, int]:
        connection.adapters.register_dumper(BinaryRows, BinaryRowsDumper)
        for row_type in self._row_types.values():
            await connection.execute(row_type.creation)
        found = await connection.execute(statement("row_types"))
        oids = dict(await found.fetchall())
        return {table: oids[row_type.name] for table, row_type in self._row_types.items()}

    async def _apply(self, batch: Batch) -> tuple[Admitted, int]:
        connection = await self._connected()
        try:
            with store_edge("take the rows of a batch"):
                return await self._apply_whole(connection, batch)
        except RecordRefused:
            return await self._apply_in_parts(connection, batch)

    async def _apply_whole(
        self, connection: AsyncConnection[Any], batch: Batch
    ) -> tuple[Admitted, int]:
        async with connection.pipeline(), connection.transaction():
            admitted = await self._admit(connection, batch)
            planned = batch.plan if admitted.records is None else self._plan(admitted.records)
            await self._write(connection, planned)
            await self._advance(connection, admitted, batch)
            await self._prune(connection)
        return admitted, planned.unreadable

    async def _apply_in_parts(
        self, connection: AsyncConnection[Any], batch: Batch
    ) -> tuple[Admitted, int]:
        """Applies a batch that holds a value Postgres refuses: everything but those records."""
        async with connection.transaction():
            admitted = await self._admit(connection, batch)
            records = batch.records if admitted.records is None else admitted.records
            refused = await self._halve(connection, records)
            await self._advance(connection, admitted, batch)
        return admitted, refused

    async def _halve(self, connection: AsyncConnection[Any], records: Sequence[LogRecord]) -> int:
        """Writes records, dividing them until the refused ones stand alone."""
        if not records:
            return 0
        try:
            with store_edge("take the rows of a record"):
                async with connection.transaction():
                    planned = self._plan(records)
                    await self._write(connection, planned)
                    return planned.unreadable
        except RecordRefused as error:
            if len(records) == 1:
                refused = {"rows": payload([refusal(records[0], str(error))])}
                parameters = {**refused, "now_ms": self._clock()}
                await connection.execute(UPSERTS["projection_errors"], parameters)
                return 1
        middle = len(records) // 2
        first = await self._halve(connection, records[:middle])
        return first + await self._halve(connection, records[middle:])

    async def _admit(self, connection: AsyncConnection[Any], batch: Batch) -> Admitted:
        named = self._named(list(batch.spans))
        found = await connection.execute(statement("lock_offsets"), named)
        rows = await found.fetchall()
        return admit(batch, {(topic, number): offset for topic, number, offset in rows})

    async def _write(self, connection: AsyncConnection[Any], planned: Plan) -> None:
        now_ms = self._clock()
        for work in planned.works:
            query = DELETES[work.table] if work.delete else UPSERTS[work.table]
            rows = work.rows
            given = rows if isinstance(rows, str) else array_of(self._oids[work.table], rows)
            await connection.execute(query, {"rows": given, "now_ms": now_ms})

    async def _advance(
        self,
        connection: AsyncConnection[Any],
        admitted: Admitted,
        batch: Batch,
    ) -> None:
        if admitted.offsets:
            held = [batch.claims.get(partition) for partition in admitted.offsets]
            leaders = batch.leader_epochs
            parameters = {
                **self._named(list(admitted.offsets)),
                "next_offsets": list(admitted.offsets.values()),
                "epochs": [each.epoch if each else UNCLAIMED for each in held],
                "causes": [each.cause if each else NO_CAUSE for each in held],
                "leader_epochs": [leaders.get(of, NO_LEADER_EPOCH) for of in admitted.offsets],
                "now_ms": self._clock(),
            }
            await connection.execute(statement("write_offsets"), parameters)

    async def _prune(self, connection: AsyncConnection[Any]) -> None:
        """Forgets, now and then, what no cursor needs any more, and what its topic has not."""
        now_ms = self._clock()
        if self._is_synced and now_ms - self._pruned_at_ms > _PRUNE_EVERY_MS:
            before_ms = now_ms - _SYNC_KEPT_MS
            await connection.execute(statement("prune_sync"), {"before_ms": before_ms})
            kept = {name: now_ms - kept_ms for name, kept_ms in _KEPT_MS.items()}
            await connection.execute(statement("prune_deliveries"), kept)
            self._pruned_at_ms = now_ms

    def _named(self, partitions: Sequence[Partition]) -> Mapping[str, Any]:
        return {
            "projection": self._projection,
            "topics": [topic for topic, _ in partitions],
            "partitions": [number for _, number in partitions],
        }
