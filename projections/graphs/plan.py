"""Plan rows from the records of `graph-definitions`, without access to Postgres.

Whether a record becomes a version depends on all earlier ones, which only Postgres has here. So
each record is one statement, in order, that decides by the same rules as the fold of the topic
(`processors.graph.catalogue`). There are few: one per deployment.
"""

from functools import partial
from typing import Final

from headwater.projections.projector.one_by_one import one_by_one
from headwater.projections.projector.plan import RowStatement, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord
from headwater.schemas.codec import decode
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.topics import GRAPH_DEFINITIONS

__all__ = ["GRAPHS"]


def _statement(record: LogRecord) -> RowStatement:
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
    return RowStatement("graph_definition", payload([row]))


#: Deployed graphs, and the names that apps own.
GRAPHS: Final = Projection(
    name="graphs",
    group="headwater-graph-projector",
    topics=(GRAPH_DEFINITIONS,),
    plan=partial(one_by_one, statement_of=_statement),
    is_waited_for=True,
)
