"""Request data from Terra for many connections concurrently; one failure does not stop others."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import date
from http import HTTPStatus
from typing import Final

import msgspec
from typing_extensions import override

from headwater.gateway.builtin.terra.answers import TerraFailed, TerraRefused
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.settings.terra import TerraNotConfigured
from headwater.processors.code.errors import NonRetryableError

#: Concurrent requests; the client limits their rate.
_CONCURRENT: Final = 8
#: Characters of a reason; a workflow's state may contain hundreds of reasons.
_REASON_MAX: Final = 200
#: Terra refuses the credentials, not the individual request.
_KEY_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class DataRequest(msgspec.Struct, frozen=True):
    """A request for one type of data of a connection; `why` is the reason if it failed."""

    connection: str
    kind: str
    why: str = ""

    @override
    def __str__(self) -> str:
        """Describe the request and its failure."""
        return f"{self.kind} of {self.connection}{self.why and f': {self.why}'}"


class RequestResults(msgspec.Struct, frozen=True):
    """Results of requests.

    Attributes:
        taken: Number of requests that Terra accepted.
        unknown: Number of requests for connections that Terra does not know.
        failed: Requests that failed and may be retried.
        given_up: Number of failed requests that are not retried.
    """

    taken: int = 0
    unknown: int = 0
    failed: tuple[DataRequest, ...] = ()
    given_up: int = 0

    def with_more(self, other: "RequestResults") -> "RequestResults":
        """Add other results."""
        return combined((self, other))


def combined(results: Sequence[RequestResults]) -> RequestResults:
    """Add up results."""
    return RequestResults(
        sum(result.taken for result in results),
        sum(result.unknown for result in results),
        tuple(failed for result in results for failed in result.failed),
        sum(result.given_up for result in results),
    )


def requests_of(connections: Iterable[str], kinds: Sequence[str]) -> list[DataRequest]:
    """Return one request per connection and type of data."""
    return [DataRequest(connection, kind) for connection in connections for kind in kinds]


async def request_one(terra: Terra, request: DataRequest, start: date, end: date) -> RequestResults:
    """Make a request.

    Raises:
        NonRetryableError: Retrying cannot succeed.
        TerraFailed: A retry may succeed.
    """
    try:
        await terra.request_data(request.kind, request.connection, start, end)
    except TerraNotConfigured as error:
        raise NonRetryableError(f"{error.code}: {error.message}") from error
    except TerraRefused as error:
        if error.is_unknown:
            return RequestResults(unknown=1)
        raise NonRetryableError(error.message) from error
    return RequestResults(taken=1)


async def request_all(
    terra: Terra, requests: Sequence[DataRequest], start: date, end: date
) -> RequestResults:
    """Make requests concurrently.

    Raises:
        TerraFailed: None of them was answered, so Terra is down; no request counts as failed.
        NonRetryableError: Terra refuses the credentials, so every request would fail.
    """
    gate = asyncio.Semaphore(_CONCURRENT)
    unanswered: list[TerraFailed] = []

    async def make(request: DataRequest) -> RequestResults:
        async with gate:
            try:
                return await request_one(terra, request, start, end)
            except NonRetryableError as error:
                cause = error.__cause__
                if not isinstance(cause, TerraRefused) or cause.status in _KEY_REFUSED:
                    raise
                return _failed(request, str(error))
            except TerraFailed as error:
                unanswered.append(error)
                return _failed(request, error.message)

    results = combined(await asyncio.gather(*map(make, requests)))
    if unanswered and len(unanswered) == len(requests):
        raise unanswered[0]
    return results


def _failed(request: DataRequest, why: str) -> RequestResults:
    return RequestResults(failed=(msgspec.structs.replace(request, why=why[:_REASON_MAX]),))
