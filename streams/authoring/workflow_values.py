"""The plain values that an author's workflow is given, passes to entries and gets from them."""

import math
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, Protocol

from typing_extensions import TypeVar

from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import RETRIES_MAX
from headwater.processors.runs.requests import RetryPolicy
from headwater.processors.runs.retries import ANY_NUMBER

#: What a workflow takes, and what it returns; what is not said of them is anything.
P_contra = TypeVar("P_contra", contravariant=True, default=Any)
R_co = TypeVar("R_co", covariant=True, default=Any)
#: A value that somebody is given; the state of a loop, and what it ends with.
T_co = TypeVar("T_co", covariant=True, default=Any)
S_co = TypeVar("S_co", covariant=True, default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEvent(Generic[T_co]):
    """What a run was started with.

    Shape:  payload is read-only; timestamp is aware; the first run has number 0.
    """

    payload: T_co
    timestamp: datetime
    instance_id: str
    workflow_name: str
    run_number: int


class Named(Protocol):
    """What has a name, as workflows and graphs have."""

    @property
    def name(self) -> str:
        """Its name."""


class WorkflowOf(Protocol[P_contra, R_co]):
    """A workflow as its users see it: a name, what it takes, and what it returns."""

    @property
    def name(self) -> str:
        """Its name."""

    def __call__(self, event: WorkflowEvent[P_contra], step: Any, /) -> Awaitable[R_co]:  # noqa: ANN401
        """Calls the author's function."""


def name_of(workflow: str | Named) -> str:
    """The name of a workflow, which may be given by its name alone.

    Errors: TypeError.
    """
    name: object = getattr(workflow, "name", workflow)
    if not isinstance(name, str):
        raise TypeError(
            f"expected a workflow made by @workflow(...), or its name, found {workflow!r:.80}"
        )
    return name


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and how soon, a failed step is tried again.

    Shape:  limit retries after the first attempt, `math.inf` for any number. Delay before retry k:
            constant d, linear d*k, exponential d*2^(k-1), counted from the failure.
    """

    limit: float = 5
    delay: Duration = "10 seconds"
    backoff: Literal["constant", "linear", "exponential"] = "exponential"

    def __post_init__(self) -> None:
        """Check the values where they are written, often as a constant of a module.

        Raises:
            ValueError: A value is not one of those above.
        """
        self.policy()

    def policy(self) -> RetryPolicy:
        """Return the same as plain numbers."""
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
class Continue(Generic[S_co]):
    """Returned by the body of a loop: go on, with this state."""

    state: S_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Break(Generic[V_co]):
    """Returned by the body of a loop: end it, with this value."""

    value: V_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Won(Generic[T_co]):
    """What a race gives: the name of the branch that completed first, and its value."""

    winner: str
    value: T_co


@dataclass(frozen=True, slots=True)
class ReceivedEvent(Generic[T_co]):
    """An event that a wait has taken."""

    type: str
    payload: T_co
    timestamp: datetime
