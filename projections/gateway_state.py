"""State of the gateway that only Postgres stores: idempotency keys and unexpected callbacks."""

from datetime import datetime
from typing import Final

import msgspec

from headwater.processors.idempotency_keys import REMEMBERED_MS, IdempotencyKey, StoredRequest
from headwater.projections.postgres.connections import PooledReader, Row
from headwater.projections.postgres.statements import statement
from headwater.schemas.errors import StoreUnavailable


class Hits(msgspec.Struct, frozen=True):
    """Number of hits ever and in the last 15 whole minutes, and the time of the last."""

    lifetime: int
    last_15m: int
    last_at: datetime | None


async def record_hits(reader: PooledReader, project: str, hits: int, at: datetime) -> None:
    """Record hits.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"project_id": project, "hits": hits, "at": at}
    await reader.writes(statement("record_unexpected_hits"), parameters)


async def hits_of(reader: PooledReader, project: str, at: datetime) -> Hits:
    """Return the hits of a project at a time.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("unexpected_hits"), project_id=project, at=at)
    return msgspec.convert(rows[0], Hits)


# -- idempotency keys

#: Maximum expired rows that a reservation deletes. It adds one, so they do not accumulate.
_SWEPT_AT_ONCE: Final = 10
#: Maximum expired rows that a sweep deletes in one transaction.
SWEEP_BATCH: Final = 1_000
#: Attempts to reserve a key that exists on insert but not on the following read.
_TRIES: Final = 3


class IdempotencyKeys:
    """The keys, through a pool of connections.

    All methods raise StoreUnavailable.
    """

    def __init__(self, reader: PooledReader) -> None:
        self._reader = reader

    async def find(self, key: IdempotencyKey) -> StoredRequest | None:
        """Return what is stored under a key, expired or not; None if there is nothing."""
        parameters = msgspec.structs.asdict(key)
        return _one(await self._reader.answers(statement("idempotency_key"), **parameters))

    async def reserve(self, key: IdempotencyKey, reservation: StoredRequest) -> StoredRequest:
        """Reserve a key, and delete some expired ones.

        A key of a refused request is overwritten. Ages are computed with the clock of Postgres,
        which all gateways share.

        Returns:
            What is stored under the key now: this reservation or an earlier one.
        """
        swept = {"remembered_ms": REMEMBERED_MS, "swept": _SWEPT_AT_ONCE}
        parameters = msgspec.structs.asdict(key) | msgspec.structs.asdict(reservation) | swept
        reserve = statement("reserve_idempotency_key")
        for _ in range(_TRIES):
            stored = _one(await self._reader.writes(reserve, parameters)) or await self.find(key)
            if stored is not None:
                return stored
        raise StoreUnavailable(
            "expected to reserve an idempotency key, found it inserted and deleted again"
        )

    async def sweep(self) -> int:
        """Delete expired keys, at most a batch; return how many."""
        parameters = {"remembered_ms": REMEMBERED_MS, "swept": SWEEP_BATCH}
        (row,) = await self._reader.writes(statement("sweep_idempotency_keys"), parameters)
        keys: int = row["keys"]
        return keys

    async def complete(
        self, key: IdempotencyKey, run_id: str, status: int, body: str
    ) -> StoredRequest | None:
        """Store the response of a request, unless there is one.

        It need not survive a crash of Postgres: a client that repeats the request then creates the
        same run.

        Returns:
            What is stored now; None if the key belongs to another run.
        """
        response = {"response_run_id": run_id, "status_code": status, "body": body}
        parameters = msgspec.structs.asdict(key) | response
        complete = statement("complete_idempotency_key")
        return _one(await self._reader.writes(complete, parameters, durable=False))

    async def refuse(self, key: IdempotencyKey, run_id: str) -> None:
        """Record that the run of a reservation was refused, unless it was created after all."""
        parameters = msgspec.structs.asdict(key) | {"response_run_id": run_id}
        await self._reader.writes(statement("refuse_idempotency_key"), parameters, durable=False)


def _one(rows: list[Row]) -> StoredRequest | None:
    return msgspec.convert(rows[0], StoredRequest) if rows else None
