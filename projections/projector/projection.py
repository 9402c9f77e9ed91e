"""The projections: which topics become which rows, and how.

Each has a consumer group, a connection and offsets of its own, so that none waits for another.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headwater.processors.runs.claims import Claims
from headwater.projections.deliveries.plan import Plan, plan
from headwater.projections.deliveries.rows import TOPICS, LogRecord
from headwater.projections.workflows.history import PROJECTION, read_history
from headwater.projections.workflows.plan import plan_history
from headwater.schemas.topics import WORKFLOW_HISTORY

__all__ = ["DELIVERIES", "PROJECTIONS", "WORKFLOWS", "Planner", "Projection"]

#: Records, in the order of their partitions, to statements; never fails because of a record.
Planner: TypeAlias = Callable[[Iterable[LogRecord]], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A projection; `name` is that of its offsets in Postgres.

    Shape:  `read` takes records of one partition and the claims before them, moves the claims
            behind them and returns the records that count, as `plan` wants them.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    read: Callable[[Sequence[LogRecord], Claims], Sequence[LogRecord]]
    plan: Planner


def _all(records: Sequence[LogRecord], _: Claims) -> Sequence[LogRecord]:
    return records


#: The projection tables, outcomes, duplicates and dead letters.
DELIVERIES: Final = Projection(
    name="headwater", group="headwater-projector", topics=TOPICS, read=_all, plan=plan
)

#: Instances, steps, events and lines of workflows.
WORKFLOWS: Final = Projection(
    name=PROJECTION,
    group="headwater-workflow-projector",
    topics=(WORKFLOW_HISTORY,),
    read=read_history,
    plan=plan_history,
)

PROJECTIONS: Final = (DELIVERIES, WORKFLOWS)
