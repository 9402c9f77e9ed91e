"""The deployments, and which of them is active: a fold of their topic, in its order.

The order of the log decides, as for graphs: of two concurrent activations the later one wins, and a
record that was appended twice counts once.

Records of a removed deployment are deleted from the log, except for its activations and its
removal. So an activation of an unknown deployment counts: the deployment existed, and the log has
its removal later.
"""

import hashlib
from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    REOPENED,
    REQUESTED,
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRecord,
    DeploymentRetired,
    EnvironmentReported,
    LoadRequested,
)
from headwater.schemas.failures import (
    DEPLOYMENT_ACTIVE,
    DEPLOYMENT_CHANGED,
    DEPLOYMENT_REMOVED,
    NO_ACTIVE_DEPLOYMENT,
    NOTHING_TO_ROLL_BACK,
    SHARE_TAKEN,
)
from headwater.schemas.history import Artifact, instance_key

_ID_DIGITS: Final = 20
#: Represents the active deployment where there is none.
NONE: Final = "none"
#: Percentage of new runs of a deployment that gets all of them.
ALL: Final = 100
_HASH_BYTES: Final = 8


class Created(NamedTuple):
    """Outcome of a creation; `new` unless the deployment existed before."""

    deployment: DeploymentCreated
    new: bool


class Activated(NamedTuple):
    """Outcome of an activation. `before` is the previously active deployment, if any."""

    id: str
    before: str | None
    new: bool


class Retired(NamedTuple):
    """Outcome of a record about a removal.

    Attributes:
        closing: The closing that is in effect; None if the deployment is open or removed.
        removed: Whether it is removed.
    """

    closing: str | None
    removed: bool


class ActivationRejected(NamedTuple):
    """Why an activation or a closing was rejected."""

    code: str
    message: str


class Reported(NamedTuple):
    """Outcome of a record about an environment."""

    id: str


class LoadNoted(NamedTuple):
    """Outcome of a request to load a deployment, and of a worker's answer."""

    request: str


DeploymentOutcome: TypeAlias = (
    Created | Activated | Retired | Reported | ActivationRejected | LoadNoted
)

#: Requests to load deployments of which the answers are kept: more than are made at a time.
_REQUESTS_KEPT: Final = 16


class Share(NamedTuple):
    """The deployment that gets a part of the new runs, and the percentage of these."""

    deployment: str
    percent: int


def deployment_id(app: str, digest: str) -> str:
    """Return the id of a deployment: the same content is the same deployment."""
    content = f"{app}\n{digest}".encode()
    return f"dep_{hashlib.sha256(content).hexdigest()[:_ID_DIGITS]}"


def artifact_of(deployment: DeploymentCreated) -> Artifact:
    """Return the reference to a deployment in the histories of runs."""
    return Artifact(deployment.id, deployment.app, deployment.digest)


def is_in_share(workflow: str, instance_id: str, percent: int) -> bool:
    """Return whether an instance is in a share of new runs.

    The first 8 bytes of the SHA-256 of `workflow/instance_id`, as a big-endian integer modulo 100,
    are compared with the percentage. So an instance in a share is in every greater one.
    """
    digest = hashlib.sha256(instance_key(workflow, instance_id).encode()).digest()
    return int.from_bytes(digest[:_HASH_BYTES]) % ALL < percent


class Deployments:
    """All deployments, in the order of creation.

    Attributes:
        activations: Ids of activated deployments without those that were rolled back or removed;
            the last one is active.
        share: The deployment that gets a part of the new runs besides the active one.
        retired: The latest record of each deployment that is closed to new runs, or removed.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, DeploymentCreated] = {}
        self.activations: list[str] = []
        self.share: Share | None = None
        self.retired: dict[str, DeploymentRetired] = {}
        #: The state that the latest activation replaced, if that was a rollback.
        self.rolled_back_from: str | None = None
        #: Latest activation of every deployment that was ever active, in Unix milliseconds.
        self.activated_at_ms: dict[str, int] = {}
        #: The latest state of the environment of each deployment, by machine.
        self.environments: dict[str, dict[str, EnvironmentReported]] = {}
        #: How often operators requested to install an environment again.
        self.installs: dict[str, int] = {}
        #: Number of activations, including rollbacks, without changes of shares.
        self.moves = 0
        #: Number of records that changed something.
        self.changes = 0
        #: Schedules and graphs of removed deployments that were active.
        self._former_schedules: set[str] = set()
        self._former_graphs: set[str] = set()
        #: The latest requests to load a deployment, and the answers: errors by worker, None while
        #: it installs packages.
        self.load_requests: dict[str, LoadRequested] = {}
        self.loads: dict[str, dict[str, str | None]] = {}

    @property
    def active(self) -> DeploymentCreated | None:
        """The deployment that new runs start on; None before the first activation.

        With a share, it is the one that gets all other new runs.
        """
        return self.by_id.get(self.activations[-1]) if self.activations else None

    @property
    def in_use(self) -> frozenset[str]:
        """Ids of the deployments that new runs start on."""
        shares = () if self.share is None else (self.share.deployment,)
        return frozenset((*self.activations[-1:], *shares))

    @property
    def state(self) -> str:
        """What new runs start on, as a condition: the id of the active deployment, or "none".

        With a share, also that, as in `dep_1+dep_2@10`.
        """
        active = self.activations[-1] if self.activations else NONE
        share = self.share
        return active if share is None else f"{active}+{share.deployment}@{share.percent}"

    def percent_of(self, deployment: str) -> int:
        """Return the percentage of new runs that start on a deployment."""
        share = self.share
        if share is not None and share.deployment == deployment:
            return share.percent
        rest = ALL if share is None else ALL - share.percent
        return rest if self.activations[-1:] == [deployment] else 0

    def is_removed(self, deployment: str) -> bool:
        """Return whether a deployment existed and was removed."""
        retired = self.retired.get(deployment)
        return retired is not None and retired.stage == REMOVED

    def workflow(self, deployment: str, name: str) -> DeployedWorkflow | None:
        """Return a workflow of a deployment, or None."""
        known = self.by_id.get(deployment)
        if known is None:
            return None
        return next((workflow for workflow in known.workflows if workflow.name == name), None)

    def for_new_run(self, workflow: str, instance_id: str) -> Iterator[DeploymentCreated]:
        """Yield the deployments that a new run may start on, the preferred one first."""
        share = self.share
        if share is not None and is_in_share(workflow, instance_id, share.percent):
            deployed = self.workflow(share.deployment, workflow)
            # Runs that follow the code are on no deployment, so they use the active one.
            if deployed is not None and not deployed.latest:
                yield self.by_id[share.deployment]
        if self.active is not None:
            yield self.active

    def newest_with(self, workflow: str) -> str | None:
        """Return the id of the latest deployment that has a workflow, or None."""
        newest_first = (id_ for id_ in reversed(self.by_id) if id_ not in self.retired)
        return next((id_ for id_ in newest_first if self.workflow(id_, workflow)), None)

    def schedules(self) -> dict[str, DeployedSchedule | None]:
        """Return the schedules of the active deployment, and None for those of earlier ones."""
        names = {
            *self._former_schedules,
            *(schedule.name for former in self._ever_active() for schedule in former.schedules),
        }
        current = () if self.active is None else self.active.schedules
        return dict.fromkeys(sorted(names)) | {schedule.name: schedule for schedule in current}

    def graphs(self) -> dict[str, DeployedWorkflow | None]:
        """Return the graphs of the active deployment, and None for those of earlier ones."""
        names = {
            *self._former_graphs,
            *(graph for former in self._ever_active() for graph in graphs_of(former)),
        }
        current = () if self.active is None else self.active.workflows
        return dict.fromkeys(sorted(names)) | {
            workflow.name: workflow for workflow in current if workflow.document
        }

    def _ever_active(self) -> Iterator[DeploymentCreated]:
        return (self.by_id[id_] for id_ in self.activated_at_ms if id_ in self.by_id)

    def latest_last(self) -> Iterator[DeploymentCreated]:
        """Yield all deployments in the order of creation, then the activated ones in order."""
        yield from self.by_id.values()
        yield from (self.by_id[id_] for id_ in self.activations if id_ in self.by_id)

    def rolled_back_to(
        self, deployment: str | None = None
    ) -> DeploymentCreated | ActivationRejected:
        """Return what a rollback activates: the previous deployment, or the named earlier one.

        While another deployment has a share, it is the active one: the share ends.
        """
        if deployment is None and self.share is not None and self.active is not None:
            return self.active
        before = [id_ for id_ in self.activations[:-1] if id_ not in self.retired]
        if not before or (deployment is not None and deployment not in before):
            target = deployment or "a deployment"
            return ActivationRejected(
                NOTHING_TO_ROLL_BACK,
                f"expected {target} that was active before the present one, found "
                f"{', '.join(reversed(before)) or 'none'}; activate takes any deployment",
            )
        return self.by_id[deployment or before[-1]]

    # -- applying records

    def apply(self, record: DeploymentRecord) -> DeploymentOutcome:
        """Apply a record and return its outcome."""
        match record:
            case DeploymentCreated():
                return self._create(record)
            case DeploymentActivated():
                return self._activate(record)
            case DeploymentRetired():
                return self._retire(record)
            case EnvironmentReported():
                return self._report(record)
            case LoadRequested() | DeploymentLoaded():
                return self._note_load(record)

    def _report(self, record: EnvironmentReported) -> Reported:
        if record.id in self.by_id:
            if record.state == REQUESTED:
                self.installs[record.id] = self.installs.get(record.id, 0) + 1
                self.changes += 1
            else:
                self.environments.setdefault(record.id, {})[record.machine] = record
        return Reported(record.id)

    def _create(self, record: DeploymentCreated) -> Created:
        if self.is_removed(record.id):
            del self.retired[record.id]
        known = self.by_id.setdefault(record.id, record)
        new = known is record
        if new:
            self.changes += 1
            # Deployed again after a removal, it was not active yet.
            self.activated_at_ms.pop(record.id, None)
        return Created(known, new)

    def _note_load(self, record: LoadRequested | DeploymentLoaded) -> LoadNoted:
        if isinstance(record, DeploymentLoaded):
            if record.request in self.loads:
                error = None if record.installing else record.error
                self.loads[record.request][record.worker] = error
            return LoadNoted(record.request)
        self.load_requests[record.request] = record
        self.loads[record.request] = {}
        if len(self.loads) > _REQUESTS_KEPT:
            oldest = next(iter(self.loads))
            del self.loads[oldest], self.load_requests[oldest]
        return LoadNoted(record.request)

    def _activate(self, record: DeploymentActivated) -> Activated | ActivationRejected:
        before = self.activations[-1] if self.activations else None
        if record.id in self.retired:
            return ActivationRejected(DEPLOYMENT_REMOVED, removal_message(record.id))
        if record.percent < ALL:
            return self._set_share(record, before)
        if record.id == before and self.share is None:
            return Activated(record.id, before, new=False)
        if not self._is_expected(record, before):
            return self._changed(record)
        self.rolled_back_from = self.state if record.rollback else None
        self.share = None
        self.changes += 1
        if record.id == before:
            return Activated(record.id, before, new=True)
        if record.rollback and record.id in self.activations:
            while self.activations[-1] != record.id:
                self.activations.pop()
        else:
            self.activations.append(record.id)
        self.activated_at_ms[record.id] = record.at_ms
        self.moves += 1
        return Activated(record.id, before, new=True)

    def _set_share(
        self, record: DeploymentActivated, before: str | None
    ) -> Activated | ActivationRejected:
        if before is None:
            return ActivationRejected(
                NO_ACTIVE_DEPLOYMENT,
                "expected an active deployment, which gets the other new runs, found none; "
                "activate one without a percentage first",
            )
        if record.id == before:
            return ActivationRejected(
                DEPLOYMENT_ACTIVE,
                f"expected a deployment besides the active one, found {before}, which is active",
            )
        if self.share is not None and self.share.deployment != record.id:
            return ActivationRejected(
                SHARE_TAKEN,
                f"expected no share of another deployment, found {self.share.percent} % of "
                f"{self.share.deployment}; set it to 0, or activate that deployment",
            )
        if not self._is_expected(record, before):
            return self._changed(record)
        share = Share(record.id, record.percent) if record.percent else None
        new = share != self.share
        self.share = share
        self.rolled_back_from = None
        self.changes += new
        return Activated(record.id, before, new=new)

    def _is_expected(self, record: DeploymentActivated, before: str | None) -> bool:
        # A rollback has to name the share, too: repeated without one, it would go further back.
        names = {"", self.state} if record.rollback else {"", self.state, before or NONE}
        return record.after in names

    def _changed(self, record: DeploymentActivated) -> ActivationRejected:
        return ActivationRejected(
            DEPLOYMENT_CHANGED,
            f"expected {record.after} to be active, found {self.state}; another deployment was "
            "activated in the meantime",
        )

    def _retire(self, record: DeploymentRetired) -> Retired | ActivationRejected:
        current = self.retired.get(record.id)
        closing = None if current is None or current.stage == REMOVED else current.closing
        if record.stage == CLOSED:
            if record.id in self.in_use:
                return ActivationRejected(DEPLOYMENT_ACTIVE, active_message(record.id))
            if current is None or (current.temporary and closing and not record.temporary):
                self.retired[record.id] = record
                self.changes += 1
        elif record.closing == closing:
            self.changes += 1
            if record.stage == REOPENED:
                del self.retired[record.id]
            else:
                self._remove(record)
        current = self.retired.get(record.id)
        if current is None:
            return Retired(None, removed=False)
        removed = current.stage == REMOVED
        return Retired(None if removed else current.closing, removed)

    def _remove(self, record: DeploymentRetired) -> None:
        self.retired[record.id] = record
        self.by_id.pop(record.id, None)
        self.environments.pop(record.id, None)
        self.installs.pop(record.id, None)
        self.activated_at_ms.pop(record.id, None)
        kept = (id_ for id_ in self.activations if id_ != record.id)
        self.activations = [id_ for id_, _ in groupby(kept)]
        self._former_schedules.update(record.schedules)
        self._former_graphs.update(record.graphs)


def graphs_of(deployment: DeploymentCreated) -> list[str]:
    """Return the names of the graphs of a deployment."""
    return [workflow.name for workflow in deployment.workflows if workflow.document]


def removal_message(deployment: str) -> str:
    """Return the message about a deployment that gets no new runs any more."""
    return (
        f"expected a deployment that exists, found {deployment}, which was removed or is being "
        "removed; to use it again, deploy the same artifact again"
    )


def active_message(deployment: str) -> str:
    """Return the message about a deployment that cannot be removed because it gets new runs."""
    return (
        f"expected a deployment without new runs, found {deployment}, which is active or has a "
        "share; activate another one first, or set the share to 0"
    )
