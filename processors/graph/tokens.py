"""Tokens and forks, as the planners see them.

A token is at a node. A fork begins where a completed token goes on as several branches; each of its
tokens knows the fork, and the fork knows the token that began it, which may be in a fork itself.
A branch may hold many tokens, one after the other or at once; for a join it counts once.
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
    """Where a token is in its life."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    WAITING_FOR_SIBLINGS = "waiting_for_siblings"
    WAITING_FOR_SUBWORKFLOW = "waiting_for_subworkflow"


#: A token with one of these goes nowhere any more.
TERMINAL: Final = frozenset(
    {
        TokenStatus.COMPLETED,
        TokenStatus.FAILED,
        TokenStatus.TIMED_OUT,
        TokenStatus.CANCELLED,
    }
)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without what only its keeper needs: its status and times."""

    id: str
    node_ref: str
    path_id: str = ROOT
    parent_token_id: str | None = None
    #: The group of the innermost fork, and which of its branches the token is in.
    sibling_group: str | None = None
    branch_index: int = 0
    branch_total: int = 1
    #: How often the token came by each transition.
    iteration_counts: Mapping[str, int] = NO_COUNTS
    #: The innermost fork; None outside of all forks.
    fork: str | None = None


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """Where branches began."""

    id: str
    #: None for a fork that nothing joins by name.
    group: str | None
    total: int
    #: The token that completed; its own fork is the one around this one.
    origin: Token


#: Looks a fork up by its id.
ForkOf: TypeAlias = Callable[[str], Fork]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The branches of a fork, as one meeting point has to know them.

    An arrival that is being decided is counted already.
    """

    total: int
    #: Branches of which at least one token has arrived here.
    completed: int
    #: Branches that ended in a failure which the run survived.
    failed: int = 0
    #: Branches that can bring no further token here, arrived or not.
    terminal: int


def enclosing(token: Token, group: str, fork_of: ForkOf) -> tuple[Fork, int] | None:
    """The nearest fork of a group around a token, and in which of its branches the token is.

    Shape:  one look-up for each fork that is nested within it.
    """
    at = token
    while at.fork is not None:
        fork = fork_of(at.fork)
        if fork.group == group:
            return fork, at.branch_index
        at = fork.origin
    return None


def branch_path(origin: Token, index: int) -> str:
    """The path of a branch: that of the token which began it, longer by its node and the index."""
    return f"{origin.path_id}.{origin.node_ref}.{index}"
