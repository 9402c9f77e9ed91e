"""The code that a worker has: what new runs are created from, and which host has it.

A worker has the code of its apps, and that of deployments, one of which is active. A new run starts
on the active deployment if that has its workflow, otherwise in an app. A run with a deployment
stays on it. A run without one follows the code: the app that has its workflow, or else the active
deployment.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from headwater.processors.deployments import Deployments, artifact_of
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import bounded
from headwater.processors.runs.slots import SLOTS, Concurrencies, Concurrency
from headwater.processors.runs.state import Run
from headwater.schemas.deployments import DeployedWorkflow, DeploymentCreated
from headwater.schemas.failures import DEPLOYMENT_NOT_FOUND, WORKFLOW_NOT_FOUND
from headwater.schemas.history import Artifact, Command, Json, RestartRun, RetryRun, StartRun
from headwater.streams.engine.effects import unknown_workflow

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_NO_HOSTS: Final[Mapping[str, int]] = MappingProxyType({})
_NO_LIMITS: Final[Concurrencies] = MappingProxyType({})


class RunSource(NamedTuple):
    """What a new run is created from.

    Attributes:
        kind: Kind of its engine.
        deployment: Deployment that it stays on.
        params: JSON Schema of its params.
        concurrency: Limit that applies to it.
        document: Definition of a deployment's graph.
    """

    kind: str
    deployment: Artifact | None = None
    params: Json | None = None
    concurrency: Concurrency | None = None
    document: Json | None = None


class Code:
    """The code of a worker.

    Args:
        workflows: Kinds of runs by workflow, for the workflows of its apps.
        params: JSON Schemas of params, by workflow.
        concurrency: Concurrency limits, by workflow.
        hosts: Numbers of hosts, by name of a workflow and by digest of a definition.
        deployments: All deployments.
        deployed_host: Returns the number of the host of a deployment by its id.
    """

    def __init__(
        self,
        workflows: Mapping[str, str],
        params: Mapping[str, Json] = _NONE,
        concurrency: Concurrencies = _NO_LIMITS,
        hosts: Mapping[str, int] = _NO_HOSTS,
        deployments: Deployments | None = None,
        deployed_host: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self._workflows = workflows
        self._params = params
        self._concurrency = concurrency
        self._hosts = hosts
        self._deployments = Deployments() if deployments is None else deployments
        self._deployed_host = deployed_host

    # -- sources of new runs

    def for_new_run(
        self, workflow: str, command: Command, run: Run | None
    ) -> RunSource | Rejection:
        """Return the source of the run that a command starts.

        Args:
            workflow: Name of the workflow.
            command: The command.
            run: The previous run of the instance, if there is one.
        """
        deployments = self._deployments
        if isinstance(command, StartRun) and command.deployment is not None:
            named = command.deployment.name
            deployed = deployments.workflow(named, workflow)
            if deployed is not None:
                by_hand = command.parent is None and command.sender is None
                pinned = by_hand or not deployed.latest
                return _source(deployments.by_id[named], deployed, pinned=pinned)
            if command.parent is None:
                return _not_in(named, workflow, deployments.by_id.get(named))
        kind = run.kind if run else command.kind if isinstance(command, StartRun) else ""
        active = deployments.active
        deployed = None if active is None else deployments.workflow(active.id, workflow)
        if deployed is not None and not _can_continue(deployed, command, run):
            deployed = None
        if active is not None and deployed is not None and kind in {"", deployed.kind}:
            return _source(active, deployed, pinned=not deployed.latest)
        again = run is not None and isinstance(command, RestartRun | RetryRun)
        if run is not None and (again or run.deployment is not None):
            return self._previous_source(run)
        return self._app_source(workflow, command.kind if isinstance(command, StartRun) else "")

    def _previous_source(self, run: Run) -> RunSource:
        """Return the source of a run for its next one."""
        if run.deployment is not None:
            deployed = self._deployments.workflow(run.deployment.name, run.workflow)
            if deployed is None:
                return RunSource(run.kind, run.deployment)
            return RunSource(run.kind, run.deployment, None, _limit(deployed), deployed.document)
        # Another kind of workflow may have had this name, and graphs have no limits.
        same = run.kind == self._workflows.get(run.workflow)
        return RunSource(
            run.kind, None, None, self._concurrency.get(run.workflow) if same else None
        )

    def _app_source(self, workflow: str, requested_kind: str) -> RunSource | Rejection:
        kind = self._workflows.get(workflow)
        if kind is None or requested_kind not in {"", kind}:
            active = self._deployments.active
            deployed = (
                ()
                if active is None
                else [deployed_workflow.name for deployed_workflow in active.workflows]
            )
            idle = None if workflow in deployed else self._deployments.newest_with(workflow)
            return unknown_workflow(workflow, {*self._workflows, *deployed}, idle)
        return RunSource(kind, None, self._params.get(workflow), self._concurrency.get(workflow))

    # -- hosts

    def host_of(self, run: Run) -> int | None:
        """Return the number of the host that has the code of a run, or None.

        The digest of a definition takes precedence: a run stays on the definition that it started
        with, whatever is deployed under its name.
        """
        if run.kind == SLOTS:
            return 0  # Slots are counted by the owner, without code.
        if run.deployment is not None:
            known = run.deployment.name in self._deployments.by_id
            return self._deployed_host(run.deployment.name) if known else None
        number = self._hosts.get(run.definition.digest) if run.definition else None
        number = self._hosts.get(run.workflow) if number is None else number
        if number is not None or run.workflow in self._workflows:
            return number or 0
        active = self._deployments.active
        if active is None or self._deployments.workflow(active.id, run.workflow) is None:
            return None
        return self._deployed_host(active.id)


def _source(
    deployment: DeploymentCreated, deployed: DeployedWorkflow, *, pinned: bool
) -> RunSource:
    artifact = artifact_of(deployment) if pinned else None
    return RunSource(deployed.kind, artifact, deployed.params, _limit(deployed), deployed.document)


def _can_continue(deployed: DeployedWorkflow, command: Command, run: Run | None) -> bool:
    """Whether a retry can continue the run there: its tokens belong to one definition."""
    if run is None or run.definition is None or not isinstance(command, RetryRun):
        return True
    return deployed.digest == run.definition.digest


def _limit(deployed: DeployedWorkflow) -> Concurrency | None:
    return None if deployed.limit is None else Concurrency(deployed.limit, deployed.limit_key)


def _not_in(named: str, workflow: str, deployment: DeploymentCreated | None) -> Rejection:
    if deployment is None:
        return Rejection(
            DEPLOYMENT_NOT_FOUND, f"expected a deployment, found none with the id {named}"
        )
    names = ", ".join(deployed.name for deployed in deployment.workflows)
    return Rejection(
        WORKFLOW_NOT_FOUND,
        bounded(f"expected one of the workflows of {named} ({names}), found {workflow}"),
    )
