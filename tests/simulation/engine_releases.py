"""Worlds in which code is deployed: what is active changes, and hosts of deployments come and go.

All deployments have the same code, so runs end as they would without them. The apps lack some of
the workflows, whose runs have no other code then; and some follow the code. The laws: a run is
given to the host of its deployment alone, and whoever ends a host that nobody uses ends nothing
else.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final
from zlib import crc32

from headwater.processors.code.engine import ReplayEngine
from headwater.processors.code.host_messages import Activate
from headwater.processors.deployments import Deployments
from headwater.schemas.deployments import (
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRecord,
)
from headwater.schemas.history import instance_key
from tests.simulation.engine_gate import check_gate
from tests.simulation.shapes import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.processors.runs.state import Run
    from tests.simulation.engine_process import Process, SimulatedHost
    from tests.simulation.engine_world import World

#: The deployments, each with the number of its host; those of apps come before.
HOSTS: Final = {"dep_2": 2, "dep_3": 3, "dep_4": 4}
_EVER: Final = 0.01


class Releases:
    """What is deployed in a world, in the order of its log."""

    #: The deployments of these worlds.
    names: tuple[str, ...] = ("dep_2", "dep_3")

    def __init__(self, world: "World", seed: int | str, kinds: "Mapping[str, str]") -> None:
        self.world = world
        self.draw = Random(f"releases of {seed}")
        code = [name for name, kind in kinds.items() if kind == ReplayEngine.kind]
        #: Of each workflow whether its runs follow the code, and whether apps have it.
        self.latest = {name for name in code if crc32(name.encode()) % 3 == 0}
        self.lacking = {name for name in code if crc32(name.encode()) % 2 == 0}
        self.log: list[DeploymentRecord] = [
            _created(name, code, self.latest) for name in self.names
        ]
        self.activate()

    def activate(self) -> str:
        name = self.draw.choice([*self.names])
        self.log.append(
            DeploymentActivated(id=name, after="", rollback=False, by="", at_ms=0),
        )
        return name

    def deployments_of(self, _key: str, run: "Run") -> set[str]:
        """The deployments whose code may have a pinned run."""
        assert run.deployment is not None
        return {run.deployment.name}

    def act(self) -> None:
        """Sometimes another becomes active."""
        if self.draw.random() < _EVER:
            self.world.seen["released"] += 1
            check_gate(self.world)
            self.world.trace.append(("activates", self.activate()))


def _created(name: str, code: list[str], latest: set[str]) -> DeploymentCreated:
    workflows = tuple(
        DeployedWorkflow(name=item, kind=ReplayEngine.kind, latest=item in latest) for item in code
    )
    return DeploymentCreated(
        id=name, app="app", digest="00", size=1, offset=0, workflows=workflows, by="", at_ms=0
    )


class Deployed:
    """What a process knows of the deployments, and their hosts, as far as there are any."""

    def __init__(self, process: "Process", releases: Releases | None) -> None:
        self.process, self.releases = process, releases
        self.deployments = Deployments()
        self.hosts: dict[int, SimulatedHost] = {}
        self.wanted: set[int] = set()
        self._read = 0
        self.catch_up()

    def of_apps(self, kinds: "Mapping[str, str]") -> dict[str, str]:
        lacking = self.releases.lacking if self.releases else ()
        return {name: kind for name, kind in kinds.items() if name not in lacking}

    def number(self, deployment: str) -> int:
        """The number of a host, which begins some time later if it is not there."""
        self.wanted.add(HOSTS[deployment])
        return HOSTS[deployment]

    @property
    def closed(self) -> set[int]:
        return self.wanted - self.hosts.keys()

    def is_behind(self) -> bool:
        return self.releases is not None and self._read < len(self.releases.log)

    def catch_up(self) -> bool:
        """Learns what was released; says whether anything was."""
        new = self.releases.log[self._read :] if self.releases else []
        for item in new:
            self.deployments.apply(item)
        self._read += len(new)
        return bool(new)

    def possible(self) -> list[tuple[str, Callable[[], object]]]:
        """What can happen."""
        process = self.process
        result: list[tuple[str, Callable[[], object]]] = [
            (f"boots {number}", partial(process.boot, number)) for number in sorted(self.closed)
        ]
        if self.is_behind():
            result.append(("follows", process.follow))
        active = self.deployments.active
        if active is not None and self.hosts and process.world.faulty:
            idle = self.hosts.keys() - process.owner.hosts_in_use() - {HOSTS[active.id]}
            result += [(f"ends {number}", partial(self._end, number)) for number in sorted(idle)]
        return result

    def _end(self, number: int) -> str:
        """Ends a host that nobody uses."""
        self.wanted.discard(number)
        self.hosts.pop(number).host.stop()
        self.process.settle()
        self.process.world.seen["ended host"] += 1
        return str(number)

    def check_told(self, host: "SimulatedHost", message: Activate, run: "Run | None") -> None:
        """A run is given to the host that has its code."""
        if self.releases is None or run is None or run.run_number != message.run_number:
            return
        key = instance_key(message.workflow, message.instance_id)
        if run.deployment is not None:
            allowed = {HOSTS[name] for name in self.releases.deployments_of(key, run)}
        elif message.workflow in self.releases.lacking:
            allowed = set(HOSTS.values())
        else:
            allowed = {0, 1}
        if host.number not in allowed:
            raise Violation(f"{key}: expected a host of {allowed}, found {host.number}")
        follows = message.workflow in self.releases.latest
        if (run.deployment is None) != follows:
            raise Violation(f"{key}: it follows the code: {follows}, found {run.deployment}")
