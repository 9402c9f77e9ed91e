"""The code that a worker has: what new runs are created from, and which host has it.

A worker has the code of its apps, and that of deployments, one of which is active. A new run starts
on the active deployment if that has its workflow, otherwise in an app. Another deployment may have
a share of the new runs. A run stays where it started: one that started in an app is never given to
a deployment. Only a run whose workflow declares that it follows the code has no deployment: it uses
the app that has its workflow, or else the active deployment.

A deployment that is being removed gets no new runs, except those that its own runs start. A removed
one gets none: what its last runs had started uses the active deployment.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from headwater.processors.deployments import Deployments, artifact_of, removal_message
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import BUILTIN_PREFIX, bounded
from headwater.processors.runs.slots import SLOTS, Concurrencies, Concurrency
from headwater.processors.runs.state import Run
from headwater.schemas.deployments import DeployedWorkflow, DeploymentCreated
from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    DEPLOYMENT_REMOVED,
    MIGRATION_REFUSED,
    NO_ACTIVE_DEPLOYMENT,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.history import (
    ACTIVE_DEPLOYMENT,
    APP,
    SAME_DEPLOYMENT,
    Artifact,
    Command,
    Json,
    RestartRun,
    RetryRun,
    StartRun,
    is_of_app,
)
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
        latest: Workflows of its apps whose runs follow the code.
    """

    def __init__(  # noqa: PLR0913, PLR0917, the declarations of the apps by name
        self,
        workflows: Mapping[str, str],
        params: Mapping[str, Json] = _NONE,
        concurrency: Concurrencies = _NO_LIMITS,
        hosts: Mapping[str, int] = _NO_HOSTS,
        deployments: Deployments | None = None,
        deployed_host: Callable[[str], int] = lambda _: 0,
        latest: Collection[str] = (),
    ) -> None:
        self._workflows = workflows
        self._params = params
        self._concurrency = concurrency
        self._hosts = hosts
        self._deployments = Deployments() if deployments is None else deployments
        self._deployed_host = deployed_host
        self._latest = latest

    # -- sources of new runs

    def for_new_run(
        self, workflow: str, instance_id: str, command: Command, run: Run | None
    ) -> RunSource | Rejection:
        """Return the source of the run that a command starts.

        Args:
            workflow: Name of the workflow.
            instance_id: Its instance, which shares of new runs depend on.
            command: The command.
            run: The previous run of the instance, if there is one.
        """
        if run is not None and isinstance(command, RestartRun | RetryRun):
            return self._for_next_run(run, command)
        start = command if isinstance(command, StartRun) else StartRun("null")
        source = self._named_source(workflow, instance_id, start)
        source = source or self._active_source(
            workflow, instance_id, run.kind if run else start.kind
        )
        if source is not None:
            return source
        if run is not None and not is_of_app(run.deployment):
            return self._previous_source(run)
        return self._app_source(workflow, start.kind)

    def _named_source(
        self, workflow: str, instance_id: str, start: StartRun
    ) -> RunSource | Rejection | None:
        """Return the source on the deployment that a command names; None to use another one."""
        if start.deployment is None:
            return None
        named = start.deployment.name
        if named == APP.name:
            in_app = self._is_in_app(workflow, start.kind)
            return self._app_source(workflow, start.kind) if in_app else None
        is_of_run = start.parent is not None or start.sender is not None
        active = self._deployments.active
        if active is not None and named == active.id and _is_of_schedule(start):
            # A share applies to what the schedules of the active deployment start, too.
            named = next(self._deployments.for_new_run(workflow, instance_id)).id
        if named in self._deployments.retired and not is_of_run:
            return _removed(named)
        deployed = self._deployments.workflow(named, workflow)
        if deployed is not None:
            pinned = not is_of_run or not deployed.latest
            return _source(self._deployments.by_id[named], deployed, pinned=pinned)
        if start.parent is not None or self._deployments.is_removed(named):
            return None
        return _not_in(named, workflow, self._deployments.by_id.get(named))

    def _for_next_run(self, run: Run, command: RestartRun | RetryRun) -> RunSource | Rejection:
        if command.deployment == SAME_DEPLOYMENT:
            return self._previous_source(run)
        if command.deployment == ACTIVE_DEPLOYMENT and isinstance(command, RestartRun):
            # The default. A workflow that the active deployment lacks runs where it ran before.
            active = self._active_source(run.workflow, run.instance_id, run.kind)
            return active or self._previous_source(run)
        return self.chosen_source(run, command.deployment, keeps=isinstance(command, RetryRun))

    def chosen_source(self, run: Run, requested: str, *, keeps: bool) -> RunSource | Rejection:
        """Return the source of a run on a deployment that an operator names.

        Args:
            run: The run, or the one before it.
            requested: "active", "app", or the id of a deployment.
            keeps: Whether the run keeps what it has done. A graph then needs the same definition,
                because its tokens refer to it.
        """
        active = self._deployments.active
        if requested == ACTIVE_DEPLOYMENT and active is None:
            return Rejection(NO_ACTIVE_DEPLOYMENT, "expected an active deployment, found none")
        name = active.id if active is not None and requested == ACTIVE_DEPLOYMENT else requested
        if run.deployment is not None and run.deployment.name == name:
            return self._previous_source(run)
        if name == APP.name:
            source = self._app_source(run.workflow, run.kind)
            same_definition = run.definition is not None and run.definition.digest in self._hosts
        elif name in self._deployments.retired:
            return _removed(name)
        else:
            deployed = self._deployments.workflow(name, run.workflow)
            if deployed is None or deployed.kind != run.kind:
                return _not_in(name, run.workflow, self._deployments.by_id.get(name))
            pinned = requested != ACTIVE_DEPLOYMENT or not deployed.latest
            source = _source(self._deployments.by_id[name], deployed, pinned=pinned)
            same_definition = run.definition is None or deployed.digest == run.definition.digest
        if keeps and run.definition is not None and not same_definition:
            return _other_definition(run, name)
        return source

    def _active_source(self, workflow: str, instance_id: str, kind: str) -> RunSource | None:
        """Return the source on the active deployment, or on the one with a share of the new runs.

        None if they lack the workflow.
        """
        for deployment in self._deployments.for_new_run(workflow, instance_id):
            deployed = self._deployments.workflow(deployment.id, workflow)
            if deployed is not None and kind in {"", deployed.kind}:
                return _source(deployment, deployed, pinned=not deployed.latest)
        return None

    def _previous_source(self, run: Run) -> RunSource | Rejection:
        """Return the source of a run for its next one."""
        if run.deployment is not None and not is_of_app(run.deployment):
            if run.deployment.name in self._deployments.retired:
                return _removed(run.deployment.name)
            deployed = self._deployments.workflow(run.deployment.name, run.workflow)
            if deployed is None:
                return RunSource(run.kind, run.deployment)
            return RunSource(run.kind, run.deployment, None, _limit(deployed), deployed.document)
        # Another kind of workflow may have had this name, and graphs have no limits.
        same = run.kind == self._workflows.get(run.workflow)
        limit = self._concurrency.get(run.workflow) if same else None
        return RunSource(run.kind, run.deployment, None, limit)

    def _is_in_app(self, workflow: str, requested_kind: str) -> bool:
        kind = self._workflows.get(workflow)
        return kind is not None and requested_kind in {"", kind}

    def _app_source(self, workflow: str, requested_kind: str) -> RunSource | Rejection:
        if not self._is_in_app(workflow, requested_kind):
            active = self._deployments.active
            deployed = (
                ()
                if active is None
                else [deployed_workflow.name for deployed_workflow in active.workflows]
            )
            idle = None if workflow in deployed else self._deployments.newest_with(workflow)
            return unknown_workflow(workflow, {*self._workflows, *deployed}, idle)
        follows = workflow in self._latest or workflow.startswith(BUILTIN_PREFIX)
        return RunSource(
            self._workflows[workflow],
            None if follows else APP,
            self._params.get(workflow),
            self._concurrency.get(workflow),
        )

    # -- hosts

    def host_of(self, run: Run) -> int | None:
        """Return the number of the host that has the code of a run, or None.

        The digest of a definition takes precedence: a run stays on the definition that it started
        with, whatever is deployed under its name.
        """
        if run.kind == SLOTS:
            return 0  # Slots are counted by the owner, without code.
        if run.deployment is not None and not is_of_app(run.deployment):
            known = run.deployment.name in self._deployments.by_id
            return self._deployed_host(run.deployment.name) if known else None
        number = self._hosts.get(run.definition.digest) if run.definition else None
        number = self._hosts.get(run.workflow) if number is None else number
        if number is not None or run.workflow in self._workflows:
            return number or 0
        active = self._deployments.active
        if active is None or self._deployments.workflow(active.id, run.workflow) is None:
            return None
        # Only a run that follows the code is given to a deployment on which it did not start.
        return self._deployed_host(active.id) if run.deployment is None else None


def _source(
    deployment: DeploymentCreated, deployed: DeployedWorkflow, *, pinned: bool
) -> RunSource:
    artifact = artifact_of(deployment) if pinned else None
    return RunSource(deployed.kind, artifact, deployed.params, _limit(deployed), deployed.document)


def _limit(deployed: DeployedWorkflow) -> Concurrency | None:
    return None if deployed.limit is None else Concurrency(deployed.limit, deployed.limit_key)


def _is_of_schedule(start: StartRun) -> bool:
    return start.sender is not None and start.sender.workflow.startswith(BUILTIN_PREFIX)


def _removed(name: str) -> Rejection:
    return Rejection(
        DEPLOYMENT_REMOVED, f"{removal_message(name)}, or name another one, such as `active`"
    )


def _not_in(named: str, workflow: str, deployment: DeploymentCreated | None) -> Rejection:
    if deployment is None:
        return Rejection(
            DEPLOYMENT_NOT_FOUND, f"expected a deployment, found none with the id {named}"
        )
    kinds = {deployed.name: deployed.kind for deployed in deployment.workflows}
    expected = f"expected one of the workflows of {named} ({', '.join(kinds)}), found {workflow}"
    if workflow in kinds:
        expected = f"expected {workflow} to be of the same kind in {named}, found {kinds[workflow]}"
    return Rejection(WORKFLOW_NOT_FOUND, bounded(expected))


def _other_definition(run: Run, name: str) -> Rejection:
    return Rejection(
        MIGRATION_REFUSED,
        f"expected the definition of {run.workflow} on {name} to be that of the run, found another "
        "one; a restart uses it from the beginning",
    )
