"""What is asked for under an idempotency key is done once: reserved, made, and answered again."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.command_service import CommandResult
from headwater.processors.idempotency import (
    Answered,
    Conflict,
    Key,
    Pending,
    Remembered,
    met,
    reservation,
)
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import IDEMPOTENCY_CONFLICT

_LOG: Final = logging.getLogger("headwater.gateway")


class IdempotencyKeyStore(Protocol):
    """What is remembered of requests.

    Errors: StoreUnavailable from every method.
    """

    async def reserve(self, key: Key, reservation: Remembered) -> Remembered:
        """Reserves a key; gives what is remembered from then on."""

    async def complete(self, key: Key, run_id: str, status: int, body: str) -> Remembered | None:
        """Keep the first answer; return what is remembered from then on."""

    async def refuse(self, key: Key, run_id: str) -> None:
        """Note that the run of a reservation was refused."""


class RunResult(NamedTuple):
    """What a request came to.

    Attributes:
        run_id: The run.
        status: Status of the answer.
        body: The answer.
        deduped: Whether an earlier request had made the run already.
        told: The replies to the command that has just made it.
    """

    run_id: str
    status: int
    body: str
    deduped: bool
    result: CommandResult | None = None


#: Makes the run of an id, however often it is called with it.
CreateRun: TypeAlias = Callable[[str], Awaitable[RunResult]]


class IdempotentRequest(NamedTuple):
    """What is asked for under a key.

    Shape:  the hash is of what was asked for, as far as that decides; run_id is what it makes if
            it is the first; `prepare` refuses before the key is bound to what cannot be.
    """

    key: Key
    request_hash: str
    run_id: str
    prepare: Callable[[], Awaitable[CreateRun]]


class Once:
    """Does what is requested under keys."""

    def __init__(self, keys: IdempotencyKeyStore) -> None:
        self._keys = keys

    async def do(self, asked: IdempotentRequest) -> RunResult:
        """Do what is requested, unless it was done; two who request it at once get one run.

        Raises:
            Problem: It is refused, or the key stands for something else.
            StoreUnavailable: Nothing was made.
        """
        make = await asked.prepare()
        new = reservation(asked.run_id, asked.request_hash)
        match met(await self._keys.reserve(asked.key, new), asked.request_hash):
            case Pending(run_id):
                return await self._made(asked, make, run_id)
            case Answered(run_id, status, body):
                return RunResult(run_id, status, body, deduped=True)
            case Conflict():
                raise Problem(
                    IDEMPOTENCY_CONFLICT,
                    "expected what was sent before with this idempotency key, found something "
                    "else; use a new key for each thing that is to be done once",
                    field="Idempotency-Key",
                )

    async def _made(self, asked: IdempotentRequest, make: CreateRun, run_id: str) -> RunResult:
        """Make a run, and answer as it was answered the first time."""
        try:
            created = await make(run_id)
        except Problem:
            await self._free(asked.key, run_id)
            raise
        try:
            kept = await self._keys.complete(asked.key, run_id, created.status, created.body)
        except StoreUnavailable:
            # The run is made. A request that is sent again finds it by the reservation.
            return created
        return (
            created if kept is None else created._replace(status=kept.status_code, body=kept.body)
        )

    async def _free(self, key: Key, run_id: str) -> None:
        """Free a key whose request was refused; best effort, the refusal is what is answered."""
        try:
            await self._keys.refuse(key, run_id)
        except StoreUnavailable as error:
            _LOG.warning("an idempotency key stays bound to what was refused: %s", error)
