"""The code of workflows, as an owner knows it: what new runs are made from, and where it lies.

A worker has the code of its apps, and that of deployments, of which one is active. A new run begins
on the active deployment if that has its workflow, and else in an app. A run that has a deployment
stays on it. One that has none follows the code: it is the app's that has its workflow, else the
active deployment's.
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
_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})
_NO_LIMITS: Final[Concurrencies] = MappingProxyType({})


class Made(NamedTuple):
    """What a new run is made from.

    Shape:  kind names its engine; params is the JSON Schema of what it takes, concurrency the limit
            that it falls under; document is the definition of a deployment's graph.
    """

    kind: str
    deployment: Artifact | None = None
    params: Json | None = None
    concurrency: Concurrency | None = None
    document: Json | None = None


class Code:
    """The code that a worker has.

    Shape:  workflows are those of its apps, each with the kind of its runs; params the JSON Schemas
            of what they take, concurrency their limits; hosts have them, by number: of workflows by
            name, and of definitions by digest. `deployed_host` gives the number of the host of a
            deployment by its id.
    """

    def __init__(
        self,
        workflows: Mapping[str, str],
        params: Mapping[str, Json] = _NONE,
        concurrency: Concurrencies = _NO_LIMITS,
        hosts: Mapping[str, int] = _NOWHERE,
        deployments: Deployments | None = None,
        deployed_host: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self._workflows = workflows
        self._params = params
        self._concurrency = concurrency
        self._hosts = hosts
        self._deployments = Deployments() if deployments is None else deployments
        self._deployed_host = deployed_host

    # -- what new runs are made from

    def for_new_run(self, workflow: str, command: Command, run: Run | None) -> Made | Rejection:
        """What the run is made from that a command begins.

        Shape:  run is the one before it, if there is one.
        """
        deployments = self._deployments
        if isinstance(command, StartRun) and command.deployment is not None:
            named = command.deployment.name
            found = deployments.workflow(named, workflow)
            if found is not None:
                by_hand = command.parent is None and command.sender is None
                pinned = by_hand or not found.latest
                return _made(deployments.by_id[named], found, pinned=pinned)
            if command.parent is None:
                return _not_in(named, workflow, deployments.by_id.get(named))
        kind = run.kind if run else command.kind if isinstance(command, StartRun) else ""
        active = deployments.active
        found = None if active is None else deployments.workflow(active.id, workflow)
        if found is not None and not _fits(found, command, run):
            found = None
        if active is not None and found is not None and kind in {"", found.kind}:
            return _made(active, found, pinned=not found.latest)
        again = run is not None and isinstance(command, RestartRun | RetryRun)
        if run is not None and (again or run.deployment is not None):
            return self._as_before(run)
        return self._of_app(workflow, command.kind if isinstance(command, StartRun) else "")

    def _as_before(self, run: Run) -> Made:
        """What a run was made from stays what its next one is made from."""
        if run.deployment is not None:
            found = self._deployments.workflow(run.deployment.name, run.workflow)
            if found is None:
                return Made(run.kind, run.deployment)
            return Made(run.kind, run.deployment, None, _limit(found), found.document)
        # It may have begun when something else had this name, and graphs have no limits.
        same = run.kind == self._workflows.get(run.workflow)
        return Made(run.kind, None, None, self._concurrency.get(run.workflow) if same else None)

    def _of_app(self, workflow: str, wanted: str) -> Made | Rejection:
        kind = self._workflows.get(workflow)
        if kind is None or wanted not in {"", kind}:
            active = self._deployments.active
            deployed = () if active is None else [each.name for each in active.workflows]
            idle = None if workflow in deployed else self._deployments.newest_with(workflow)
            return unknown_workflow(workflow, {*self._workflows, *deployed}, idle)
        return Made(kind, None, self._params.get(workflow), self._concurrency.get(workflow))

    # -- where it lies

    def host_of(self, run: Run) -> int | None:
        """The number of the host that has the code of a run; None if none has.

        Shape:  a definition is looked for first: a run stays where it began, whatever is deployed
                under its name.
        """
        if run.kind == SLOTS:
            return 0  # Their owner counts them, and no code does.
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


def _made(deployment: DeploymentCreated, found: DeployedWorkflow, *, pinned: bool) -> Made:
    artifact = artifact_of(deployment) if pinned else None
    return Made(found.kind, artifact, found.params, _limit(found), found.document)


def _fits(found: DeployedWorkflow, command: Command, run: Run | None) -> bool:
    """Whether a retry of a run can go on there: a graph has the tokens of its definition."""
    if run is None or run.definition is None or not isinstance(command, RetryRun):
        return True
    return found.digest == run.definition.digest


def _limit(found: DeployedWorkflow) -> Concurrency | None:
    return None if found.limit is None else Concurrency(found.limit, found.limit_key)


def _not_in(named: str, workflow: str, deployment: DeploymentCreated | None) -> Rejection:
    if deployment is None:
        return Rejection(
            DEPLOYMENT_NOT_FOUND, f"expected a deployment, found none with the id {named}"
        )
    names = ", ".join(each.name for each in deployment.workflows)
    return Rejection(
        WORKFLOW_NOT_FOUND,
        bounded(f"expected one of the workflows of {named} ({names}), found {workflow}"),
    )
