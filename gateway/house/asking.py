"""Asking Terra for the data of many connections: side by side, and none for the others' failure."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import date
from http import HTTPStatus
from typing import Final

import msgspec
from typing_extensions import override

from headwater.gateway.house.outside import AsksTerra
from headwater.gateway.terra.errors import TerraFailed, TerraNotConfigured, TerraRefused
from headwater.processors.replay.errors import NonRetryableError

#: Requests on their way at once; the client's pace is what limits them.
_SIDE_BY_SIDE: Final = 8
#: Characters of a reason that are kept, of which a workflow may hold hundreds.
_REASON_MAX: Final = 200
#: Terra refuses us, not what was asked for.
_KEY_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Wanted(msgspec.Struct, frozen=True):
    """One request: a type of data of a connection; why says why it failed, if it did."""

    connection: str
    kind: str
    why: str = ""

    @override
    def __str__(self) -> str:
        """In words."""
        return f"{self.kind} of {self.connection}{self.why and f': {self.why}'}"


class Asked(msgspec.Struct, frozen=True):
    """What came of some requests.

    Shape:  taken is how many Terra has taken, unknown those of connections that it does not have;
            failed are those that may be made again, given_up is how many are not.
    """

    taken: int = 0
    unknown: int = 0
    failed: tuple[Wanted, ...] = ()
    given_up: int = 0

    def with_more(self, other: "Asked") -> "Asked":
        """Both together."""
        return together((self, other))


def together(several: Sequence[Asked]) -> Asked:
    """What came of all of them."""
    return Asked(
        sum(each.taken for each in several),
        sum(each.unknown for each in several),
        tuple(failed for each in several for failed in each.failed),
        sum(each.given_up for each in several),
    )


def wanted_of(connections: Iterable[str], kinds: Sequence[str]) -> list[Wanted]:
    """A request for each connection and type."""
    return [Wanted(each, kind) for each in connections for kind in kinds]


async def ask_one(terra: AsksTerra, wanted: Wanted, start: date, end: date) -> Asked:
    """Makes one request.

    Errors: NonRetryableError where it is of no use to go on; TerraFailed where it may be later.
    """
    try:
        await terra.request_data(wanted.kind, wanted.connection, start, end)
    except TerraNotConfigured as error:
        raise NonRetryableError(f"{error.code}: {error.message}") from error
    except TerraRefused as error:
        if error.is_unknown:
            return Asked(unknown=1)
        raise NonRetryableError(error.message) from error
    return Asked(taken=1)


async def ask_all(terra: AsksTerra, requests: Sequence[Wanted], start: date, end: date) -> Asked:
    """Makes requests side by side.

    Errors: TerraFailed when not one of them was answered: Terra is away, and nobody's request has
            failed. NonRetryableError when Terra refuses us, whatever we ask for.
    """
    gate = asyncio.Semaphore(_SIDE_BY_SIDE)
    unanswered: list[TerraFailed] = []

    async def ask(wanted: Wanted) -> Asked:
        async with gate:
            try:
                return await ask_one(terra, wanted, start, end)
            except NonRetryableError as error:
                cause = error.__cause__
                if not isinstance(cause, TerraRefused) or cause.status in _KEY_REFUSED:
                    raise
                return _failed(wanted, str(error))
            except TerraFailed as error:
                unanswered.append(error)
                return _failed(wanted, error.message)

    asked = together(await asyncio.gather(*map(ask, requests)))
    if unanswered and len(unanswered) == len(requests):
        raise unanswered[0]
    return asked


def _failed(wanted: Wanted, why: str) -> Asked:
    return Asked(failed=(msgspec.structs.replace(wanted, why=why[:_REASON_MAX]),))
