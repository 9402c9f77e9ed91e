"""Requests for an active run: by its code, a step, its host or the clock.

Requests are not durable: after a crash they are made again. This module has those that every engine
may receive; engines define further requests of their own.
"""

import msgspec

from headwater.schemas.history import Failure, Json, Post


class Request(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """Base of all requests."""


class RetryPolicy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a failed step is retried.

    Attributes:
        limit: Number of retries; -1 for any number.
        delay_ms: Base delay in ms.
        backoff: `constant`, `linear` or `exponential`.
    """

    limit: int
    delay_ms: int
    backoff: str


class Reached(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that the code has reached."""

    key: str
    name: str
    ordinal: int
    at_ms: int
    max_attempts: int
    timeout_ms: int


class StepReturned(Request, frozen=True):
    """An attempt returned its result, with the messages and SQL of its transaction.

    Attributes:
        posts: Messages, not numbered yet.
        statements: Pairs of SQL and its parameters as JSON text.
    """

    step: Reached
    attempt: int
    policy: RetryPolicy
    result: Json
    rollback: bool = False
    posts: tuple[Post, ...] = ()
    statements: tuple[tuple[str, Json], ...] = ()


class StepRaised(Request, frozen=True):
    """An attempt failed."""

    step: Reached
    attempt: int
    failure: Failure
    policy: RetryPolicy
    retryable: bool = True


class StepUnderWay(Request, frozen=True):
    """An attempt takes long enough that it should be visible."""

    step: Reached
    attempt: int


class RollbackRaised(Request, frozen=True):
    """An attempt of a rollback handler failed."""

    key: str
    attempt: int
    failure: Failure


class HostFailed(Request, frozen=True):
    """The host exited or stopped responding while it executed the run's code."""

    reason: str


class Wake(Request, frozen=True):
    """Process everything that is due until a time.

    Attributes:
        until_ms: The time, in ms since the epoch.
        complete: Whether everything sent until then, inclusive, is known.
    """

    until_ms: int
    complete: bool = False
