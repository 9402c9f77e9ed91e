"""Which deployment a run is to begin on, as it is asked for."""

from headwater.gateway.http.problems import Problem
from headwater.processors.deployments import Deployments, artifact_of
from headwater.schemas.deployments import DeploymentCreated
from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    NO_ACTIVE_DEPLOYMENT,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.history import Artifact

_NONE_ACTIVE = "No active deployment. Activate a deployment before triggering runs."


def active_of(deployments: Deployments) -> DeploymentCreated:
    """The active deployment.

    Errors: Problem where there is none.
    """
    if deployments.active is None:
        raise Problem(NO_ACTIVE_DEPLOYMENT, _NONE_ACTIVE)
    return deployments.active


def deployment_of(deployments: Deployments, name: str) -> DeploymentCreated:
    """The deployment of an id.

    Errors: Problem where there is none.
    """
    found = deployments.by_id.get(name)
    if found is None:
        raise Problem(
            DEPLOYMENT_NOT_FOUND,
            f"expected a deployment, found none with the id {name[:64]!r}",
            field="deploymentId",
        )
    return found


def artifact_for(
    deployments: Deployments, workflow: str, deployment: str | None
) -> Artifact | None:
    """The deployment that is named; None for the active one, which its worker finds.

    Errors: Problem where there is none to begin on.
    """
    if deployment is None:
        active_of(deployments)
        return None
    found = deployment_of(deployments, deployment)
    if deployments.workflow(deployment, workflow) is None:
        # Without the names of others: hooks may keep them from the caller.
        raise Problem(
            WORKFLOW_NOT_FOUND,
            f"expected a workflow of {found.id}, found {workflow[:64]!r}; GET "
            f"/v1/deployments/{found.id} lists those that there are",
            field="workflowName",
        )
    return artifact_of(found)
