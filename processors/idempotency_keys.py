"""Idempotency keys over HTTP: what happens to a request with a key that was used before.

Theory of operation: a request first reserves its key with the run id that it will create, and then
creates the run. A concurrent request with the same key, or one after the first gateway was killed,
reads the reservation and creates the same run, which can be created only once. Then the response is
stored and returned to all later requests. A rejection is not stored: the same request may be
retried, with the same run id, and another request acquires the key. A key expires after a day, by
the clock of the database.
"""

from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

#: How long a key is stored, in ms, by the clock of Postgres.
REMEMBERED_MS: Final = 24 * 60 * 60 * 1000


class RequestState(StrEnum):
    """State of the request of a key."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    REFUSED = "refused"


class IdempotencyKey(msgspec.Struct, frozen=True):
    """An idempotency key, scoped to a project and an endpoint.

    Attributes:
        project_id: The project.
        idempotency_key: The key as the client chose it, after a space and a prefix that identifies
            the client.
        endpoint: The endpoint that was requested with it.
    """

    project_id: str
    idempotency_key: str
    endpoint: str


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a request.

    Attributes:
        request_hash: Hash of the relevant parts of the request.
        status_code: Status of the response, once there is one.
        body: Body of the response, once there is one.
    """

    state: RequestState
    request_hash: str
    response_run_id: str
    status_code: int
    body: str


class Pending(msgspec.Struct, frozen=True):
    """The request is in progress, or its state is unknown: create the run with this id only."""

    run_id: str


class Answered(msgspec.Struct, frozen=True):
    """The request has this response."""

    run_id: str
    status: int
    body: str


class Conflict(msgspec.Struct, frozen=True):
    """The key was used for a different request."""


KeyResult: TypeAlias = Pending | Answered | Conflict


def key_result(stored: StoredRequest, request_hash: str) -> KeyResult:
    """Return what to do with a request that reserved its key, or reused a key."""
    if stored.request_hash != request_hash:
        return Conflict()
    if stored.state is RequestState.COMPLETED:
        return Answered(stored.response_run_id, stored.status_code, stored.body)
    return Pending(stored.response_run_id)


def reservation(run_id: str, request_hash: str) -> StoredRequest:
    """Return the stored state of a request that starts."""
    return StoredRequest(
        state=RequestState.IN_PROGRESS,
        request_hash=request_hash,
        response_run_id=run_id,
        status_code=0,
        body="",
    )
