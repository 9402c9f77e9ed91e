"""The deployments, and which of them is active: a fold of their topic, in its order.

The order of the log decides, as for graphs: of two concurrent activations the later one wins, and a
record that was appended twice counts once.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from headwater.schemas.deployments import (
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRecord,
    LoadRequested,
)
from headwater.schemas.failures import (
    DEPLOYMENT_CHANGED,
    DEPLOYMENT_NOT_FOUND,
    NOTHING_TO_ROLL_BACK,
)
from headwater.schemas.history import Artifact

_ID_DIGITS: Final = 20


class Created(NamedTuple):
    """Outcome of a creation; `new` unless the deployment existed before."""

    deployment: DeploymentCreated
    new: bool


class Activated(NamedTuple):
    """Outcome of an activation. `before` is the previously active deployment, if any."""

    deployment: DeploymentCreated
    before: str | None
    new: bool


class ActivationRejected(NamedTuple):
    """Why an activation was rejected."""

    code: str
    message: str


class LoadNoted(NamedTuple):
    """Outcome of a request to load a deployment, and of a worker's answer."""

    request: str


DeploymentOutcome: TypeAlias = Created | Activated | ActivationRejected | LoadNoted

#: Requests to load deployments of which the answers are kept: more than are made at a time.
_REQUESTS_KEPT: Final = 16


def deployment_id(app: str, digest: str) -> str:
    """Return the id of a deployment: the same content is the same deployment."""
    content = f"{app}\n{digest}".encode()
    return f"dep_{hashlib.sha256(content).hexdigest()[:_ID_DIGITS]}"


def artifact_of(deployment: DeploymentCreated) -> Artifact:
    """Return the reference to a deployment in the histories of runs."""
    return Artifact(deployment.id, deployment.app, deployment.digest)


class Deployments:
    """All deployments, in the order of creation.

    Attributes:
        activations: Ids of activated deployments without those that were rolled back; the last one
            is active.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, DeploymentCreated] = {}
        self.activations: list[str] = []
        #: The deployment that the latest activation replaced, if that was a rollback.
        self.rolled_back_from: str | None = None
        #: Latest activation of every deployment that was ever active, in Unix milliseconds.
        self.activated_at_ms: dict[str, int] = {}
        #: Number of activations, including rollbacks.
        self.moves = 0
        #: The latest requests to load a deployment, and the answers: errors by worker.
        self.load_requests: dict[str, LoadRequested] = {}
        self.loads: dict[str, dict[str, str]] = {}

    @property
    def active(self) -> DeploymentCreated | None:
        """The deployment that new runs start on; None before the first activation."""
        return self.by_id[self.activations[-1]] if self.activations else None

    def workflow(self, deployment: str, name: str) -> DeployedWorkflow | None:
        """Return a workflow of a deployment, or None."""
        known = self.by_id.get(deployment)
        if known is None:
            return None
        return next((workflow for workflow in known.workflows if workflow.name == name), None)

    def newest_with(self, workflow: str) -> str | None:
        """Return the id of the latest deployment that has a workflow, or None."""
        newest_first = reversed(self.by_id)
        return next((id_ for id_ in newest_first if self.workflow(id_, workflow)), None)

    def schedules(self) -> dict[str, DeployedSchedule | None]:
        """Return the schedules of the active deployment, and None for those of earlier ones."""
        ever_active = (self.by_id[id_] for id_ in self.activated_at_ms)
        known: dict[str, DeployedSchedule | None] = {
            schedule.name: None for deployment in ever_active for schedule in deployment.schedules
        }
        current = () if self.active is None else self.active.schedules
        return known | {schedule.name: schedule for schedule in current}

    def graphs(self) -> dict[str, DeployedWorkflow | None]:
        """Return the graphs of the active deployment, and None for those of earlier ones."""
        ever_active = (self.by_id[id_] for id_ in self.activated_at_ms)
        known: dict[str, DeployedWorkflow | None] = {
            workflow.name: None
            for deployment in ever_active
            for workflow in deployment.workflows
            if workflow.document
        }
        current = () if self.active is None else self.active.workflows
        return known | {workflow.name: workflow for workflow in current if workflow.document}

    def latest_last(self) -> Iterator[DeploymentCreated]:
        """Yield all deployments in the order of creation, then the activated ones in order."""
        yield from self.by_id.values()
        yield from map(self.by_id.__getitem__, self.activations)

    def rolled_back_to(
        self, deployment: str | None = None
    ) -> DeploymentCreated | ActivationRejected:
        """Return what a rollback activates: the previous deployment, or the named earlier one."""
        before = self.activations[:-1]
        if not before or (deployment is not None and deployment not in before):
            target = deployment or "a deployment"
            return ActivationRejected(
                NOTHING_TO_ROLL_BACK,
                f"expected {target} that was active before the present one, found "
                f"{', '.join(reversed(before)) or 'none'}; activate takes any deployment",
            )
        return self.by_id[deployment or before[-1]]

    def apply(self, record: DeploymentRecord) -> DeploymentOutcome:
        """Apply a record and return its outcome."""
        match record:
            case DeploymentCreated():
                known = self.by_id.setdefault(record.id, record)
                return Created(known, known is record)
            case DeploymentActivated():
                return self._activate(record)
            case LoadRequested():
                self.load_requests[record.request] = record
                self.loads[record.request] = {}
                if len(self.loads) > _REQUESTS_KEPT:
                    oldest = next(iter(self.loads))
                    del self.loads[oldest], self.load_requests[oldest]
            case DeploymentLoaded():
                if record.request in self.loads:
                    self.loads[record.request][record.worker] = record.error
        return LoadNoted(record.request)

    def _activate(self, record: DeploymentActivated) -> Activated | ActivationRejected:
        before = self.activations[-1] if self.activations else None
        deployment = self.by_id.get(record.id)
        if deployment is None:
            return ActivationRejected(
                DEPLOYMENT_NOT_FOUND,
                f"expected a deployment, found none with the id {record.id}",
            )
        if record.id == before:
            return Activated(deployment, before, new=False)
        if record.after not in ("", before or "none"):
            return ActivationRejected(
                DEPLOYMENT_CHANGED,
                f"expected {record.after} to be active, found {before or 'none'}; another "
                "deployment was activated in the meantime",
            )
        if record.rollback and record.id in self.activations:
            while self.activations[-1] != record.id:
                self.activations.pop()
        else:
            self.activations.append(record.id)
        self.rolled_back_from = before if record.rollback else None
        self.activated_at_ms[record.id] = record.at_ms
        self.moves += 1
        return Activated(deployment, before, new=True)
