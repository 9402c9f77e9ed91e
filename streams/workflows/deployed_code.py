"""The code that is deployed, as a worker runs it: a host for each deployment that is needed.

A worker follows the deployments. The host of the active one is there, and that of any other as long
as a run of it moves: its artifact is fetched, unpacked, and loaded in a process of its own. A
deployment that cannot be loaded here is tried again, and its runs wait; no other run does.

A run of any deployment may move, and each host takes memory: so there are only so many beside that
of the active one. Who needs one more takes the place of the one that was needed least recently of
those that have nothing in hand, and waits for it if all have.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from headwater.processors.deployments import Deployments
from headwater.processors.runs.limits import DEPLOYED_HOSTS_MAX
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.deployments import DeployedWorkflow, DeploymentCreated
from headwater.schemas.history import (
    AskSlot,
    CommandSent,
    RestartRun,
    RetryRun,
    creates,
)
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.artifact_folders import ArtifactFolders
from headwater.streams.workflows.deployment_log import DeploymentLog
from headwater.streams.workflows.hosts import Hosts

log = logging.getLogger(__name__)

#: How often deployments are looked for where no command begins a run.
_FOLLOW_S: Final = 3.0
#: How long a host rests before it is ended, unless its deployment is the active one.
_IDLE_S: Final = 60.0


class DeployedCode:
    """Follows the deployments, and starts and ends their hosts.

    Shape:  folder is where artifacts are unpacked; hosts_max of them are there at once, without
            that of the active deployment.
    """

    def __init__(
        self,
        log_of: DeploymentLog,
        folder: Path,
        *,
        follow_s: float = _FOLLOW_S,
        idle_s: float = _IDLE_S,
        hosts_max: int = DEPLOYED_HOSTS_MAX,
    ) -> None:
        self._log = log_of
        self._folders = ArtifactFolders(log_of, folder)
        self._follow_s, self._idle_s = follow_s, idle_s
        #: The limits of concurrency of the active deployment's workflows, by name.
        self.limits: dict[str, Concurrency | None] = {}
        #: Those of all that is deployed, the latest of each name: for runs that others have alone.
        self.limits_of_all: dict[str, Concurrency | None] = {}
        self._known = (0, 0)
        #: The active deployment that the log has told of.
        self._told_of = ""
        #: When each host was last needed, by the id of its deployment.
        self._needed_s: dict[str, float] = {}
        self._numbers: dict[str, int] = {}
        self._hosts_max = hosts_max
        #: Those that have a place, and those that wait for one, in their order.
        self._placed: set[str] = set()
        self._waiting: dict[str, asyncio.Event] = {}
        self._in_use: Callable[[], Collection[int]] = tuple
        #: Set when something was activated; another stands in its place then.
        self._activated = asyncio.Event()
        self._hosts: Hosts
        self._changed: Callable[[], None]

    @property
    def deployments(self) -> Deployments:
        """All deployments, as far as they were read."""
        return self._log.fold

    async def start(self, hosts: Hosts, changed: Callable[[], None]) -> None:
        """Learns what is deployed; waits for Kafka.

        Shape:  `changed` is called when something was deployed or activated.
        """
        self._hosts, self._changed = hosts, changed
        await self._catch_up()

    async def run(self, in_use: Callable[[], Collection[int]]) -> None:
        """Follows the deployments until it is cancelled.

        Shape:  `in_use` gives the numbers of hosts that have something in hand.
        """
        self._in_use = in_use
        while True:
            await asyncio.sleep(self._follow_s)
            await self._catch_up()
            self._end_idle(in_use())
            self._give_places()

    async def stop(self) -> None:
        """Disconnects."""
        await self._log.stop()

    # -- following

    async def before(self, commands: Iterable[CommandSent]) -> None:
        """Waits until all is known that was activated before commands came that begin runs.

        So whoever hears that a deployment is active, and then creates an instance, gets this one or
        a later one, whichever gateway and worker they reach.
        """
        if any(_needs(each) for each in commands):
            await self._catch_up()

    async def _catch_up(self) -> None:
        retrying = Retrying(log, "new runs have to wait for what is deployed")
        deployments = await retrying.until_done(self._log.catch_up)
        active = deployments.active
        known = len(deployments.by_id), deployments.moves
        if known == self._known:
            return
        self._known = known
        self._activated.set()
        self._activated = asyncio.Event()
        for each in deployments.latest_last():
            self.limits_of_all |= _limits(each)
        if active is not None:
            self.limits.clear()
            self.limits |= _limits(active)
            self.host_of(active.id)
            self._tell_of_apps_set_aside(active)
        self._changed()

    def _tell_of_apps_set_aside(self, active: DeploymentCreated) -> None:
        """Says which workflows of the apps begin no runs, as the active deployment has them, too.

        Whoever changes the app would otherwise look in vain for what that has changed.
        """
        if self._told_of == active.id:
            return
        self._told_of = active.id
        ours = self._hosts.declared.workflows
        deployed = (each.name for each in active.workflows if not each.latest)
        if both := sorted(name for name in deployed if name in ours):
            log.warning(
                "new runs of %s begin on %s, the active deployment, and not on the code of --app; "
                "to run that, deploy it and activate it",
                *(", ".join(both), active.id),
            )

    async def activated(self, moves: int) -> Deployments:
        """Waits until there were more activations than so many."""
        while self.deployments.moves <= moves:
            await self._activated.wait()
        return self.deployments

    # -- hosts

    def host_of(self, deployment_id: str) -> int:
        """The number of the host of a deployment, which is started if there is none."""
        number = self._numbers.get(deployment_id)
        if number is None:
            number = self._begin(self.deployments.by_id[deployment_id])
        return number

    def _begin(self, deployment: DeploymentCreated) -> int:
        names = [each.name for each in deployment.workflows]
        fetch = partial(self._fetch, deployment)
        number = self._hosts.begin(deployment.id, deployment.app, names, fetch)
        self._numbers[deployment.id] = number
        self._needed_s[deployment.id] = asyncio.get_running_loop().time()
        return number

    async def _fetch(self, deployment: DeploymentCreated) -> Path:
        """The folder of a deployment, as soon as its host has a place."""
        name = deployment.id
        while name not in self._placed:
            waits = self._waiting.setdefault(name, asyncio.Event())
            self._give_places()
            if name not in self._placed:
                log.warning(
                    "runs of %s wait: %d hosts of deployments are at work, which is all that "
                    "HEADWATER_DEPLOYMENT_HOSTS allows beside the active one; it has its turn when "
                    "one of them has nothing to do",
                    *(name, self._hosts_max),
                )
                await waits.wait()
        return await self._folders.of(deployment)

    def _give_places(self) -> None:
        """Gives places to those that wait, and takes them from those that have nothing to do."""
        active = self.deployments.active
        for name in list(self._waiting):
            if (active is not None and name == active.id) or self._has_room():
                self._placed.add(name)
                self._waiting.pop(name).set()

    def _has_room(self) -> bool:
        """Whether one more has a place: the hosts that were needed least recently make room."""
        active, in_use = self.deployments.active, self._in_use()
        taken = {name for name in self._placed if active is None or name != active.id}
        idle = [name for name in taken if self._numbers[name] not in in_use]
        idle.sort(key=self._needed_s.__getitem__, reverse=True)
        while len(taken) >= self._hosts_max and idle:
            name = idle.pop()
            taken.remove(name)
            self._end(name)
        return len(taken) < self._hosts_max

    def _end_idle(self, in_use: Collection[int]) -> None:
        """Ends hosts that nobody has needed for a while."""
        now_s, active = asyncio.get_running_loop().time(), self.deployments.active
        for name, number in list(self._numbers.items()):
            if number in in_use or (active is not None and name == active.id):
                self._needed_s[name] = now_s
            elif now_s - self._needed_s[name] > self._idle_s:
                self._end(name)

    def _end(self, name: str) -> None:
        self._placed.discard(name)
        self._waiting.pop(name, None)
        self._hosts.end(self._numbers.pop(name))


def _limits(deployment: DeploymentCreated) -> dict[str, Concurrency | None]:
    return {each.name: _limit(each) for each in deployment.workflows}


def _limit(workflow: DeployedWorkflow) -> Concurrency | None:
    return None if workflow.limit is None else Concurrency(workflow.limit, workflow.limit_key)


def _needs(sent: CommandSent) -> bool:
    command = sent.command
    return creates(command) or isinstance(command, RestartRun | RetryRun | AskSlot)
