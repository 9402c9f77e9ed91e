"""The deployments, and which of them is active: the fold of their topic, in its order.

The order of the log decides, as for graphs: two who activate at once agree on who was last, and a
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
)
from headwater.schemas.failures import (
    DEPLOYMENT_CHANGED,
    DEPLOYMENT_NOT_FOUND,
    NOTHING_TO_ROLL_BACK,
)
from headwater.schemas.history import Artifact

_ID_DIGITS: Final = 20


class Created(NamedTuple):
    """What was deployed is there; new if it was not before."""

    deployment: DeploymentCreated
    new: bool


class Activated(NamedTuple):
    """The deployment is the active one; new if it was not before. Before is the one until then."""

    deployment: DeploymentCreated
    before: str | None
    new: bool


class Refused(NamedTuple):
    """Why an activation counts for nothing."""

    code: str
    message: str


Outcome: TypeAlias = Created | Activated | Refused


def deployment_id(app: str, digest: str) -> str:
    """The id of a deployment: what is deployed again is the same deployment."""
    content = f"{app}\n{digest}".encode()
    return f"dep_{hashlib.sha256(content).hexdigest()[:_ID_DIGITS]}"


def artifact_of(deployment: DeploymentCreated) -> Artifact:
    """How the histories of runs name a deployment."""
    return Artifact(deployment.id, deployment.app, deployment.digest)


class Deployments:
    """All deployments.

    Shape:  in the order in which they were deployed; `activations` leads to the active one, the
            latest last, without what was rolled back.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, DeploymentCreated] = {}
        self.activations: list[str] = []
        #: What was active before the latest activation, if that was a rollback.
        self.rolled_back_from: str | None = None
        #: When each that was ever active was activated last, Unix milliseconds.
        self.activated_at_ms: dict[str, int] = {}
        #: How many activations there were, rollbacks among them.
        self.moves = 0

    @property
    def active(self) -> DeploymentCreated | None:
        """What new runs begin on; None before the first activation."""
        return self.by_id[self.activations[-1]] if self.activations else None

    def workflow(self, deployment: str, name: str) -> DeployedWorkflow | None:
        """A workflow of a deployment, or None."""
        found = self.by_id.get(deployment)
        return (
            next((each for each in found.workflows if each.name == name), None) if found else None
        )

    def newest_with(self, workflow: str) -> str | None:
        """The id of the deployment that was deployed last of those that have a workflow."""
        newest_first = reversed(self.by_id)
        return next((each for each in newest_first if self.workflow(each, workflow)), None)

    def schedules(self) -> dict[str, DeployedSchedule | None]:
        """The schedules of the active deployment; None for those that others had before it."""
        before = (self.by_id[name] for name in self.activated_at_ms)
        found: dict[str, DeployedSchedule | None] = {
            each.name: None for one in before for each in one.schedules
        }
        active = () if self.active is None else self.active.schedules
        return found | {each.name: each for each in active}

    def graphs(self) -> dict[str, DeployedWorkflow | None]:
        """The graphs of the active deployment; None for those that others had before it."""
        before = (self.by_id[name] for name in self.activated_at_ms)
        found: dict[str, DeployedWorkflow | None] = {
            each.name: None for one in before for each in one.workflows if each.document
        }
        active = () if self.active is None else self.active.workflows
        return found | {each.name: each for each in active if each.document}

    def latest_last(self) -> Iterator[DeploymentCreated]:
        """All, as they were deployed, and then those that lead to the active one once more."""
        yield from self.by_id.values()
        yield from map(self.by_id.__getitem__, self.activations)

    def rolled_back_to(self, deployment: str | None = None) -> DeploymentCreated | Refused:
        """What a rollback activates: the one before the active one, or one before that by name."""
        before = self.activations[:-1]
        if not before or (deployment is not None and deployment not in before):
            wanted = deployment or "a deployment"
            return Refused(
                NOTHING_TO_ROLL_BACK,
                f"expected {wanted} that was active before the present one, found "
                f"{', '.join(reversed(before)) or 'none'}; activate takes any deployment",
            )
        return self.by_id[deployment or before[-1]]

    def apply(self, record: DeploymentCreated | DeploymentActivated) -> Outcome:
        """Applies a record; says what it came to."""
        if isinstance(record, DeploymentCreated):
            known = self.by_id.setdefault(record.id, record)
            return Created(known, known is record)
        return self._activate(record)

    def _activate(self, record: DeploymentActivated) -> Activated | Refused:
        before = self.activations[-1] if self.activations else None
        found = self.by_id.get(record.id)
        if found is None:
            return Refused(
                DEPLOYMENT_NOT_FOUND, f"expected a deployment, found none with the id {record.id}"
            )
        if record.id == before:
            return Activated(found, before, new=False)
        if record.after not in ("", before or "none"):
            return Refused(
                DEPLOYMENT_CHANGED,
                f"expected {record.after} to be active, found {before or 'none'}; look at what was "
                "activated meanwhile",
            )
        if record.rollback and record.id in self.activations:
            while self.activations[-1] != record.id:
                self.activations.pop()
        else:
            self.activations.append(record.id)
        self.rolled_back_from = before if record.rollback else None
        self.activated_at_ms[record.id] = record.at_ms
        self.moves += 1
        return Activated(found, before, new=True)
