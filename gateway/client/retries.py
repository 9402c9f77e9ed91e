"""Decides whether and when to repeat a request. Pure functions, without a clock.

A read may always be repeated. A write may be repeated if it certainly had no effect (no connection
was made, or the server was too busy to begin), or if it is idempotent. Otherwise the error is
raised: only the caller knows what a second attempt would do.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

#: A server that names a longer delay is not retried.
_RETRY_AFTER_MAX_S: Final = 60.0

#: Statuses of a failure that may be temporary.
_LATER: Final = frozenset({408, 429, 502, 503, 504})
#: Statuses, and codes of a 503, that mean that the server did not begin the request.
_NOT_BEGUN: Final = frozenset({408, 429})
_NOT_BEGUN_CODES: Final = frozenset({"overloaded", "not_yet_readable"})


class Repeat(Enum):
    """The effect of sending a request twice."""

    READ = auto()
    #: An idempotent write.
    SAFE = auto()
    #: A write that would be applied twice.
    UNSAFE = auto()


class Failure(Enum):
    """What is known about a request that had no usable answer."""

    NOT_TAKEN = auto()
    UNKNOWN = auto()
    #: Another attempt would have the same answer.
    FINAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often to repeat a request, and how long to wait in between.

    The delay before repeat k (0, 1, …) is random, from 0 to base_s · 2^k, at most longest_s:
    "full jitter", which spreads clients that failed together.

    Attributes:
        retries: Largest number of repeats.
        base_s: Seconds.
        longest_s: Seconds.
    """

    retries: int = 3
    base_s: float = 0.25
    longest_s: float = 10.0


def failure_of(status: int, code: str) -> Failure:
    """Classify an answer that is no success."""
    if status in _NOT_BEGUN or code in _NOT_BEGUN_CODES:
        return Failure.NOT_TAKEN
    if status in _LATER:
        return Failure.UNKNOWN
    return Failure.FINAL


def may_repeat(repeat: Repeat, failure: Failure) -> bool:
    """Return whether a request may be repeated after a failure."""
    if failure is Failure.UNKNOWN:
        return repeat is not Repeat.UNSAFE
    return failure is Failure.NOT_TAKEN


def delay_s(
    policy: Policy, repeats: int, drawn: float, retry_after_s: float | None = None
) -> float | None:
    """Return the delay before the next attempt in seconds; None for no further attempt.

    Args:
        policy: How often and how long.
        repeats: Repeats so far.
        drawn: Random number, 0 <= drawn < 1.
        retry_after_s: Seconds that the server named.
    """
    if repeats >= policy.retries or (retry_after_s or 0.0) > _RETRY_AFTER_MAX_S:
        return None
    backoff = drawn * min(policy.longest_s, policy.base_s * 2.0**repeats)
    return max(backoff, retry_after_s or 0.0)
