"""Values that a workflow receives, read-only, passes to entries, and gets from them."""

import functools
import math
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, Literal, NoReturn, Protocol

import msgspec
from typing_extensions import TypeVar, override

from headwater.processors.runs.decisions import ANY_NUMBER, RetryPolicy
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import RETRIES_MAX
from headwater.streams.authoring.pydantic_models import attributes_of, is_model


def _read_only(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "the payload of a workflow or an event is read-only, because the next replay would not see "
        "the change; copy it first"
    )


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _read_only
    __ior__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling and `copy` produce mutable values.
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that refuses changes."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = _read_only
    remove = reverse = sort = _read_only
    __iadd__ = __imul__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:  # noqa: ANN401, any JSON value, or what it was converted to
    """Return the value with all lists, dicts and sets read-only. Objects are changed in place.

    A step that changed the payload of its run would not be called again on replay, so the code
    would then see the original payload and might behave differently. Whether the fields of an
    object can be set is decided by its class.
    """
    kind: type = type(value)
    if kind is str or kind is int:
        return value
    if kind is dict:
        return ReadOnlyDict({key: frozen(item) for key, item in value.items()})
    if kind is list:
        return ReadOnlyList([frozen(item) for item in value])
    if kind is set:
        return frozenset(value)
    if isinstance(value, tuple):
        items = [frozen(item) for item in value]
        # A NamedTuple takes its fields as separate arguments.
        return getattr(kind, "_make", kind)(items)
    change = (
        msgspec.structs.force_setattr if issubclass(kind, msgspec.Struct) else object.__setattr__
    )
    for name in _fields(kind):
        before = getattr(value, name, None)
        after = frozen(before)
        if after is not before:
            change(value, name, after)
    return value


@functools.lru_cache(maxsize=1_000)
def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of an object's fields. Enum members are shared, so they have none here."""
    if issubclass(kind, Enum):
        return ()
    if is_model(kind):
        return attributes_of(kind)
    attributes = getattr(kind, "__attrs_attrs__", ())
    return (
        *getattr(kind, "__struct_fields__", ()),
        *getattr(kind, "__dataclass_fields__", ()),
        *(attribute.name for attribute in attributes),
    )


# -- values

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
