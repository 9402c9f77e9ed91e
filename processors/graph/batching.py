"""Combine consecutive decisions of one kind, so that they become one record."""

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
    """Combine consecutive creations, and consecutive updates, without changing the order."""
    batched: list[Decision] = []
    for kind, group in groupby(decisions, key=type):
        run = list(group)
        if len(run) == 1:
            batched.extend(run)
        elif kind is CreateToken:
            creates = (create.params for create in run if isinstance(create, CreateToken))
            batched.append(BatchCreateTokens(all_params=tuple(creates)))
        elif kind is UpdateTokenStatus:
            updates = ((u.token_id, u.status) for u in run if isinstance(u, UpdateTokenStatus))
            batched.append(BatchUpdateStatus(updates=tuple(updates)))
        else:
            batched.extend(run)
    return tuple(batched)
