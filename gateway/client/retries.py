"""Whether a request is sent again, and when: decisions without a clock.

A read may always be repeated. A write may, if it surely was not taken (nobody accepted the
connection, or the server says that it is too busy to begin), or if to do it twice is to do it once.
Everything else is told to the caller, who alone knows what a second time would mean.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

#: A server that asks for more patience than this is not waited for.
_PATIENCE_S: Final = 60.0

#: Statuses that say: later.
_LATER: Final = frozenset({408, 429, 502, 503, 504})
#: Of those, and of the codes of a 503, the ones that say that nothing was begun.
_NOT_BEGUN: Final = frozenset({408, 429})
_NOT_BEGUN_CODES: Final = frozenset({"overloaded", "not_yet_readable"})


class Repeat(Enum):
    """What it means to send a request twice."""

    READ = auto()
    #: A write that has the same outcome the second time.
    SAFE = auto()
    #: A write that would be done twice.
    UNSAFE = auto()


class Failure(Enum):
    """What is known of a request that had no usable answer."""

    NOT_TAKEN = auto()
    UNKNOWN = auto()
    #: Answered, and another attempt would be answered alike.
    FINAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often a request is sent again, and how long between.

    Units:  seconds. The delay before repeat k (0, 1, …) is drawn from 0 to base_s · 2^k, at most
            longest_s: "full jitter", which spreads clients that failed together.
    """

    retries: int = 3
    base_s: float = 0.25
    longest_s: float = 10.0


def failure_of(status: int, code: str) -> Failure:
    """What an answer that is no success says of the request."""
    if status in _NOT_BEGUN or code in _NOT_BEGUN_CODES:
        return Failure.NOT_TAKEN
    if status in _LATER:
        return Failure.UNKNOWN
    return Failure.FINAL


def may_repeat(repeat: Repeat, failure: Failure) -> bool:
    """Whether a request may be sent again after a failure."""
    if failure is Failure.UNKNOWN:
        return repeat is not Repeat.UNSAFE
    return failure is Failure.NOT_TAKEN


def delay_s(
    policy: Policy, repeats: int, drawn: float, retry_after_s: float | None = None
) -> float | None:
    """Seconds until the next attempt; None when there is to be none.

    Shape:  (policy, repeats so far, 0 <= drawn < 1, what the server asked for) -> seconds.
    """
    if repeats >= policy.retries or (retry_after_s or 0.0) > _PATIENCE_S:
        return None
    backoff = drawn * min(policy.longest_s, policy.base_s * 2.0**repeats)
    return max(backoff, retry_after_s or 0.0)
