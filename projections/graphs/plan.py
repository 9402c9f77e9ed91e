"""What the records of `graph-definitions` do to rows, decided without Postgres.

Whether a record becomes a version hangs on all before it, which only Postgres knows here. So each
is a statement of its own, in their order, that decides what the fold of the topic decides
(`processors.graph.catalogue`). They are few: somebody deployed each of them.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headwater.processors.runs.claims import Claims
from headwater.projections.projector.plan import Plan, Work, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import UNREADABLE, LogRecord, SqlRow, refusal
from headwater.schemas.codec import decode
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.topics import GRAPH_DEFINITIONS

__all__ = ["GRAPHS", "plan_definitions"]


def plan_definitions(records: Iterable[LogRecord]) -> Plan:
    """Plans records of `graph-definitions`."""
    works: list[Work] = []
    refused = 0
    for record in records:
        try:
            row = _row(record)
        except UNREADABLE as error:
            refused += 1
            works.append(Work("projection_errors", payload([refusal(record, str(error))])))
        else:
            works.append(Work("graph_definition", payload([row])))
    return Plan(works=tuple(works), unreadable=refused)


def _row(record: LogRecord) -> SqlRow:
    deployed = decode(record.value, GraphDeployed)
    return {
        "name": deployed.name,
        "document": deployed.document,
        "digest": deployed.digest,
        "app": deployed.app,
        "after": deployed.after,
        "at_ms": deployed.at_ms,
        "offset": record.offset,
    }


def _all_count(records: Sequence[LogRecord], claims: Claims) -> Sequence[LogRecord]:
    """Nobody claims the topic: whoever deploys appends."""
    return records


#: Graphs that are deployed, and the names that apps have taken.
GRAPHS: Final = Projection(
    name="graphs",
    group="headwater-graph-projector",
    topics=(GRAPH_DEFINITIONS,),
    read=_all_count,
    plan=plan_definitions,
)
