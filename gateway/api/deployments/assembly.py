"""Assemble the routes of deployments."""

from litestar import Router

from headwater.gateway.api.deployments.artifact_check import ArtifactCheck
from headwater.gateway.api.deployments.deployment_service import DeploymentService
from headwater.gateway.api.deployments.load_check import LoadCheck
from headwater.gateway.api.deployments.removals import Removals
from headwater.gateway.api.deployments.replay_gate import GateLimits, ReplayGate
from headwater.gateway.api.deployments.routes import deployment_routers
from headwater.gateway.api.json_bodies import LimitedBodies
from headwater.gateway.api.key_guards import KeyGuard
from headwater.gateway.api.workflows.routes import WorkflowPorts, WorkflowService
from headwater.gateway.settings.settings import Settings
from headwater.streams.workflows.code_folders import CodeFolders
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
    folders = CodeFolders(
        workflows.run_ports.deployments, settings.state_dir, settings.environment_policy
    )
    service.add_shutdown_callback(artifact_check.close)
    service.add_shutdown_callback(folders.close)
    deployment_service = DeploymentService(
        workflows.run_ports.deployments,
        artifact_check,
        ReplayGate(
            workflows.workflows,
            workflows.runs,
            folders,
            LoadCheck(
                workflows.run_ports.deployments,
                workflows.workers,
                within_s=settings.load_check_s,
                clock=workflows.clock,
                new_id=workflows.new_id,
            ),
            limits=_gate_limits(settings),
            passed=settings.app_environment,
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


def _gate_limits(settings: Settings) -> GateLimits:
    return GateLimits(
        open_runs=settings.replay_runs,
        ended_runs=settings.replay_ended_runs,
        history_bytes=settings.replay_bytes,
        seconds=settings.replay_s,
        memory_max=settings.check_memory_mib * 1024 * 1024,
    )
