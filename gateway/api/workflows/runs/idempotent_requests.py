"""Creation of runs under an idempotency key.

A request reserves its key, creates the run, and stores the response, which later requests with the
same key get again.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.command_service import CommandResult
from headwater.processors.idempotency import (
    Answered,
    Conflict,
    IdempotencyKey,
    Pending,
    StoredRequest,
    key_result,
    reservation,
)
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import IDEMPOTENCY_CONFLICT

_LOG: Final = logging.getLogger("headwater.gateway")


class IdempotencyKeyStore(Protocol):
    """Storage of idempotency keys and responses.

    Raises:
        StoreUnavailable: Every method raises it.
    """

    async def reserve(self, key: IdempotencyKey, reservation: StoredRequest) -> StoredRequest:
        """Reserve a key; return what is stored under it afterwards."""

    async def complete(
        self, key: IdempotencyKey, run_id: str, status: int, body: str
    ) -> StoredRequest | None:
        """Store the first response of a key; return what is stored afterwards."""

    async def refuse(self, key: IdempotencyKey, run_id: str) -> None:
        """Record that the run of a reservation was refused."""


class RunResult(NamedTuple):
    """Result of a request that creates a run.

    Attributes:
        run_id: The run.
        status: Status of the response.
        body: Body of the response.
        deduped: Whether an earlier request created the run.
        command: Result of the command that created the run just now.
    """

    run_id: str
    status: int
    body: str
    deduped: bool
    command: CommandResult | None = None


#: Creates the run with an id; calling it again with the same id has no effect.
CreateRun: TypeAlias = Callable[[str], Awaitable[RunResult]]


class IdempotentRequest(NamedTuple):
    """A request with an idempotency key.

    Attributes:
        key: The key.
        request_hash: Hash of the parts of the request that must not differ under the key.
        run_id: Id of the run that the first request creates.
        prepare: Returns what creates the run. It may refuse the request before the key is reserved.
    """

    key: IdempotencyKey
    request_hash: str
    run_id: str
    prepare: Callable[[], Awaitable[CreateRun]]


class IdempotentRequests:
    """Executes idempotent requests."""

    def __init__(self, keys: IdempotencyKeyStore) -> None:
        self._keys = keys

    async def execute(self, request: IdempotentRequest) -> RunResult:
        """Execute a request, or return the response of an earlier one with the same key.

        Concurrent requests with the same key create one run.

        Raises:
            Problem: The request was refused, or the key was used for a different request.
            StoreUnavailable: Postgres is unavailable; no run was created.
        """
        create = await request.prepare()
        new = reservation(request.run_id, request.request_hash)
        match key_result(await self._keys.reserve(request.key, new), request.request_hash):
            case Pending(run_id):
                return await self._create(request, create, run_id)
            case Answered(run_id, status, body):
                return RunResult(run_id, status, body, deduped=True)
            case Conflict():
                raise Problem(
                    IDEMPOTENCY_CONFLICT,
                    "expected the request that was sent before with this idempotency key, found a "
                    "different one; use a new key for every request that is to be executed once",
                    field="Idempotency-Key",
                )

    async def _create(
        self, request: IdempotentRequest, create: CreateRun, run_id: str
    ) -> RunResult:
        """Create a run, and return the first response that is stored for it."""
        try:
            created = await create(run_id)
        except Problem:
            await self._free(request.key, run_id)
            raise
        try:
            stored = await self._keys.complete(request.key, run_id, created.status, created.body)
        except StoreUnavailable:
            # The run exists. A repeated request finds it by the reservation.
            return created
        if stored is None:
            return created
        return created._replace(status=stored.status_code, body=stored.body)

    async def _free(self, key: IdempotencyKey, run_id: str) -> None:
        """Free the key of a refused request, as far as possible; the refusal is the response."""
        try:
            await self._keys.refuse(key, run_id)
        except StoreUnavailable as error:
            _LOG.warning("could not free the idempotency key of a refused request: %s", error)
