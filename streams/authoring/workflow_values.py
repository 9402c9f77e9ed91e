"""Values that a workflow receives, passes to entries, and gets from them."""

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

#: Params and result of a workflow; Any by default.
P_contra = TypeVar("P_contra", contravariant=True, default=Any)
R_co = TypeVar("R_co", covariant=True, default=Any)
#: A payload or value; the state of a loop; the value that a loop ends with.
T_co = TypeVar("T_co", covariant=True, default=Any)
S_co = TypeVar("S_co", covariant=True, default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEvent(Generic[T_co]):
    """The start of a run.

    Attributes:
        payload: Params of the instance, read-only.
        timestamp: When the run started, as an aware datetime.
        run_number: Number of the run; the first is 0.
    """

    payload: T_co
    timestamp: datetime
    instance_id: str
    workflow_name: str
    run_number: int


class Named(Protocol):
    """An object with a name, such as a workflow or a graph."""

    @property
    def name(self) -> str:
        """Name."""


class WorkflowOf(Protocol[P_contra, R_co]):
    """A workflow as its callers see it: its name, params type and result type."""

    @property
    def name(self) -> str:
        """Name of the workflow."""

    def __call__(self, event: WorkflowEvent[P_contra], step: Any, /) -> Awaitable[R_co]:  # noqa: ANN401
        """Call the author's function."""


def name_of(workflow: str | Named) -> str:
    """Return the name of a workflow that is passed as an object or as its name.

    Raises:
        TypeError: `workflow` is neither.
    """
    name: object = getattr(workflow, "name", workflow)
    if not isinstance(name, str):
        raise TypeError(
            f"expected a workflow made by @workflow(...), or its name, found {workflow!r:.80}"
        )
    return name


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy of a step.

    Attributes:
        limit: Retries after the first attempt; `math.inf` for any number.
        delay: Base delay d before a retry, counted from the failure.
        backoff: Delay before retry k: constant d, linear d*k, exponential d*2^(k-1).
    """

    limit: float = 5
    delay: Duration = "10 seconds"
    backoff: Literal["constant", "linear", "exponential"] = "exponential"

    def __post_init__(self) -> None:
        """Validate the values when the policy is created, often as a module's constant.

        Raises:
            ValueError: A value is invalid.
        """
        self.policy()

    def policy(self) -> RetryPolicy:
        """Return the policy as plain numbers."""
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
    # bool is an int in Python, but an author who passes True means something else.
    if not isinstance(limit, int | float) or isinstance(limit, bool):
        return False
    return limit == math.inf or (0 <= limit <= RETRIES_MAX and limit == int(limit))


@dataclass(frozen=True, slots=True)
class Continue(Generic[S_co]):
    """Returned by the body of a loop to continue with this state."""

    state: S_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Break(Generic[V_co]):
    """Returned by the body of a loop to end it with this value."""

    value: V_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Won(Generic[T_co]):
    """Result of a race: the branch that completed first, and its value."""

    winner: str
    value: T_co


@dataclass(frozen=True, slots=True)
class ReceivedEvent(Generic[T_co]):
    """An event that a wait has consumed."""

    type: str
    payload: T_co
    timestamp: datetime
