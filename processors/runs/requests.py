"""What is asked of a run that is under way: by its code, a step, its host or the clock.

Requests are not durable: after a crash they are made again. Here are those that any engine may
meet; what else the code of a run may ask for is a matter of its engine.
"""

import msgspec

from headwater.schemas.history import Failure, Json, Post


class Request(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """Base of all requests."""


class RetryPolicy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a failed step is tried again.

    Shape:  limit is the number of retries, -1 any; backoff is constant, linear or exponential.
    """

    limit: int
    delay_ms: int
    backoff: str


class Reached(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that code has come to."""

    key: str
    name: str
    ordinal: int
    at_ms: int
    max_attempts: int
    timeout_ms: int


class StepReturned(Request, frozen=True):
    """An attempt has its result, and its transaction what it wants done with it.

    Shape:  posts have no numbers yet; statements are pairs of SQL and its parameters as JSON text.
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
    """An attempt takes so long that people may want to see it."""

    step: Reached
    attempt: int


class RollbackRaised(Request, frozen=True):
    """An attempt of a rollback handler failed."""

    key: str
    attempt: int
    failure: Failure


class HostGone(Request, frozen=True):
    """The host ended or stood still while the run's code had its turn."""

    reason: str


class Wake(Request, frozen=True):
    """What is due until this time is due.

    Shape:  complete if all that others have sent until then is known, that moment included.
    """

    until_ms: int
    complete: bool = False
