"""Idempotency keys in Postgres, which alone holds them."""

from typing import Final

import msgspec

from headwater.processors.idempotency import REMEMBERED_MS, IdempotencyKey, StoredRequest
from headwater.projections.postgres.reader import PooledReader, Row
from headwater.projections.postgres.statements import statement
from headwater.schemas.errors import StoreUnavailable

__all__ = ["IdempotencyKeys"]

#: Rows that a reservation removes, at most: it adds one, so what is forgotten does not pile up.
_SWEPT_AT_ONCE: Final = 10
#: Times that a key is asked for which is there when it is to be reserved, and gone when it is read.
_TRIES: Final = 3


class IdempotencyKeys:
    """The keys, through a pool of connections.

    Errors: StoreUnavailable from every method.
    """

    def __init__(self, reader: PooledReader) -> None:
        self._reader = reader

    async def find(self, key: IdempotencyKey) -> StoredRequest | None:
        """Return what is remembered under a key, forgotten or not; None where there is nothing."""
        asked = msgspec.structs.asdict(key)
        return _one(await self._reader.answers(statement("idempotency_key"), **asked))

    async def reserve(self, key: IdempotencyKey, reservation: StoredRequest) -> StoredRequest:
        """Reserve a key, and sweep out some that are forgotten.

        A key that another request was refused under is taken over. How old keys are is decided by
        the clock of Postgres, which all gateways share.

        Returns:
            What is remembered under the key from then on: this, or what came before.
        """
        swept = {"remembered_ms": REMEMBERED_MS, "swept": _SWEPT_AT_ONCE}
        asked = msgspec.structs.asdict(key) | msgspec.structs.asdict(reservation) | swept
        reserve = statement("reserve_idempotency_key")
        for _ in range(_TRIES):
            found = _one(await self._reader.writes(reserve, asked)) or await self.find(key)
            if found is not None:
                return found
        raise StoreUnavailable("expected to reserve an idempotency key, found it come and go")

    async def complete(
        self, key: IdempotencyKey, run_id: str, status: int, body: str
    ) -> StoredRequest | None:
        """Keeps the answer of a request, unless it has one.

        It need not survive a crash of Postgres: whoever asks again then makes the same run.

        Shape:  what is remembered from then on; None where the key is another run's by now.
        """
        answer = {"response_run_id": run_id, "status_code": status, "body": body}
        asked = msgspec.structs.asdict(key) | answer
        complete = statement("complete_idempotency_key")
        return _one(await self._reader.writes(complete, asked, durable=False))

    async def refuse(self, key: IdempotencyKey, run_id: str) -> None:
        """Note that the run of a reservation was refused, unless it was made after all."""
        asked = msgspec.structs.asdict(key) | {"response_run_id": run_id}
        await self._reader.writes(statement("refuse_idempotency_key"), asked, durable=False)


def _one(rows: list[Row]) -> StoredRequest | None:
    return msgspec.convert(rows[0], StoredRequest) if rows else None
