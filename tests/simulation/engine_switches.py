"""Worlds in which operators switch: they activate, share, roll back, move, remove, deploy again.

A removal is done as a gateway does it: it closes the deployment, sends a command through every
partition, waits for their outcomes, and counts the runs in what readers have. It may be left in the
middle, as by a gateway that is killed. The laws: no run is on a removed deployment, and a run is on
the deployment on which it began, unless it was moved. That each run ends as it would otherwise is
checked as in all worlds.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import override

from headwater.processors.deployments import (
    Activated,
    Deployments,
    Retired,
    artifact_of,
)
from headwater.processors.runs.state import Run
from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    REOPENED,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRecord,
    DeploymentRetired,
)
from headwater.schemas.history import (
    HistoryAppended,
    MoveRun,
    RunMoved,
    RunStarted,
    StartRun,
    instance_key,
)
from headwater.streams.authoring.values import encode as json_of
from headwater.streams.kafka.records import partition_of
from tests.simulation.engine_releases import HOSTS, Releases
from tests.simulation.shapes import Violation

if TYPE_CHECKING:
    from tests.simulation.engine_world import World

#: How many switches a world has at most.
SWITCHES: Final = 50
#: How often there is one, while faults strike.
_OFTEN: Final = 0.4
#: Shapes of one workflow whose runs need no events, and do not follow the code.
STARTED: Final = ("line", "hurried", "failing_join", "gathers", "left_behind")
_STARTS_MAX: Final = 8


class Removal(NamedTuple):
    """A removal under way: the offsets of the commands whose outcomes it waits for."""

    name: str
    closing: str
    fence: Mapping[int, int]


class Switches(Releases):
    """What operators do, as far as gateways let them."""

    names = tuple(HOSTS)
    #: Whether a removal waits for its fence; a world without that is expected to fail.
    fenced: bool = True

    def __init__(self, world: "World", seed: int | str, kinds: Mapping[str, str]) -> None:
        self.fold = Deployments()
        self.removal: Removal | None = None
        self.switched = 0
        self._numbers = itertools.count(1)
        self._started = 0
        #: The deployments of each run, by its key and number: the latest is the last.
        self._on: dict[tuple[str, int], list[str | None]] = {}
        super().__init__(world, seed, kinds)
        self.created = {
            record.id: record for record in self.log if isinstance(record, DeploymentCreated)
        }
        for record in self.log:
            self.fold.apply(record)
        for partition in world.partitions:
            partition.reader.laws.append(self.read)

    def read(self, record: HistoryAppended, run: Run) -> None:
        """Check a record that counts."""
        key = instance_key(record.workflow, record.instance_id)
        name = None if run.deployment is None else run.deployment.name
        moves = any(isinstance(event, RunMoved | RunStarted) for event in record.events)
        names = self._on.setdefault((key, run.run_number), [name])
        if names[-1] != name:
            if not moves:
                raise Violation(f"{key}: it was on {names[-1]}, found it on {name}")
            names.append(name)
        if name is not None and not run.ended and self.fold.is_removed(name):
            raise Violation(f"{key}: its deployment {name} is removed")

    @override
    def deployments_of(self, key: str, run: Run) -> set[str]:
        """Code that is at work keeps a run that is moved until it waits."""
        return {name for name in self._on[key, run.run_number] if name is not None}

    # -- switches

    @override
    def act(self) -> None:
        if self.removal is not None:
            self._go_on(self.removal)
        if self.switched < SWITCHES and self.draw.random() < _OFTEN:
            switch: Callable[[], str] = self.draw.choice(
                [self.release, self.share, self.remove, self.deploy_again, self.move, self.start]
            )
            done = switch()
            if done:
                self.switched += switch != self.start
                self.world.seen[switch.__name__] += 1
                self.world.trace.append((switch.__name__, done))

    def _write(self, record: DeploymentRecord) -> object:
        self.log.append(record)
        return self.fold.apply(record)

    def _open(self) -> list[str]:
        return [name for name in self.fold.by_id if name not in self.fold.retired]

    def release(self) -> str:
        name = self.draw.choice(self._open())
        rollback = self.draw.random() < 0.3
        record = DeploymentActivated(id=name, after="", rollback=rollback, by="", at_ms=0)
        outcome = self._write(record)
        return name if isinstance(outcome, Activated) and outcome.new else ""

    def share(self) -> str:
        name, percent = self.draw.choice(self._open()), self.draw.choice([0, 10, 50, 90])
        record = DeploymentActivated(
            id=name, after="", rollback=False, by="", at_ms=0, percent=percent
        )
        outcome = self._write(record)
        done = isinstance(outcome, Activated) and outcome.new
        return f"{name} {percent}" if done else ""

    def deploy_again(self) -> str:
        name = next((name for name in HOSTS if name not in self.fold.by_id), "")
        if name:
            self._write(self.created[name])
        return name

    def move(self) -> str:
        roots = [root for root in self.world.roots if root.shape.name not in self.latest]
        if not roots:
            return ""
        root, name = self.draw.choice(roots), self.draw.choice(self._open())
        self.world.tell(root, MoveRun(name))
        return f"{root.shape.name} to {name}"

    def start(self) -> str:
        """A client starts a run, mostly on a deployment that it names."""
        roots = [root for root in self.world.roots if root.shape.name in STARTED]
        if not roots or self._started == _STARTS_MAX:
            return ""
        self._started += 1
        root, name = self.draw.choice(roots), self.draw.choice([*HOSTS])
        deployment = artifact_of(self.created[name]) if self.draw.random() < 0.8 else None
        params = json_of({"variant": root.variant}, "params")
        instance_id = f"{root.instance_id}-{self._started}"
        self.world.tell(root, StartRun(params, deployment=deployment), instance_id)
        return f"{root.shape.name} on {name}"

    # -- removals

    def remove(self) -> str:
        idle = [name for name in self.fold.by_id if name not in self.fold.in_use]
        if not idle or self.removal is not None:
            return ""
        name = self.draw.choice(idle)
        outcome = self._write(_retired(name, CLOSED, f"c{next(self._numbers)}"))
        if not isinstance(outcome, Retired) or outcome.closing is None:
            return ""
        if self.draw.random() < 0.1:
            return f"{name}, closed and left"
        self.removal = Removal(name, outcome.closing, self._fence())
        return name

    def _fence(self) -> Mapping[int, int]:
        partitions, fence = self.world.partitions, dict[int, int]()
        for number in itertools.count():
            if len(fence) == len(partitions):
                return fence
            at = partition_of(instance_key("fence", str(number)).encode(), len(partitions))
            if at not in fence:
                fence[at] = len(partitions[at].commands)
                self.world.command("fence", str(number), MoveRun("active"))
        raise AssertionError("there is a number for each partition")

    def _go_on(self, removal: Removal) -> None:
        partitions = self.world.partitions
        if self.fenced and not all(
            offset in partitions[at].reader.outcomes for at, offset in removal.fence.items()
        ):
            return
        self.removal = None
        runs = [run for partition in partitions for run in partition.reader.states.values()]
        is_used = any(
            run.deployment is not None and run.deployment.name == removal.name and not run.ended
            for run in runs
        )
        stage = REOPENED if is_used else REMOVED
        self._write(_retired(removal.name, stage, removal.closing))
        self.world.seen[stage] += 1
        self.world.trace.append((stage, removal.name))


def _retired(name: str, stage: str, closing: str) -> DeploymentRetired:
    return DeploymentRetired(id=name, stage=stage, closing=closing, by="", at_ms=0)
