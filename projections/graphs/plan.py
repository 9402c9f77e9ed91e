"""What the records of `graph-definitions` do to rows, decided without Postgres.

Whether a record becomes a version hangs on all before it, which only Postgres knows here. So each
is a statement of its own, in their order, that decides what the fold of the topic decides
(`processors.graph.catalogue`). They are few: somebody deployed each of them.
"""

from functools import partial
from typing import Final

from headwater.projections.projector.one_by_one import one_by_one
from headwater.projections.projector.plan import Work, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord
from headwater.schemas.codec import decode
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.topics import GRAPH_DEFINITIONS

__all__ = ["GRAPHS"]


def _work(record: LogRecord) -> Work:
    deployed = decode(record.value, GraphDeployed)
    row = {
        "name": deployed.name,
        "document": deployed.document,
        "digest": deployed.digest,
        "app": deployed.app,
        "after": deployed.after,
        "at_ms": deployed.at_ms,
        "moves": deployed.moves,
        "deployment": deployed.deployment,
        "offset": record.offset,
    }
    return Work("graph_definition", payload([row]))


#: Graphs that are deployed, and the names that apps have taken.
GRAPHS: Final = Projection(
    name="graphs",
    group="headwater-graph-projector",
    topics=(GRAPH_DEFINITIONS,),
    plan=partial(one_by_one, work_of=_work),
    is_waited_for=True,
)
