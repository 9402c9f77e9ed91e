"""Consecutive decisions of one kind as one, so that they become one record."""

from collections.abc import Iterable
from itertools import groupby

from headwater.processors.graph.decisions import (
    BatchCreateTokens,
    BatchUpdateStatus,
    CreateToken,
    Decision,
    UpdateTokenStatus,
)


def batch(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """The same decisions in the same order, with consecutive creates and updates put together.

    Shape:  a decision that stands alone stays as it is.
    """
    together: list[Decision] = []
    for kind, found in groupby(decisions, key=type):
        run = list(found)
        if len(run) == 1:
            together.extend(run)
        elif kind is CreateToken:
            creates = (each.params for each in run if isinstance(each, CreateToken))
            together.append(BatchCreateTokens(all_params=tuple(creates)))
        elif kind is UpdateTokenStatus:
            updates = ((u.token_id, u.status) for u in run if isinstance(u, UpdateTokenStatus))
            together.append(BatchUpdateStatus(updates=tuple(updates)))
        else:
            together.extend(run)
    return tuple(together)
