"""The projector's access to Postgres: a batch's rows and next offsets in one transaction.

Only Postgres knows how far a projection is. Each transaction first locks the offsets that it will
advance and compares: records that Postgres already has are skipped, and a batch that would leave a
gap is rejected. So a batch may be applied twice, late, or by a projector that lost its partitions
without noticing: nothing is written twice or goes back. Claims of partitions with an owner are
stored with the offsets, to know later which records are admitted.

A commit waits for the disk only if the gateway waits for the projection
(`Projection.is_waited_for`). Otherwise synchronous_commit is off: rows and offsets are one
transaction, so a crashing server loses both or neither, and lost ones are read from Kafka again.
Readers then see those rows again: each connection begins an epoch (`deliveries.sync`). Commits of
steps are not made here; they wait for the disk.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection, errors

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.projections.errors import BatchTooSlow, RecordRefused, store_edge
from headwater.projections.postgres.binary_rows import BinaryRows, BinaryRowsDumper, array_of
from headwater.projections.postgres.connections import PooledReader, own_dsn
from headwater.projections.postgres.statements import statement
from headwater.projections.postgres.writes import DELETES, UPSERTS
from headwater.projections.projector.projection import (
    Admitted,
    Batch,
    LogRecord,
    Partition,
    Plan,
    Projection,
    admit,
    payload,
    refusal,
)
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.history import NO_CAUSE, NO_LEADER_EPOCH
from headwater.schemas.topics import DEAD_LETTERS, TRACES, retention_of


async def next_offsets(reader: PooledReader, projection: str, topic: str) -> dict[int, int]:
    """Return the next offset to apply of each partition of a topic.

    Partitions without a projector so far are missing.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("next_offsets"), projection=projection, topic=topic)
    return {row["partition"]: row["next_offset"] for row in rows}


# -- transactions

#: The minimum in psycopg; a running server answers within milliseconds.
_CONNECT_TIMEOUT_S: Final = 2
#: A batch takes a tenth of a second; a server that needs this long is down or frozen.
_APPLY_TIMEOUT_S: Final = 60.0
#: The server's limit is shorter, so that its error names the slow statement.
_STATEMENT_TIMEOUT_S: Final = 50.0
#: How long cursors of sync are valid.
SYNC_KEPT_DAYS: Final = 30
_SYNC_KEPT_MS: Final = SYNC_KEPT_DAYS * 24 * 60 * 60 * 1000
#: Retention of the topics of dead letters and traces.
_KEPT_MS: Final = {
    "letters_before_ms": retention_of(DEAD_LETTERS),
    "traces_before_ms": retention_of(TRACES),
}
_PRUNE_EVERY_MS: Final = 60 * 60 * 1000


class AppliedPosition(NamedTuple):
    """Progress on a partition: the next offset, and the claims before it.

    The leader epoch is that of the record before it, or a later one known at that time.
    """

    next_offset: int
    claims: Claims
    leader_epoch: int = NO_LEADER_EPOCH


class Store:
    """One connection of a projector, opened on use and dropped on errors.

    Args:
        schemas: Schemas to search for tables before Headwater's own.
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
        #: OIDs of this session's row types, by table.
        self._oids: dict[str, int] = {}
        self._connection: AsyncConnection[Any] | None = None

    async def offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the next offset to apply of each partition.

        Raises:
            StoreUnavailable: Postgres does not answer.
        """
        positions = await self.positions(partitions)
        return {partition: position.next_offset for partition, position in positions.items()}

    async def positions(self, partitions: Sequence[Partition]) -> dict[Partition, AppliedPosition]:
        """Return where to continue reading each partition, and its claims.

        Raises:
            StoreUnavailable: Postgres does not answer.
        """
        try:
            with store_edge("return applied offsets"):
                async with asyncio.timeout(_APPLY_TIMEOUT_S):
                    connection = await self._connected()
                    parameters = self._parameters(partitions)
                    await connection.execute(statement("register_offsets"), parameters)
                    cursor = await connection.execute(statement("read_positions"), parameters)
                    return {
                        (topic, number): AppliedPosition(offset, Claims(epoch, cause), leader_epoch)
                        for topic, number, offset, epoch, cause, leader_epoch in (
                            await cursor.fetchall()
                        )
                    }
        except StoreUnavailable:
            await self.close()
            raise

    async def apply(self, batch: Batch) -> tuple[Admitted, int]:
        """Apply a batch.

        Returns:
            The new part of it, and how many records were refused.

        Raises:
            StoreUnavailable: Nothing was applied as far as is known; apply the batch again.
            BatchTooSlow: As before, but apply fewer records at a time.
        """
        try:
            with store_edge("apply a batch"):
                async with asyncio.timeout(_APPLY_TIMEOUT_S):
                    return await self._apply(batch)
        except BaseException as error:
            # After a timeout or cancellation the connection may be in a transaction.
            await self.close()
            if isinstance(error.__cause__, errors.QueryCanceled | TimeoutError):
                raise BatchTooSlow(str(error)) from error
            raise

    async def write_rows(self, records: Sequence[LogRecord]) -> None:
        """Write rows in a transaction; offsets are not moved.

        Raises:
            StoreUnavailable: Nothing was written.
        """
        try:
            with store_edge("write rows"):
                async with asyncio.timeout(_APPLY_TIMEOUT_S):
                    connection = await self._connected()
                    async with connection.transaction():
                        await self._write_bisecting(connection, records)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection; the next use opens another."""
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
        cursor = await connection.execute(statement("row_types"))
        oids = dict(await cursor.fetchall())
        return {table: oids[row_type.name] for table, row_type in self._row_types.items()}

    async def _apply(self, batch: Batch) -> tuple[Admitted, int]:
        connection = await self._connected()
        try:
            with store_edge("accept the rows of a batch"):
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
        """Apply a batch with values that Postgres rejects, without those records."""
        async with connection.transaction():
            admitted = await self._admit(connection, batch)
            records = batch.records if admitted.records is None else admitted.records
            refused = await self._write_bisecting(connection, records)
            await self._advance(connection, admitted, batch)
        return admitted, refused

    async def _write_bisecting(
        self, connection: AsyncConnection[Any], records: Sequence[LogRecord]
    ) -> int:
        """Write records, splitting them until the rejected ones are isolated."""
        if not records:
            return 0
        try:
            with store_edge("accept the rows of a record"):
                async with connection.transaction():
                    planned = self._plan(records)
                    await self._write(connection, planned)
                    return planned.unreadable
        except RecordRefused as error:
            if len(records) == 1:
                rows = {"rows": payload([refusal(records[0], str(error))])}
                parameters = {**rows, "now_ms": self._clock()}
                await connection.execute(UPSERTS["projection_errors"], parameters)
                return 1
        middle = len(records) // 2
        first = await self._write_bisecting(connection, records[:middle])
        return first + await self._write_bisecting(connection, records[middle:])

    async def _admit(self, connection: AsyncConnection[Any], batch: Batch) -> Admitted:
        parameters = self._parameters(list(batch.spans))
        cursor = await connection.execute(statement("lock_offsets"), parameters)
        rows = await cursor.fetchall()
        return admit(batch, {(topic, number): offset for topic, number, offset in rows})

    async def _write(self, connection: AsyncConnection[Any], planned: Plan) -> None:
        now_ms = self._clock()
        for row_statement in planned.statements:
            query = (
                DELETES[row_statement.table]
                if row_statement.delete
                else UPSERTS[row_statement.table]
            )
            rows = row_statement.rows
            parameter = (
                rows if isinstance(rows, str) else array_of(self._oids[row_statement.table], rows)
            )
            await connection.execute(query, {"rows": parameter, "now_ms": now_ms})

    async def _advance(
        self,
        connection: AsyncConnection[Any],
        admitted: Admitted,
        batch: Batch,
    ) -> None:
        if admitted.offsets:
            claims = [batch.claims.get(partition) for partition in admitted.offsets]
            epochs = batch.leader_epochs
            parameters = {
                **self._parameters(list(admitted.offsets)),
                "next_offsets": list(admitted.offsets.values()),
                "epochs": [claim.epoch if claim else UNCLAIMED for claim in claims],
                "causes": [claim.cause if claim else NO_CAUSE for claim in claims],
                "leader_epochs": [
                    epochs.get(partition, NO_LEADER_EPOCH) for partition in admitted.offsets
                ],
                "now_ms": self._clock(),
            }
            await connection.execute(statement("write_offsets"), parameters)

    async def _prune(self, connection: AsyncConnection[Any]) -> None:
        """Periodically delete what no cursor needs anymore and what its topic no longer has."""
        now_ms = self._clock()
        if self._is_synced and now_ms - self._pruned_at_ms > _PRUNE_EVERY_MS:
            before_ms = now_ms - _SYNC_KEPT_MS
            await connection.execute(statement("prune_sync"), {"before_ms": before_ms})
            limits = {name: now_ms - retention_ms for name, retention_ms in _KEPT_MS.items()}
            await connection.execute(statement("prune_deliveries"), limits)
            self._pruned_at_ms = now_ms

    def _parameters(self, partitions: Sequence[Partition]) -> Mapping[str, Any]:
        return {
            "projection": self._projection,
            "topics": [topic for topic, _ in partitions],
            "partitions": [number for _, number in partitions],
        }
