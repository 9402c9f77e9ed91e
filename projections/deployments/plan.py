"""What the records of `deployments` do to rows, decided without Postgres.

Whether an activation counts hangs on all before it, which only Postgres knows here. So each record
is a statement of its own, in their order, that decides what the fold of the topic decides
(`processors.deployments`). They are few: somebody deployed or activated each of them.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headwater.processors.runs.claims import Claims
from headwater.projections.projector.plan import Plan, Work, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import UNREADABLE, LogRecord, refusal
from headwater.schemas.deployment_records import read_deployment_record
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated
from headwater.schemas.topics import DEPLOYMENTS as TOPIC

__all__ = ["DEPLOYMENTS", "plan_deployments"]


def plan_deployments(records: Iterable[LogRecord]) -> Plan:
    """Plans records of `deployments`."""
    works: list[Work] = []
    refused = 0
    for record in records:
        try:
            found = read_deployment_record(record.value)
        except UNREADABLE as error:
            refused += 1
            works.append(Work("projection_errors", payload([refusal(record, str(error))])))
        else:
            works.append(_work(found, record.offset))
    return Plan(works=tuple(works), unreadable=refused)


def _work(record: DeploymentCreated | DeploymentActivated, offset: int) -> Work:
    about = {
        "id": record.id,
        "by": record.by,
        "at_ms": record.at_ms,
        "offset": offset,
    }
    if isinstance(record, DeploymentActivated):
        return Work("activate_deployment", payload([about | {"after": record.after}]))
    created = {
        "app": record.app,
        "digest": record.digest,
        "size": record.size,
        "workflows": [each.name for each in record.workflows],
        "params_schemas": {each.name: each.params for each in record.workflows if each.params},
        "limits": {
            each.name: {"limit": each.limit, "key": each.limit_key}
            for each in record.workflows
            if each.limit is not None
        },
    }
    return Work("create_deployment", payload([about | created]))


def _all_count(records: Sequence[LogRecord], claims: Claims) -> Sequence[LogRecord]:
    """Nobody claims the topic: whoever deploys appends."""
    return records


#: The deployments of code, and which of them is active.
DEPLOYMENTS: Final = Projection(
    name="deployments",
    group="headwater-deployment-projector",
    topics=(TOPIC,),
    read=_all_count,
    plan=plan_deployments,
)
