"""What the records of `deployments` do to rows, decided without Postgres.

Whether an activation counts hangs on all before it, which only Postgres knows here. So each record
is a statement of its own, in their order, that decides what the fold of the topic decides
(`processors.deployments`). They are few: somebody deployed or activated each of them.
"""

from functools import partial
from typing import Final

from headwater.projections.projector.one_by_one import one_by_one
from headwater.projections.projector.plan import Work, payload
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord
from headwater.schemas.deployment_records import read_deployment_record
from headwater.schemas.deployments import DeploymentActivated
from headwater.schemas.topics import DEPLOYMENTS as TOPIC

__all__ = ["DEPLOYMENTS"]


def _work(found: LogRecord) -> Work:
    record = read_deployment_record(found.value)
    about = {
        "id": record.id,
        "by": record.by,
        "at_ms": record.at_ms,
        "offset": found.offset,
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


#: The deployments of code, and which of them is active.
DEPLOYMENTS: Final = Projection(
    name="deployments",
    group="headwater-deployment-projector",
    topics=(TOPIC,),
    plan=partial(one_by_one, work_of=_work),
    is_waited_for=True,
)
