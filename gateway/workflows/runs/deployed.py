"""Which deployment a run is to begin on, as it is asked for."""

from typing import Protocol

from headwater.gateway.http.problems import Problem
from headwater.processors.deployments import Deployments, artifact_of
from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    NO_ACTIVE_DEPLOYMENT,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.history import Artifact

_NONE_ACTIVE = "No active deployment. Activate a deployment before triggering runs."


class Deploying(Protocol):
    """The deployments, as the log has them."""

    async def catch_up(self) -> Deployments:
        """All that was deployed and activated before the call, and perhaps more.

        Errors: BrokerUnavailable; NotYetReadable.
        """

    async def stop(self) -> None:
        """Disconnects."""


def asked_for(deployments: Deployments, workflow: str, deployment: str | None) -> Artifact | None:
    """The deployment that is named; None for the active one, which its worker finds.

    Errors: Problem where there is none to begin on.
    """
    if deployment is None:
        if deployments.active is None:
            raise Problem(NO_ACTIVE_DEPLOYMENT, _NONE_ACTIVE)
        return None
    found = deployments.by_id.get(deployment)
    if found is None:
        raise Problem(
            DEPLOYMENT_NOT_FOUND,
            f"expected a deployment, found none with the id {deployment[:64]!r}",
            field="deploymentId",
        )
    named = deployments.workflow(deployment, workflow)
    if named is None:
        names = ", ".join(each.name for each in found.workflows)
        raise Problem(
            WORKFLOW_NOT_FOUND,
            f"expected a workflow of {found.id}, which has {names}, found {workflow[:64]!r}",
            field="workflowName",
        )
    return None if named.latest else artifact_of(found)
