"""Assemble the routes of deployments."""

from litestar import Router

from headwater.gateway.api.deployments.artifact_check import ArtifactCheck
from headwater.gateway.api.deployments.deployment_service import DeploymentService
from headwater.gateway.api.deployments.load_check import ActivationCheck, LoadCheck
from headwater.gateway.api.deployments.removals import Removals
from headwater.gateway.api.deployments.routes import deployment_routers
from headwater.gateway.api.json_bodies import LimitedBodies
from headwater.gateway.api.key_guards import KeyGuard
from headwater.gateway.api.workflows.routes import WorkflowPorts, WorkflowService
from headwater.gateway.settings.settings import Settings
from headwater.streams.workflows.environments import ENVIRONMENTS, Environments


def deployment_routes(
    settings: Settings,
    workflows: WorkflowPorts,
    service: WorkflowService,
    keys: KeyGuard,
    bodies: LimitedBodies,
) -> list[Router]:
    """Return the routes of deployments."""
    artifact_check = ArtifactCheck(
        passed=settings.app_environment,
        limits=settings.limits,
        environments=Environments(settings.state_dir / ENVIRONMENTS, settings.environment_policy),
        memory_mib=settings.check_memory_mib,
    )
    service.add_shutdown_callback(artifact_check.close)
    deployment_service = DeploymentService(
        workflows.run_ports.deployments,
        artifact_check,
        ActivationCheck(
            service.gate,
            LoadCheck(
                workflows.run_ports.deployments,
                workflows.workers,
                within_s=settings.load_check_s,
                install_s=settings.environment_install_s,
                clock=workflows.clock,
                new_id=workflows.new_id,
            ),
        ),
        workflows.workflows,
        clock=workflows.clock,
    )
    removals = Removals(
        workflows.run_ports.deployments,
        workflows.workflows,
        service.fence,
        clock=workflows.clock,
        new_id=workflows.new_id,
    )
    return deployment_routers(deployment_service, removals, service.request_guard, bodies, keys)
