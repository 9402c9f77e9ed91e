"""Selects the deployment that a new run begins on."""

from headwater.gateway.api.problems import Problem
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
    """Return the active deployment.

    Raises:
        Problem: No deployment is active.
    """
    if deployments.active is None:
        raise Problem(NO_ACTIVE_DEPLOYMENT, _NONE_ACTIVE)
    return deployments.active


def deployment_of(deployments: Deployments, name: str) -> DeploymentCreated:
    """Return the deployment with an id.

    Raises:
        Problem: No deployment has the id.
    """
    deployment = deployments.by_id.get(name)
    if deployment is None:
        raise Problem(
            DEPLOYMENT_NOT_FOUND,
            f"expected a deployment, found none with the id {name[:64]!r}",
            field="deploymentId",
        )
    return deployment


def artifact_for(deployments: Deployments, workflow: str, name: str | None) -> Artifact | None:
    """Return the artifact of the named deployment; None for the active one.

    The worker resolves the active deployment when it starts the run.

    Raises:
        Problem: The deployment does not exist or does not have the workflow.
    """
    if name is None:
        active_of(deployments)
        return None
    deployment = deployment_of(deployments, name)
    if deployments.workflow(name, workflow) is None:
        # Without the names of other workflows, which hooks may hide from the caller.
        raise Problem(
            WORKFLOW_NOT_FOUND,
            f"expected a workflow of {deployment.id}, found {workflow[:64]!r}; GET "
            f"/v1/deployments/{deployment.id} lists them",
            field="workflowName",
        )
    return artifact_of(deployment)
