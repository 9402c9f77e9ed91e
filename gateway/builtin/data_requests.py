"""Request data from Terra for many connections concurrently; one failure does not stop others."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import msgspec
from typing_extensions import override

from headwater.gateway.builtin.instances import BACKFILL_DAYS, IMPORT
from headwater.gateway.builtin.terra.answers import TerraFailed, TerraRefused
from headwater.gateway.builtin.terra.client import DATA_TYPES, Terra
from headwater.gateway.settings.terra import TerraNotConfigured
from headwater.processors.code.errors import NonRetryableError
from headwater.processors.providers.terra.backfill import BACKFILL
from headwater.projections.deliveries.imports import ImportNames

#: Concurrent requests; the client limits their rate.
_CONCURRENT: Final = 8
#: Characters of a reason; a workflow's state may contain hundreds of reasons.
_REASON_MAX: Final = 200
#: Name of the error of a request that Terra refuses as not permitted.
REFUSED: Final = "TerraRefused"
#: Label of instances about a user: a digest of the user's id.
USER_LABEL: Final = "user"
IMPORT_NAMES: Final = ImportNames(
    imports=IMPORT,
    backfills=BACKFILL,
    backfill_days=BACKFILL_DAYS,
    types=DATA_TYPES,
    refused=REFUSED,
    label=USER_LABEL,
)


class DataRequest(msgspec.Struct, frozen=True):
    """A request for one type of data of a connection; `why` is the reason if it failed."""

    connection: str
    kind: str
    why: str = ""

    @override
    def __str__(self) -> str:
        """Describe the request and its failure."""
        return f"{self.kind} of {self.connection}{self.why and f': {self.why}'}"


class Answer(StrEnum):
    """Terra's answer to a request."""

    TAKEN = "taken"
    #: The connection does not support the type of data.
    UNSUPPORTED = "unsupported"
    #: There is no such connection, or it does not support the type: Terra answers 404 to both.
    UNKNOWN = "unknown"
    #: The connection does not permit it.
    REFUSED = "refused"


#: Answers other than 2xx that concern the request alone. Terra documents 404 or 400 for a type that
#: a connection does not support, and 424 for a permission that the user has not given.
_ANSWERS: Final[Mapping[int | None, Answer]] = {
    HTTPStatus.BAD_REQUEST: Answer.UNSUPPORTED,
    HTTPStatus.NOT_FOUND: Answer.UNKNOWN,
    HTTPStatus.FAILED_DEPENDENCY: Answer.REFUSED,
}
#: The connection does not permit it, or the credentials are wrong.
_NOT_PERMITTED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class RequestResults(msgspec.Struct, frozen=True):
    """Results of requests.

    Attributes:
        taken: Number of requests that Terra accepted.
        refused: Number of requests that Terra does not permit.
        unsupported: Number of requests for data that the connection does not have.
        unknown: Number of requests for connections that Terra does not know.
        failed: Requests that failed and may be retried.
        given_up: Number of failed requests that are not retried.
        refusals: The refused requests of one page, with Terra's reason.
    """

    taken: int = 0
    refused: int = 0
    unsupported: int = 0
    unknown: int = 0
    failed: tuple[DataRequest, ...] = ()
    given_up: int = 0
    refusals: tuple[DataRequest, ...] = ()

    def with_more(self, other: "RequestResults") -> "RequestResults":
        """Add other results."""
        return RequestResults(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )


def counted(answers: Iterable[tuple[DataRequest, Answer]]) -> RequestResults:
    """Count the answers to requests.

    Terra does not know a connection if it answers 404 to all types of data; if it answers so to
    some, the connection does not support these.
    """
    answers = list(answers)
    of = Counter(answer for _, answer in answers)
    not_found = Counter(
        request.connection for request, answer in answers if answer is Answer.UNKNOWN
    )
    unknown = sum(number for number in not_found.values() if number == len(DATA_TYPES))
    return RequestResults(
        taken=of[Answer.TAKEN],
        refused=of[Answer.REFUSED],
        unsupported=of[Answer.UNSUPPORTED] + of[Answer.UNKNOWN] - unknown,
        unknown=unknown,
    )


def requests_of(connections: Iterable[str], kinds: Sequence[str]) -> list[DataRequest]:
    """Return one request per connection and type of data."""
    return [DataRequest(connection, kind) for connection in connections for kind in kinds]


def all_refused(messages: Sequence[str]) -> NonRetryableError:
    """Return the error of a run or a page whose requests were all refused, by Terra's reasons."""
    return NonRetryableError(
        f"Terra refused all {len(messages)} requests, so check HEADWATER_TERRA_DEV_ID and "
        f"HEADWATER_TERRA_API_KEY, then retry the instance: {messages[0]}",
        REFUSED,
    )


@contextmanager
def refusals_are_final() -> Iterator[None]:
    """Turn a refusal of Terra, or missing credentials, into an error that is not retried.

    Raises:
        NonRetryableError: Its name is REFUSED if Terra does not permit the request.
    """
    try:
        yield
    except (TerraRefused, TerraNotConfigured) as error:
        status = error.status if isinstance(error, TerraRefused) else None
        name = REFUSED if status in _NOT_PERMITTED else None
        raise NonRetryableError(f"{error.code}: {error.message}", name) from error


async def request_one(terra: Terra, request: DataRequest, start: date, end: date) -> Answer:
    """Make a request.

    Raises:
        NonRetryableError: Retrying cannot succeed. Its name is REFUSED if Terra does not permit it.
        TerraFailed: A retry may succeed.
    """
    with refusals_are_final():
        try:
            await terra.request_data(request.kind, request.connection, start, end)
        except TerraRefused as error:
            if error.status not in _ANSWERS:
                raise
            return _ANSWERS[error.status]
    return Answer.TAKEN


async def request_all(
    terra: Terra,
    requests: Sequence[DataRequest],
    start: date,
    end: date,
    *,
    refusable: bool = True,
) -> RequestResults:
    """Make requests concurrently.

    Args:
        terra: Terra's API.
        requests: The requests.
        start: First day.
        end: Last day, inclusive.
        refusable: Whether all requests may be refused without the credentials being wrong.

    Raises:
        TerraFailed: None of them was answered, so Terra is down; no request counts as failed.
        NonRetryableError: Terra is not configured, or refuses all requests although it should not.
    """
    gate = asyncio.Semaphore(_CONCURRENT)
    answers: list[tuple[DataRequest, Answer]] = []
    failed: list[DataRequest] = []
    refusals: list[DataRequest] = []
    unanswered: list[TerraFailed] = []

    async def make(request: DataRequest) -> None:
        async with gate:
            try:
                answers.append((request, await request_one(terra, request, start, end)))
            except NonRetryableError as error:
                if not isinstance(error.__cause__, TerraRefused):
                    raise
                rejected = refusals if error.name == REFUSED else failed
                rejected.append(_with_reason(request, str(error)))
            except TerraFailed as error:
                unanswered.append(error)
                failed.append(_with_reason(request, error.message))

    await asyncio.gather(*map(make, requests))
    if unanswered and len(unanswered) == len(requests):
        raise unanswered[0]
    if refusals and len(refusals) == len(requests) and not refusable:
        raise all_refused([refusal.why for refusal in refusals])
    answers += [(refusal, Answer.REFUSED) for refusal in refusals]
    return msgspec.structs.replace(counted(answers), failed=tuple(failed), refusals=tuple(refusals))


def _with_reason(request: DataRequest, why: str) -> DataRequest:
    return msgspec.structs.replace(request, why=why[:_REASON_MAX])
