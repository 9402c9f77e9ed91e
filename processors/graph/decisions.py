"""What planners decide, and what they tell of how they came to it: plain data, nothing done.

Decisions have the names of the plain dictionaries that tools get: `CreateToken` is `CREATE_TOKEN`.
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
    """A decision; its type is its name in capitals."""


class TokenParams(msgspec.Struct, frozen=True, kw_only=True):
    """A token that is to be."""

    node_ref: str
    parent_token_id: str | None
    path_id: str
    sibling_group: str | None = None
    branch_index: int = 0
    branch_total: int = 1
    iteration_counts: Mapping[str, int] = NO_COUNTS
    #: The fork it is in. One that is not known yet begins with it.
    fork: str | None = None
    #: The transition it comes by; None for the first token.
    transition_ref: str | None = None
    #: What the branch is for, where a fork goes over a collection.
    item_var: str | None = None
    item: Any = None


class CreateToken(_Decided, frozen=True, kw_only=True):
    """A token is to be created."""

    params: TokenParams


class UpdateTokenStatus(_Decided, frozen=True, kw_only=True):
    """A token is to have another status."""

    token_id: str
    status: TokenStatus


class MarkWaiting(_Decided, frozen=True, kw_only=True):
    """A token has arrived at its meeting point and waits there for others."""

    token_id: str


class MarkForDispatch(_Decided, frozen=True, kw_only=True):
    """A token goes on at its node."""

    token_id: str


class CompleteTokens(_Decided, frozen=True, kw_only=True):
    """Tokens are done."""

    token_ids: tuple[str, ...]


class CancelTokens(_Decided, frozen=True, kw_only=True):
    """Tokens are not to go on."""

    token_ids: tuple[str, ...]
    reason: str


class SetContext(_Decided, frozen=True, kw_only=True):
    """A value is to stand in the shared context.

    Shape:  path begins with `state` or `output`; what is in its way is replaced by objects.
    """

    path: str
    value: Any


class ApplyBranchOutput(_Decided, frozen=True, kw_only=True):
    """The branch of a token is to have this output; it is all of it."""

    token_id: str
    output: Mapping[str, Any]


class ActivateFanIn(_Decided, frozen=True, kw_only=True):
    """A meeting point goes on."""

    node_ref: str
    fork: str | None
    fan_in_path: str
    transition_ref: str
    #: Those that waited, and the one that came last.
    merged_token_ids: tuple[str, ...]
    #: For a fork without branches: the transitions that would have begun them.
    came_by: tuple[str, ...] = ()


class InitializeWorkflow(_Decided, frozen=True, kw_only=True):
    """A run begins with an input."""

    input: Any


class CompleteWorkflow(_Decided, frozen=True, kw_only=True):
    """A run ends with an output."""

    output: Mapping[str, Any]


class FailWorkflow(_Decided, frozen=True, kw_only=True):
    """A run ends with an error."""

    error: str
    name: str


class BatchCreateTokens(_Decided, frozen=True, kw_only=True):
    """Several tokens are to be created."""

    all_params: tuple[TokenParams, ...]


class BatchUpdateStatus(_Decided, frozen=True, kw_only=True):
    """Several tokens are to have other statuses."""

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

#: Names of errors that a run ends with.
EXPRESSION_ERROR: Final = "ExpressionError"
TIMEOUT_ERROR: Final = "SynchronizationTimeoutError"
UNREACHABLE_ERROR: Final = "SynchronizationUnreachableError"


def as_dict(found: msgspec.Struct) -> dict[str, Any]:
    """A decision or a trace as a plain dictionary, with nothing left out."""
    # Values of authors may have text that msgspec's JSON refuses, and the library's does not.
    plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(found, enc_hook=_as_builtin)))
    return plain


def _as_builtin(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(type(value))


class Trace(msgspec.Struct, frozen=True):
    """How a decision came about, for those who ask."""

    type: str
    token_id: str | None = None
    node_ref: str | None = None
    payload: Mapping[str, Any] = {}


class Planned(msgspec.Struct, frozen=True):
    """What a planner answers."""

    decisions: tuple[Decision, ...] = ()
    events: tuple[Trace, ...] = ()


def failed(message: str, name: str = EXPRESSION_ERROR, events: tuple[Trace, ...] = ()) -> Planned:
    """The end of a run that cannot go on."""
    return Planned((FailWorkflow(error=message, name=name),), events)
