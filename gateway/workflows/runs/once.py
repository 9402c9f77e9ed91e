"""What is asked for under an idempotency key is done once: reserved, made, and answered again."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple, Protocol, TypeAlias

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.writing import Told
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


class Keys(Protocol):
    """What is remembered of requests.

    Errors: StoreUnavailable from every method.
    """

    async def reserve(self, key: Key, reservation: Remembered) -> Remembered:
        """Reserves a key; gives what is remembered from then on."""

    async def complete(self, key: Key, run_id: str, status: int, body: str) -> Remembered | None:
        """Keeps the first answer; gives what is remembered from then on."""


class Made(NamedTuple):
    """What a request came to.

    Shape:  deduped if a request before it had made it already; told is what has just become of it.
    """

    run_id: str
    body: str
    deduped: bool
    told: Told | None = None


#: Makes the run of an id, however often it is called with it.
Make: TypeAlias = Callable[[str], Awaitable[Made]]


class Asked(NamedTuple):
    """What is asked for under a key.

    Shape:  the hash is of what was asked for, as far as that decides; run_id is what it makes if
            it is the first; `prepare` refuses before the key is bound to what cannot be.
    """

    key: Key
    request_hash: str
    run_id: str
    prepare: Callable[[], Awaitable[Make]]


class Once:
    """Does what is asked for under keys."""

    def __init__(self, keys: Keys, *, clock: Callable[[], int]) -> None:
        self._keys = keys
        self._clock = clock

    async def do(self, asked: Asked) -> Made:
        """Does it, unless it was done; if it is under way, nobody does it twice.

        Errors: Problem; StoreUnavailable, when nothing was made.
        """
        make = await asked.prepare()
        now_ms = self._clock()
        new = reservation(asked.run_id, asked.request_hash, now_ms)
        found = met(await self._keys.reserve(asked.key, new), asked.request_hash, now_ms)
        assert found is not None, "what is reserved now is not forgotten"  # noqa: S101
        match found:
            case Pending(run_id):
                return await self._made(asked, await make(run_id))
            case Answered(run_id, _, body):
                return Made(run_id, body, deduped=True)
            case Conflict():
                raise Problem(
                    IDEMPOTENCY_CONFLICT,
                    "expected what was sent before with the idempotency key "
                    f"{asked.key.idempotency_key}, found something else; use a new key for each "
                    "thing that is to be done once",
                    field="Idempotency-Key",
                )

    async def _made(self, asked: Asked, made: Made) -> Made:
        """What was made, answered as it was the first time."""
        try:
            kept = await self._keys.complete(asked.key, made.run_id, HTTPStatus.CREATED, made.body)
        except StoreUnavailable:
            # The run is made. Whoever asks again is led to it by the reservation.
            return made
        return made if kept is None else made._replace(body=kept.body)
