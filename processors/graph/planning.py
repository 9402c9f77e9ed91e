"""Values that planners take and return: tokens and forks, decisions and traces, without effects.

A token is at a node. A fork begins where a completed token continues as several branches. All
its tokens refer to the fork, and the fork to the token that began it, which may be in a fork
itself. A branch may have many tokens, one after the other or at once; a join counts it once.

In plain dictionaries, decisions are named in capitals: `CreateToken` is `CREATE_TOKEN`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from typing_extensions import override

#: The path of the first token of a run.
ROOT: Final = "root"

NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


#: Counts of transitions, newest first; each has at least twice as many entries as the one before.
Frames: TypeAlias = tuple[dict[str, int], ...]


def frames_with(frames: Frames, counts: Mapping[str, int]) -> Frames:
    """Add counts. On average this takes logarithmic time, and copies as many entries."""
    if not frames:
        return (dict(counts),)
    top = {ref: count_in(frames, ref) + times for ref, times in counts.items()}
    older = list(frames)
    while older and 2 * len(top) > len(older[0]):
        top = {**older.pop(0), **top}
    return (top, *older)


def taken_ahead(frames: Frames, of: Frames) -> dict[str, int]:
    """Return by how much counts are larger than others. Only frames that differ are read."""
    shared = set(map(id, of))
    refs = dict.fromkeys(ref for frame in frames if id(frame) not in shared for ref in frame)
    ahead = {ref: count_in(frames, ref) - count_in(of, ref) for ref in refs}
    return {ref: times for ref, times in ahead.items() if times > 0}


def count_in(frames: Frames, ref: str) -> int:
    """Return how often a transition was taken."""
    for frame in frames:
        if ref in frame:
            return frame[ref]
    return 0


class Taken(Mapping[str, int]):
    """How often a token took each transition: `frames` since a point, and `before` until then.

    Nothing is copied, so a token costs the same however many transitions led to it.
    """

    __slots__ = ("_before", "_frames")

    def __init__(self, frames: Frames, before: Mapping[str, int] = NO_COUNTS) -> None:
        self._frames = frames
        self._before = before

    @override
    def __getitem__(self, ref: str) -> int:
        times = count_in(self._frames, ref) + self._before.get(ref, 0)
        if not times:
            raise KeyError(ref)
        return times

    @override
    def get(self, ref: str, default: Any = None) -> Any:
        """Return how often a transition was taken, without an exception for most."""
        return count_in(self._frames, ref) + self._before.get(ref, 0) or default

    @override
    def __iter__(self) -> Iterator[str]:
        refs = chain(self._before, *reversed(self._frames))
        return iter(dict.fromkeys(refs))

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)

    @override
    def __repr__(self) -> str:
        return repr(dict(self))


class TokenStatus(StrEnum):
    """Status of a token."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    WAITING_FOR_SIBLINGS = "waiting_for_siblings"
    WAITING_FOR_SUBWORKFLOW = "waiting_for_subworkflow"
    WAITING_FOR_TIME = "waiting_for_time"
    WAITING_FOR_EVENT = "waiting_for_event"


#: Statuses of tokens that have ended.
TERMINAL: Final = frozenset(
    {
        TokenStatus.COMPLETED,
        TokenStatus.FAILED,
        TokenStatus.TIMED_OUT,
        TokenStatus.CANCELLED,
    }
)


#: Position of a branch in nested forks, outermost first. A branch is given by the number of the
#: token at which its fork began, and its index.
InnerPath: TypeAlias = tuple[tuple[int, int], ...]


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its status and times, which planners do not need."""

    id: str
    node_ref: str
    path_id: str = ROOT
    parent_token_id: str | None = None
    #: The group of the innermost fork, and which of its branches the token is in.
    sibling_group: str | None = None
    branch_index: int = 0
    branch_total: int = 1
    #: How often the token took every transition.
    iteration_counts: Mapping[str, int] = NO_COUNTS
    #: The innermost fork; None outside of all forks.
    fork: str | None = None


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A point in a run where branches begin."""

    id: str
    #: None for a fork without a named group.
    group: str | None
    total: int
    #: The token that began the fork; its own fork is the enclosing one.
    origin: Token


#: Looks a fork up by its id.
ForkOf: TypeAlias = Callable[[str], Fork]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The branches of a fork, as counted at one join.

    The arrival that is being decided is included.
    """

    total: int
    #: Branches with at least one token that arrived here.
    completed: int
    #: Branches that ended in a failure which the run survived.
    failed: int = 0
    #: Branches that can bring no more tokens here, arrived or not.
    terminal: int
    #: Of the terminal branches, those that arrived here; None if that is unknown.
    settled: int | None = None

    @property
    def possible(self) -> int:
        """Branches that have arrived here or still can; at most so many if `settled` is None."""
        if self.settled is not None:
            return self.total - self.terminal + self.settled
        return self.completed + max(0, self.total - max(self.terminal, self.completed))


def enclosing(token: Token, group: str, fork_of: ForkOf) -> tuple[Fork, int] | None:
    """Return the nearest fork of a group around a token, and the token's branch in it.

    Looks up one fork per level of nesting.
    """
    current = token
    while current.fork is not None:
        fork = fork_of(current.fork)
        if fork.group == group:
            return fork, current.branch_index
        current = fork.origin
    return None


def branch_path(origin: Token, index: int) -> str:
    """Return the path of a branch: the origin's path, extended by its node and the index."""
    return f"{origin.path_id}.{origin.node_ref}.{index}"


# -- decisions


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


class _Decided(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_tag):
    """A decision, tagged with its name in capitals."""


class TokenParams(msgspec.Struct, frozen=True, kw_only=True):
    """A token to create."""

    node_ref: str
    parent_token_id: str | None
    path_id: str
    sibling_group: str | None = None
    branch_index: int = 0
    branch_total: int = 1
    iteration_counts: Mapping[str, int] = NO_COUNTS
    #: Its fork. A fork that is not known yet begins with this token.
    fork: str | None = None
    #: The transition that it took; None for the first token.
    transition_ref: str | None = None
    #: The branch's item in a `foreach`.
    item_var: str | None = None
    item: Any = None


class Continuation(TokenParams, frozen=True, kw_only=True):
    """A token to create that continues from a join."""

    #: Transitions taken since the parent, with how often.
    taken: Mapping[str, int]
    #: Branches of the fork that failed; None without a fork.
    failed: int | None = None


class CreateToken(_Decided, frozen=True, kw_only=True):
    """Create a token."""

    params: TokenParams


class UpdateTokenStatus(_Decided, frozen=True, kw_only=True):
    """Change the status of a token."""

    token_id: str
    status: TokenStatus


class MarkWaiting(_Decided, frozen=True, kw_only=True, omit_defaults=True):
    """Let a token wait: for others at its join, for a time or for an event.

    Attributes:
        arrived_at: When it arrived; None if that is unknown.
    """

    token_id: str
    arrived_at: datetime | None = None


class MarkForDispatch(_Decided, frozen=True, kw_only=True):
    """Let a token continue at its node."""

    token_id: str


class DispatchToken(_Decided, frozen=True, kw_only=True):
    """Start an attempt of a token's task.

    Attributes:
        input: Input of the task; null for a later attempt, which has that of the first.
    """

    token_id: str
    task: str
    attempt: int = 1
    input: Any = None


class CompleteToken(_Decided, frozen=True, kw_only=True):
    """Complete a token whose node has its result."""

    token_id: str


class CompleteTokens(_Decided, frozen=True, kw_only=True):
    """Complete tokens."""

    token_ids: tuple[str, ...]


class CancelTokens(_Decided, frozen=True, kw_only=True):
    """Cancel tokens."""

    token_ids: tuple[str, ...]
    reason: str


class SetContext(_Decided, frozen=True, kw_only=True):
    """Set a value in the shared context.

    Attributes:
        path: Begins with `state` or `output`. Values along it that are not objects are replaced.
    """

    path: str
    value: Any


class ApplyBranchOutput(_Decided, frozen=True, kw_only=True):
    """Replace the whole output of a token's branch."""

    token_id: str
    output: Mapping[str, Any]


class ActivateFanIn(_Decided, frozen=True, kw_only=True):
    """Activate a join."""

    node_ref: str
    fork: str | None
    fan_in_path: str
    transition_ref: str
    #: The tokens that waited, and the one that arrived last.
    merged_token_ids: tuple[str, ...]
    #: For a fork without branches: the transitions that would have created them.
    came_by: tuple[str, ...] = ()


class MarkWaitingForSubworkflow(_Decided, frozen=True, kw_only=True):
    """Start a child workflow, and let a token wait for its end."""

    token_id: str
    subworkflow_run_id: str
    workflow: str
    input: Any = None
    timeout_ms: int | None = None


class ResumeFromSubworkflow(_Decided, frozen=True, kw_only=True):
    """Complete a token with the output of its child."""

    token_id: str
    output: Any


class FailFromSubworkflow(_Decided, frozen=True, kw_only=True):
    """Fail a token with the error of its child."""

    token_id: str
    error: str


class TimeoutSubworkflow(_Decided, frozen=True, kw_only=True):
    """Terminate the child of a token, which has timed out."""

    token_id: str
    subworkflow_run_id: str
    timeout_ms: int
    elapsed_ms: int


class InitializeWorkflow(_Decided, frozen=True, kw_only=True):
    """Start a run with an input."""

    input: Any


class CompleteWorkflow(_Decided, frozen=True, kw_only=True):
    """End a run with an output."""

    output: Mapping[str, Any]


class FailWorkflow(_Decided, frozen=True, kw_only=True):
    """End a run with an error."""

    error: str
    name: str


Decision: TypeAlias = (
    CreateToken
    | UpdateTokenStatus
    | MarkWaiting
    | MarkForDispatch
    | DispatchToken
    | CompleteToken
    | CompleteTokens
    | CancelTokens
    | SetContext
    | ApplyBranchOutput
    | ActivateFanIn
    | MarkWaitingForSubworkflow
    | ResumeFromSubworkflow
    | FailFromSubworkflow
    | TimeoutSubworkflow
    | InitializeWorkflow
    | CompleteWorkflow
    | FailWorkflow
)

#: Error names of failed runs.
EXPRESSION_ERROR: Final = "ExpressionError"
TIMEOUT_ERROR: Final = "SynchronizationTimeoutError"
INTEGER_ERROR: Final = "IntegerRangeError"
UNREACHABLE_ERROR: Final = "SynchronizationUnreachableError"


def as_dict(item: msgspec.Struct) -> dict[str, Any]:
    """Return a decision or a trace as a plain dictionary with all fields."""
    # Authors' values may contain text that msgspec's JSON rejects; the standard library accepts it.
    plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(item, enc_hook=_as_builtin)))
    return plain


def _as_builtin(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(type(value))


class Trace(msgspec.Struct, frozen=True):
    """One step in reaching a decision."""

    type: str
    token_id: str | None = None
    node_ref: str | None = None
    payload: Mapping[str, Any] = {}


class Planned(msgspec.Struct, frozen=True):
    """A planner's result."""

    decisions: tuple[Decision, ...] = ()
    events: tuple[Trace, ...] = ()


def failed(message: str, name: str = EXPRESSION_ERROR, events: tuple[Trace, ...] = ()) -> Planned:
    """Return a result that fails the run."""
    return Planned((FailWorkflow(error=message, name=name),), events)
