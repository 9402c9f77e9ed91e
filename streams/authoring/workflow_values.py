"""The plain values that an author's workflow is given, passes to entries and gets from them."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import RETRIES_MAX
from headwater.processors.runs.requests import RetryPolicy
from headwater.processors.runs.retries import ANY_NUMBER

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEvent(Generic[T]):
    """What a run was started with.

    Shape:  payload is read-only; timestamp is aware; the first run has number 0.
    """

    payload: T
    timestamp: datetime
    instance_id: str
    workflow_name: str
    run_number: int


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and how soon, a failed step is tried again.

    Shape:  limit retries after the first attempt, `math.inf` for any number. Delay before retry k:
            constant d, linear d*k, exponential d*2^(k-1), counted from the failure.
    """

    limit: float = 5
    delay: Duration = "10 seconds"
    backoff: Literal["constant", "linear", "exponential"] = "exponential"

    def policy(self) -> RetryPolicy:
        """The same as plain numbers.

        Errors: ValueError.
        """
        if self.backoff not in ("constant", "linear", "exponential"):
            raise ValueError(
                "expected the backoff of a Retry to be constant, linear or exponential, "
                f"found {self.backoff!r}"
            )
        if not _is_number_of_retries(self.limit):
            raise ValueError(
                f"expected the limit of a Retry to be a whole number of retries, at most "
                f"{RETRIES_MAX:,}, or inf, found {self.limit!r}"
            )
        return RetryPolicy(
            ANY_NUMBER if self.limit == math.inf else int(self.limit),
            milliseconds_of("the delay of a Retry", self.delay),
            self.backoff,
        )


def _is_number_of_retries(limit: object) -> bool:
    # True is a number to Python, and authors who pass it mean something else.
    if not isinstance(limit, int | float) or isinstance(limit, bool):
        return False
    return limit == math.inf or (0 <= limit <= RETRIES_MAX and limit == int(limit))


@dataclass(frozen=True, slots=True)
class Continue:
    """Returned by the body of a loop: go on, with this state."""

    state: Any = None


@dataclass(frozen=True, slots=True)
class Break:
    """Returned by the body of a loop: end it, with this value."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Won:
    """What a race gives: the name of the branch that completed first, and its value."""

    winner: str
    value: Any


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event that a wait has taken."""

    type: str
    payload: Any
    timestamp: datetime
