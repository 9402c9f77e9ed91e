"""Idempotency keys over HTTP: what a request meets that came before, under the same key.

Theory of operation: a request first reserves its key, with the run id that it is to make, and then
makes the run. Whoever comes under the same key meanwhile, or after the first one's gateway was
killed, finds the reservation and makes the same run, which can only be made once. When the run is
there, the answer is kept, and repeated to everybody who comes later. A refusal is not kept: the
same request is tried again, with the same run id, and another request takes the key over. After a
day, by the clock of the database, a key is new.
"""

import hashlib
import json
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

#: How long a key is remembered, by the clock of Postgres.
REMEMBERED_MS: Final = 24 * 60 * 60 * 1000


class State(StrEnum):
    """How far a request has come."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    REFUSED = "refused"


class Key(msgspec.Struct, frozen=True):
    """A key of a caller: the same one means another thing in another place.

    Attributes:
        project_id: The project.
        idempotency_key: The key as the caller chose it; before it, and a space, what tells callers
            apart.
        endpoint: What was requested under it.
    """

    project_id: str
    idempotency_key: str
    endpoint: str


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a request.

    Shape:  the hash is that of what was asked for, as far as that decides; status and body are
            those of its answer, once there is one.
    """

    state: State
    request_hash: str
    response_run_id: str
    status_code: int
    body: str


class Pending(msgspec.Struct, frozen=True):
    """The request is under way, or nobody knows: make the run of this id, and no other."""

    run_id: str


class Answered(msgspec.Struct, frozen=True):
    """The request was answered so."""

    run_id: str
    status: int
    body: str


class Conflict(msgspec.Struct, frozen=True):
    """Something else was asked for under the key."""


Met: TypeAlias = Pending | Answered | Conflict


def met(found: Remembered, request_hash: str) -> Met:
    """Return what a request meets that has reserved its key, or found it reserved."""
    if found.request_hash != request_hash:
        return Conflict()
    if found.state is State.COMPLETED:
        return Answered(found.response_run_id, found.status_code, found.body)
    return Pending(found.response_run_id)


def reservation(run_id: str, request_hash: str) -> Remembered:
    """Return what is remembered of a request that begins."""
    return Remembered(
        state=State.IN_PROGRESS,
        request_hash=request_hash,
        response_run_id=run_id,
        status_code=0,
        body="",
    )


def canonical_hash(value: Any) -> str:  # noqa: ANN401 (any JSON)
    """The name of a JSON value by what it says.

    Shape:  SHA-256, in hexadecimal, of its canonical text: names in order, without spaces, numbers
            by their value (1, 1.0 and 1e0 are one number, as in RFC 8785).
    """
    text = json.dumps(
        _canonical(value),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _canonical(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _canonical(each) for name, each in value.items()}
        case list():
            return [_canonical(each) for each in value]
        case _:
            return value
