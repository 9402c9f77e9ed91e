"""Projections of deployed graphs and deployed code, planned without access to Postgres.

Whether a graph becomes a version, and whether an activation is valid, depends on all earlier
records, which only Postgres has here. So each record is one statement, in order, that decides by
the same rules as the fold of its topic (`processors.graph.catalogue`, `processors.deployments`).
There are few: one per deployment or activation.
"""

from functools import partial
from typing import Final

from headwater.projections.projector.projection import (
    LogRecord,
    Projection,
    RowStatement,
    SqlRow,
    one_by_one,
    payload,
)
from headwater.schemas.codec import decode, read_deployment_record
from headwater.schemas.deployments import (
    DeploymentActivated,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRetired,
    EnvironmentReported,
    GraphDeployed,
    LoadRequested,
)
from headwater.schemas.topics import DEPLOYMENTS as TOPIC
from headwater.schemas.topics import GRAPH_DEFINITIONS


def _graph_statement(record: LogRecord) -> RowStatement:
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
    plan=partial(one_by_one, statement_of=_graph_statement),
    is_waited_for=True,
)


# -- deployed code


def _deployment_statement(log_record: LogRecord) -> RowStatement | None:
    record = read_deployment_record(log_record.value)
    if isinstance(record, LoadRequested | DeploymentLoaded | EnvironmentReported):
        return None
    common = {
        "id": record.id,
        "by": record.by,
        "at_ms": record.at_ms,
        "offset": log_record.offset,
    }
    match record:
        case DeploymentActivated():
            activated = {
                "after": record.after,
                "rollback": record.rollback,
                "percent": record.percent,
            }
            return RowStatement("activate_deployment", payload([common | activated]))
        case DeploymentRetired():
            retired = {"stage": record.stage, "closing": record.closing}
            return RowStatement("retire_deployment", payload([common | retired]))
        case DeploymentCreated():
            return RowStatement("create_deployment", payload([common | _created(record)]))


def _created(record: DeploymentCreated) -> SqlRow:
    return {
        "app": record.app,
        "digest": record.digest,
        "size": record.size,
        "workflows": [workflow.name for workflow in record.workflows],
        "params_schemas": {
            workflow.name: workflow.params for workflow in record.workflows if workflow.params
        },
        "limits": {
            workflow.name: {"limit": workflow.limit, "key": workflow.limit_key}
            for workflow in record.workflows
            if workflow.limit is not None
        },
    }


#: Deployments of code, and the active one.
DEPLOYMENTS: Final = Projection(
    name="deployments",
    group="headwater-deployment-projector",
    topics=(TOPIC,),
    plan=partial(one_by_one, statement_of=_deployment_statement),
    is_waited_for=True,
)
