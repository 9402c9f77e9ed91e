"""Input and output of deciding: facts, requests and retry policies; events, or a rejection.

Requests are not durable: after a crash they are made again. This module has those that every engine
may receive; engines define further requests of their own.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas import failures
from headwater.schemas.history import Failure, Json, Post, RunEvent


class Facts(msgspec.Struct, frozen=True, gc=False):
    """Facts about a command that are not part of the run.

    Attributes:
        seed: Seed of a run that starts.
        document: Definition that a run starts on; None for the one of its workflow's name.
        trace: W3C trace context of the command; or empty.
    """

    workflow: str
    instance_id: str
    sent_at_ms: int
    now_ms: int
    seed: str = ""
    document: Json | None = None
    trace: str = ""

    @property
    def reached_ms(self) -> int:
        """Return the sender's time, but no later than the local time."""
        return min(self.sent_at_ms, self.now_ms)


class Rejection(msgspec.Struct, frozen=True):
    """A rejection: nothing has changed. Codes that the API uses are spelled as in the API."""

    code: str
    message: str


Decision: TypeAlias = list[RunEvent] | Rejection

#: Rejection of input that arrives too late to matter.
STALE: Final = Rejection(failures.STALE, "it arrived too late to have an effect")


# -- requests


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


# -- retry times

#: Attempts are counted from 1; a policy without a limit has this many.
ANY_NUMBER = -1
_DELAY_MAX_MS = 365 * 86_400_000


def delay_ms(policy: RetryPolicy, retry: int) -> int:
    """Return the delay before a retry, in ms from the failure, at most a year.

    Args:
        policy: The retry policy.
        retry: Number of the retry, from 1.
    """
    match policy.backoff:
        case "constant":
            delay = policy.delay_ms
        case "linear":
            delay = policy.delay_ms * retry
        case _:
            # 2^40 ms is more than a year, so larger powers need not be computed.
            delay = policy.delay_ms * 2 ** min(retry - 1, 40)
    return min(delay, _DELAY_MAX_MS)


def retry_at_ms(policy: RetryPolicy, attempt: int, now_ms: int) -> int | None:
    """Return when a step is retried after a failed attempt (from 1), or None if it is not."""
    if policy.limit != ANY_NUMBER and attempt > policy.limit:
        return None
    return now_ms + delay_ms(policy, attempt)
