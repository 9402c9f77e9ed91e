"""Tokens and forks, as the planners see them.

A token is at a node. A fork begins where a completed token continues as several branches. Each of
its tokens knows the fork, and the fork knows the token that began it, which may be in a fork
itself. A branch may have many tokens, one after the other or at once; a join counts it once.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

#: The path of the first token of a run.
ROOT: Final = "root"

NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


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


#: Statuses of tokens that have ended.
TERMINAL: Final = frozenset(
    {
        TokenStatus.COMPLETED,
        TokenStatus.FAILED,
        TokenStatus.TIMED_OUT,
        TokenStatus.CANCELLED,
    }
)


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
    #: How often the token took each transition.
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
