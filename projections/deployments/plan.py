"""Plan rows from the records of `deployments`, without access to Postgres.

Whether an activation is valid depends on all earlier records, which only Postgres has here. So each
record is one statement, in order, that decides by the same rules as the fold of the topic
(`processors.deployments`). There are few: one per deployment or activation.
"""

from functools import partial
from typing import Final

from headwater.projections.projector.one_by_one import one_by_one
from headwater.projections.projector.plan import RowStatement, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord
from headwater.schemas.deployment_records import read_deployment_record
from headwater.schemas.deployments import DeploymentActivated
from headwater.schemas.topics import DEPLOYMENTS as TOPIC

__all__ = ["DEPLOYMENTS"]


def _statement(log_record: LogRecord) -> RowStatement:
    record = read_deployment_record(log_record.value)
    common = {
        "id": record.id,
        "by": record.by,
        "at_ms": record.at_ms,
        "offset": log_record.offset,
    }
    if isinstance(record, DeploymentActivated):
        return RowStatement("activate_deployment", payload([common | {"after": record.after}]))
    created = {
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
    return RowStatement("create_deployment", payload([common | created]))


#: Deployments of code, and the active one.
DEPLOYMENTS: Final = Projection(
    name="deployments",
    group="headwater-deployment-projector",
    topics=(TOPIC,),
    plan=partial(one_by_one, statement_of=_statement),
    is_waited_for=True,
)
