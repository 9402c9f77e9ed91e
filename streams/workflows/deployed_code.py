"""Deployed code as a worker runs it: artifacts on disk, and a host for every deployment.

A worker follows the deployments. Those on which new runs start always have a host, any other as
long as one of its runs makes progress: its artifact is fetched, unpacked, and loaded in a separate
process. If a deployment cannot be loaded, it is retried, and only its own runs wait.

Runs of any deployment may make progress, and every host takes memory. So the number of hosts is
limited, not counting those for new runs. A deployment that needs a host replaces the least recently
needed one that holds no runs, and waits if there is none.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from headwater.processors.deployments import Deployments
from headwater.processors.runs.limits import DEPLOYED_HOSTS_MAX
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.deployments import (
    FAILED,
    INSTALLED,
    DeployedWorkflow,
    DeploymentCreated,
    EnvironmentReported,
)
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable
from headwater.schemas.history import AskSlot, CommandSent, MoveRun, RestartRun, RetryRun, creates
from headwater.streams.clock import now_ms
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.code_folders import CodeFolders
from headwater.streams.workflows.deployment_log import DeploymentLog
from headwater.streams.workflows.environments import EnvironmentFailed
from headwater.streams.workflows.host_process import HostCode
from headwater.streams.workflows.hosts import Hosts
from headwater.streams.workflows.load_answers import LoadAnswers

log = logging.getLogger(__name__)

#: Interval between checks for deployments while no command starts a run.
_FOLLOW_S: Final = 3.0
#: Interval between removals of environments that no deployment has.
_CLEAN_S: Final = 600.0
#: Machines of which the state of an environment is recorded: records are kept, and machines may be
#: containers with new names.
_MACHINES_MAX: Final = 50
_MACHINE: Final = socket.gethostname()
#: How long a host may be idle before it is stopped, unless its deployment is active.
_IDLE_S: Final = 60.0


class DeployedCode:
    """Follows the deployments, and starts and stops their hosts.

    Args:
        deployment_log: Log of deployments and artifacts.
        folders: Folders of their code on this machine.
        follow_s: Interval between checks for deployments.
        idle_s: How long a host may be idle before it is stopped.
        hosts_max: Largest number of hosts, not counting those of deployments for new runs.
        loading: Answers requests to load a deployment.
    """

    def __init__(
        self,
        deployment_log: DeploymentLog,
        folders: CodeFolders,
        *,
        follow_s: float = _FOLLOW_S,
        idle_s: float = _IDLE_S,
        hosts_max: int = DEPLOYED_HOSTS_MAX,
        loading: LoadAnswers | None = None,
    ) -> None:
        self._log = deployment_log
        self._loading = loading
        self._folders = folders
        self._follow_s, self._idle_s = follow_s, idle_s
        #: Concurrency limits of the active deployment's workflows, by name.
        self.limits: dict[str, Concurrency | None] = {}
        #: Those of all deployments, the latest for each name, for runs on inactive deployments.
        self.all_limits: dict[str, Concurrency | None] = {}
        self._known = 0
        #: Removed deployments that have no host and no folder here any more.
        self._cleaned: set[str] = set()
        #: The active deployment that a warning was logged for.
        self._warned_about = ""
        #: When each host was last needed, by deployment id.
        self._needed_s: dict[str, float] = {}
        self._numbers: dict[str, int] = {}
        self._hosts_max = hosts_max
        #: Deployments that may have a host, and those that wait for permission, in order.
        self._admitted: set[str] = set()
        self._waiting: dict[str, asyncio.Event] = {}
        #: Number of requests to install the environment, by deployment, when that failed last.
        self._not_installed: dict[str, int] = {}
        self._in_use: Callable[[], Collection[int]] = tuple
        #: Set when something was activated, and then replaced by another event.
        self._activated = asyncio.Event()
        self._hosts: Hosts
        self._changed: Callable[[], None]

    @property
    def deployments(self) -> Deployments:
        """All deployments that were read so far."""
        return self._log.fold

    async def start(self, hosts: Hosts, changed: Callable[[], None]) -> None:
        """Read what is deployed, waiting for Kafka.

        Args:
            hosts: Hosts of the worker.
            changed: Called when something was deployed or activated.
        """
        self._hosts, self._changed = hosts, changed
        await self._catch_up()

    async def run(self, in_use: Callable[[], Collection[int]]) -> None:
        """Follow the deployments until it is cancelled.

        Args:
            in_use: Returns the numbers of hosts that hold runs.
        """
        self._in_use = in_use
        loop = asyncio.get_running_loop()
        clean_s = loop.time()
        while True:
            await asyncio.sleep(self._follow_s)
            await self._catch_up()
            self._stop_idle(in_use())
            self._admit_waiting()
            if loop.time() >= clean_s:
                clean_s = loop.time() + _CLEAN_S
                await self._remove_unused()
            await self._clean_up(in_use())

    async def _remove_unused(self) -> None:
        """Remove what no deployment has. Runs do not depend on it, so errors are only logged."""
        try:
            await self._folders.remove_unused(self.deployments.by_id.values())
        except OSError as error:
            log.warning("environments that no deployment has cannot be removed: %s", error)

    async def stop(self) -> None:
        """Disconnect, and remove the scratch folders of hosts, which have ended."""
        if self._loading is not None:
            await self._loading.stop()
        await self._log.stop()
        await asyncio.to_thread(self._folders.close)

    # -- following

    async def before_deciding(self, commands: Iterable[CommandSent]) -> None:
        """Wait until all activations before these commands are known, if one may start a run.

        A client that learns that a deployment is active, and then creates an instance, thus gets
        this one or a later one, whichever gateway and worker process the request.
        """
        if any(_may_start_run(command) for command in commands):
            await self._catch_up()

    async def _catch_up(self) -> None:
        retrying = Retrying(log, "new runs wait for deployments to be read")
        deployments = await retrying.until_done(self._log.catch_up)
        active = deployments.active
        if self._loading is not None:
            self._loading.answer(deployments, self._is_loaded)
        if deployments.changes == self._known:
            return
        self._known = deployments.changes
        self._activated.set()
        self._activated = asyncio.Event()
        for deployment in deployments.latest_last():
            self.all_limits |= _limits(deployment)
        if active is not None:
            self.limits.clear()
            self.limits |= _limits(active)
            self._warn_of_overridden_apps(active)
        for name in deployments.in_use:
            self.host_of(name)
        self._changed()

    async def _clean_up(self, in_use: Collection[int]) -> None:
        """Stop the hosts and remove the folders of removed deployments, which have no runs."""
        removed = {name for name in self.deployments.retired if self.deployments.is_removed(name)}
        self._cleaned &= removed
        for name in removed - self._cleaned:
            number = self._numbers.get(name)
            if number in in_use:
                continue
            if number is not None:
                self._stop_host(name)
            try:
                await self._folders.remove(name)
            except OSError as error:
                log.warning("the folder of %s cannot be removed yet: %s", name, error)
            else:
                self._cleaned.add(name)

    def _is_loaded(self, deployment: str) -> bool | None:
        """Whether the host of a deployment runs; None if it has none."""
        number = self._numbers.get(deployment)
        return None if number is None else number not in self._hosts.closed()

    def _warn_of_overridden_apps(self, active: DeploymentCreated) -> None:
        """Log which workflows of apps start no runs because the active deployment has them, too.

        An author who changes the app would otherwise look for the effect in vain.
        """
        if self._warned_about == active.id:
            return
        self._warned_about = active.id
        app_workflows = self._hosts.declared.workflows
        deployed = (workflow.name for workflow in active.workflows if not workflow.latest)
        if both := sorted(name for name in deployed if name in app_workflows):
            log.warning(
                "new runs of %s start on %s, the active deployment, instead of the code of --app; "
                "to run that code, deploy and activate it",
                *(", ".join(both), active.id),
            )

    async def activated(self, moves: int) -> Deployments:
        """Wait until there were more than `moves` activations."""
        while self.deployments.moves <= moves:
            await self._activated.wait()
        return self.deployments

    # -- hosts

    def host_of(self, deployment_id: str) -> int:
        """Return the number of the host of a deployment, starting it if necessary."""
        number = self._numbers.get(deployment_id)
        if number is None:
            number = self._start_host(self.deployments.by_id[deployment_id])
        return number

    def _start_host(self, deployment: DeploymentCreated) -> int:
        names = [workflow.name for workflow in deployment.workflows]
        fetch = partial(self._fetch, deployment)
        number = self._hosts.start_deployment(deployment.id, deployment.app, names, fetch)
        self._numbers[deployment.id] = number
        self._needed_s[deployment.id] = asyncio.get_running_loop().time()
        return number

    async def _fetch(self, deployment: DeploymentCreated) -> HostCode:
        """Return the code of a deployment when it may have a host, and has its environment."""
        name = deployment.id
        while True:
            # A package that is missing stays so: a host would repeat the installation all the time.
            while self._not_installed.get(name) == self.deployments.installs.get(name, 0):
                await self._activated.wait()
            self._not_installed.pop(name, None)
            await self._admission(name)
            requests = self.deployments.installs.get(name, 0)
            try:
                code = await self._folders.code_of(deployment)
            except EnvironmentFailed as error:
                self._not_installed[name] = requests
                # Another deployment may use the capacity meanwhile.
                self._admitted.discard(name)
                self._admit_waiting()
                log.error(  # noqa: TRY400, the messages of the installer are the reason
                    "runs of %s wait: its requirements cannot be installed here; `headwater "
                    "deployments install %s`, or a restart of the worker, tries again: %s",
                    *(name, name, error),
                )
                await self._report(deployment, FAILED, error.message)
            else:
                await self._report(deployment, INSTALLED)
                return code

    async def _report(self, deployment: DeploymentCreated, state: str, reason: str = "") -> None:
        """Report the state of an environment on this machine to operators, if it has changed."""
        machines = self.deployments.environments.get(deployment.id, {})
        last = machines.get(_MACHINE)
        changed = last is None or (last.state, last.reason) != (state, reason)
        if not deployment.environment or not changed:
            return
        if last is None and len(machines) >= _MACHINES_MAX:
            return
        record = EnvironmentReported(
            id=deployment.id, state=state, machine=_MACHINE, reason=reason, at_ms=now_ms()
        )
        try:
            await self._log.write(record)
        except (BrokerUnavailable, NotYetReadable) as error:
            log.warning("the state of an environment cannot be reported: %s", error)

    async def _admission(self, name: str) -> None:
        """Wait until a deployment may have a host."""
        while name not in self._admitted:
            admitted = self._waiting.setdefault(name, asyncio.Event())
            self._admit_waiting()
            if name not in self._admitted:
                log.warning(
                    "runs of %s wait: %d hosts of deployments are running, which is the limit of "
                    "HEADWATER_DEPLOYMENT_HOSTS besides the active one; it is started when one of "
                    "them is idle",
                    *(name, self._hosts_max),
                )
                await admitted.wait()

    def _admit_waiting(self) -> None:
        """Admit deployments that wait for a host, stopping idle hosts if necessary."""
        for name in list(self._waiting):
            if name in self.deployments.in_use or self._has_capacity():
                self._admitted.add(name)
                self._waiting.pop(name).set()

    def _has_capacity(self) -> bool:
        """Whether one more host may be started. Stops the least recently needed idle hosts."""
        hosts_in_use = self._in_use()
        admitted = self._admitted - self.deployments.in_use
        idle = [name for name in admitted if self._numbers[name] not in hosts_in_use]
        idle.sort(key=self._needed_s.__getitem__, reverse=True)
        while len(admitted) >= self._hosts_max and idle:
            name = idle.pop()
            admitted.remove(name)
            self._stop_host(name)
        return len(admitted) < self._hosts_max

    def _stop_idle(self, in_use: Collection[int]) -> None:
        """Stop hosts that have been idle for a while."""
        now_s = asyncio.get_running_loop().time()
        for name, number in list(self._numbers.items()):
            if number in in_use or name in self.deployments.in_use:
                self._needed_s[name] = now_s
            elif now_s - self._needed_s[name] > self._idle_s:
                self._stop_host(name)

    def _stop_host(self, name: str) -> None:
        self._admitted.discard(name)
        self._waiting.pop(name, None)
        self._hosts.stop_deployment(self._numbers.pop(name))


def _limits(deployment: DeploymentCreated) -> dict[str, Concurrency | None]:
    return {workflow.name: _limit(workflow) for workflow in deployment.workflows}


def _limit(workflow: DeployedWorkflow) -> Concurrency | None:
    return None if workflow.limit is None else Concurrency(workflow.limit, workflow.limit_key)


def _may_start_run(sent: CommandSent) -> bool:
    command = sent.command
    return creates(command) or isinstance(command, RestartRun | RetryRun | MoveRun | AskSlot)
