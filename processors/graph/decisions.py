"""Decisions of planners, and traces of how they were reached: plain data without effects.

In plain dictionaries, decisions are named in capitals: `CreateToken` is `CREATE_TOKEN`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.graph.tokens import NO_COUNTS, TokenStatus


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


class CreateToken(_Decided, frozen=True, kw_only=True):
    """Create a token."""

    params: TokenParams


class UpdateTokenStatus(_Decided, frozen=True, kw_only=True):
    """Change the status of a token."""

    token_id: str
    status: TokenStatus


class MarkWaiting(_Decided, frozen=True, kw_only=True):
    """Let a token wait for others at its join."""

    token_id: str


class MarkForDispatch(_Decided, frozen=True, kw_only=True):
    """Let a token continue at its node."""

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


class BatchCreateTokens(_Decided, frozen=True, kw_only=True):
    """Create several tokens."""

    all_params: tuple[TokenParams, ...]


class BatchUpdateStatus(_Decided, frozen=True, kw_only=True):
    """Change the status of several tokens."""

    updates: tuple[tuple[str, TokenStatus], ...]


Decision: TypeAlias = (
    CreateToken
    | UpdateTokenStatus
    | MarkWaiting
    | MarkForDispatch
    | CompleteTokens
    | CancelTokens
    | SetContext
    | ApplyBranchOutput
    | ActivateFanIn
    | InitializeWorkflow
    | CompleteWorkflow
    | FailWorkflow
    | BatchCreateTokens
    | BatchUpdateStatus
)

#: Error names of failed runs.
EXPRESSION_ERROR: Final = "ExpressionError"
TIMEOUT_ERROR: Final = "SynchronizationTimeoutError"
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
