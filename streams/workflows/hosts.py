"""The code hosts of a worker, and their reloading in development.

Hosts of deployments are started and stopped on demand.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from itertools import chain, islice
from pathlib import Path
from typing import Final

from headwater.monitoring.monitor import OK
from headwater.processors.code.host_messages import Activate
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.code_host.apps import Declarations, merge_declarations
from headwater.streams.code_host.builtin_app import BUILTIN_APP
from headwater.streams.engine.driver import Driver
from headwater.streams.workflows.host_process import HostCode, HostOptions, HostProcess
from headwater.streams.workflows.host_supervisor import HostSupervisor
from headwater.streams.workflows.replay_process import ReplayLimits, replay_runs

log = logging.getLogger(__name__)

#: Messages of hosts that may wait for a turn.
_MESSAGES_MAX: Final = 50_000
#: Longest time that a rebalance waits for code that is executing.
_CAUGHT_UP_S: Final = 2.0


class Hosts:
    """The hosts of a worker, by number; the built-in app's is 0.

    Each is started, monitored and restarted separately. Declarations of apps are those at the start
    of the worker. A deployment has the same number whenever it has a host.
    """

    def __init__(
        self,
        apps: Sequence[str],
        driver: Driver,
        options: HostOptions = HostOptions(),  # noqa: B008 (a constant)
        builtin: HostOptions = HostOptions(),  # noqa: B008 (a constant)
    ) -> None:
        """Create the hosts of some apps and of the built-in app.

        Args:
            apps: Names of the apps.
            driver: Receives the messages of hosts.
            options: Options of the hosts of apps.
            builtin: Options of the built-in app's host.
        """
        self.options = options
        self._driver = driver
        self._builtin = builtin
        self._apps = [
            HostSupervisor(number, app, driver, options) for number, app in enumerate(apps, 1)
        ]
        self._all: list[HostSupervisor] = list(self._apps)
        self._deployed: dict[int, HostSupervisor] = {}
        self._numbers_of_deployments: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._started = asyncio.Event()
        self._paused = False
        self._without_code: set[str] = set()
        #: Workflows of all apps, and all schedules, including built-in ones.
        self.declared = Declarations()

    async def start(self) -> None:
        """Start all hosts. The built-in app is last, because it needs the others' schedules.

        Raises:
            AppNotLoaded: An app cannot be imported, or two apps declare the same name.
            HostKilled: A host was killed repeatedly.
        """
        try:
            await self._start_apps()
            apps = self.declared_by_app()
            declared = merge_declarations(apps)
            names = [schedule.schedule for schedule in declared.schedules]
            builtin = HostSupervisor(0, BUILTIN_APP, self._driver, self._builtin, names)
            self._all.append(builtin)
            await builtin.start()
            everything = merge_declarations({**apps, BUILTIN_APP: builtin.declared})
            self.declared = Declarations(
                declared.workflows,
                everything.schedules,
                graphs=declared.graphs,
                concurrency=declared.concurrency,
                publishes=declared.publishes,
            )
        except BaseException:
            await self.stop()
            raise
        self._started.set()

    async def _start_apps(self) -> None:
        try:
            async with asyncio.TaskGroup() as starting:
                for host in self._apps:
                    starting.create_task(host.start())
        except ExceptionGroup as error:
            raise error.exceptions[0] from None

    async def started(self) -> None:
        """Wait until all hosts have started for the first time."""
        await self._started.wait()

    async def stop(self) -> None:
        """Stop all hosts."""
        await asyncio.gather(*(host.stop() for host in self._all_hosts()), *self._ending)

    # -- hosts of deployments

    def start_deployment(
        self,
        deployment: str,
        app: str,
        workflows: Collection[str],
        fetch: Callable[[], Awaitable[HostCode]],
    ) -> int:
        """Start the host of a deployment in the background, and return its number.

        Args:
            deployment: Id of the deployment.
            app: Name of the app.
            workflows: Workflows that the app must declare.
            fetch: Returns the code of the app.
        """
        numbers = self._numbers_of_deployments
        number = numbers.setdefault(deployment, 1 + len(self._apps) + len(numbers))
        host = HostSupervisor(number, app, self._driver, self.options)
        self._deployed[number] = host
        host.start_when_fetched(f"{app} of {deployment}", workflows, fetch)
        return number

    def stop_deployment(self, number: int) -> None:
        """Stop the host of a deployment, which must not hold runs."""
        ending = asyncio.create_task(self._deployed.pop(number).stop())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _all_hosts(self) -> Iterable[HostSupervisor]:
        return chain(self._all, self._deployed.values())

    def _processes(self) -> Iterable[HostProcess]:
        return [host.process for host in self._all_hosts() if host.process is not None]

    # -- declarations

    def apps(self) -> list[str]:
        """Return the names of the apps, without the built-in app."""
        return [host.app for host in self._apps]

    def app_hosts(self) -> list[HostSupervisor]:
        """Return the hosts of apps, without that of the built-in app."""
        return list(self._apps)

    def kinds(self) -> dict[str, str]:
        """Return the kinds of runs, by name, of all workflows with code."""
        return {name: kind for host in self._all for name, kind in host.declared.kinds.items()}

    def params(self) -> dict[str, str]:
        """Return the JSON Schemas of params, by name, of workflows that have one."""
        return {name: schema for host in self._all for name, schema in host.declared.params.items()}

    def concurrency(self) -> dict[str, Concurrency]:
        """Return the concurrency limits, by name, of workflows that have one."""
        limits: dict[str, Concurrency] = {}
        for host in self._all:
            limits.update(host.declared.concurrency)
        return limits

    def numbers(self) -> dict[str, int]:
        """Return the numbers of hosts, by name of their workflows."""
        return {name: host.number for host in self._all for name in host.declared.workflows}

    def declared_by_app(self) -> dict[str, Declarations]:
        """Return the declarations of each app, without the built-in app."""
        return {host.app: host.declared for host in self._apps}

    def number_of(self, app: str) -> int | None:
        """Return the number of the host of an app, or None."""
        return next((host.number for host in self._apps if host.app == app), None)

    def number_with(self, tasks: Collection[str]) -> int:
        """Return the number of the host with most of these tasks; the first of several."""
        needed = set(tasks)
        host = max(self._apps, key=lambda h: len(needed & set(h.declared.tasks)), default=None)
        return host.number if host else 0

    def warn_without_code(self, without_code: Collection[str]) -> None:
        """Log once for each workflow that its instances wait for code."""
        for name in set(without_code) - self._without_code:
            log.warning(
                "instances of %s wait: no workflow of that name is in %s (there are %s), nor in "
                "the deployments that they are on; `headwater instances move` continues them on "
                "other code",
                name,
                ", ".join(self.apps()) or "an app of this worker",
                ", ".join(sorted(self.kinds())),
            )
        self._without_code.update(without_code)

    # -- messages

    def send(self, messages: Mapping[int, Sequence[HostMessage]]) -> None:
        """Send messages to their hosts."""
        for host in self._all_hosts():
            if host.process is not None and (sent := messages.get(host.number)):
                host.process.send(sent)

    async def caught_up(self) -> None:
        """Wait a limited time until the hosts have handled all messages so far."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CAUGHT_UP_S):
                await asyncio.gather(*(process.caught_up() for process in self._processes()))

    def all_numbers(self) -> list[int]:
        """Return the numbers of all hosts."""
        return [host.number for host in self._all_hosts()]

    def allow(self, number: int, attempts: int | None) -> None:
        """Limit the number of step attempts that a host may start; None for no limit."""
        for host in self._all_hosts():
            if host.number == number:
                host.allow(attempts)

    def readiness(self) -> dict[str, str]:
        """Return whether the code of all apps is loaded; deployments may wait for their code."""
        if not self._started.is_set():
            return {"code": "loading"}
        missing = [host.app for host in self._all.copy() if host.process is None]
        return {"code": f"loading {', '.join(missing)}" if missing else OK}

    def states(self) -> dict[str, str]:
        """Return the state of every host, by name of its app: loaded or starting."""
        return {
            host.name: "loaded" if host.process is not None else "starting"
            for host in self._all_hosts()
        }

    def threads_held(self) -> dict[str, int]:
        """Return the number of threads held by abandoned callbacks, by app."""
        return {
            host.name: host.process.threads_held if host.process else 0
            for host in self._all_hosts()
        }

    def closed(self) -> set[int]:
        """Return the numbers of hosts that must not be assigned instances now."""
        return {
            host.number for host in self._all_hosts() if host.process is None or host.process.full
        }

    def apply_backpressure(self) -> None:
        """Stop reading from hosts while too many of their messages wait for a turn."""
        too_much = self._driver.messages_waiting() > _MESSAGES_MAX
        if too_much != self._paused:
            self._paused = too_much
            for process in self._processes():
                (process.pause_reading if too_much else process.resume_reading)()


# -- reloading

#: Open runs that are replayed after a change, enough for a development machine.
_RUNS_MAX: Final = 1_000
_SHOWN: Final = 10
#: The code under development needs no limit of memory.
_LIMITS: Final = ReplayLimits()


class AppChanged(HeadwaterError):
    """The declarations of an app have changed, so its worker must restart."""

    disposition = Disposition.HALT
    code = "app_changed"


class Reloading:
    """Watches the files of apps.

    A change of an app's files restarts only its host. The new code is first loaded, and replayed
    against the open runs, in a separate process. If it cannot be loaded, the old code keeps
    running. Runs that do not fit the new code are logged.

    Args:
        hosts: Hosts of the worker.
        open_runs: Returns the open runs of the worker, of all workflows.
    """

    def __init__(self, hosts: Hosts, open_runs: Callable[[], Iterable[Activate]]) -> None:
        self._hosts = hosts
        self._open_runs = open_runs

    async def run(self) -> None:
        """Watch until it is cancelled.

        Raises:
            AppChanged: The declarations of an app have changed.
        """
        try:
            async with asyncio.TaskGroup() as watching:
                for host in self._hosts.app_hosts():
                    watching.create_task(self._watch(host))
        except ExceptionGroup as error:
            raise error.exceptions[0] from None

    async def _watch(self, host: HostSupervisor) -> None:
        from watchfiles import Change, PythonFilter, awatch  # noqa: PLC0415, of an extra

        folder, is_python = folder_of(host.app), PythonFilter()

        def is_source(change: Change, path: str) -> bool:
            # Hidden folders have other code, such as unpacked deployments.
            inside = Path(path).parts[len(folder.parts) :]
            return is_python(change, path) and not any(part.startswith(".") for part in inside)

        async for changes in awatch(folder, watch_filter=is_source):
            names = ", ".join(sorted({Path(path).name for _, path in changes}))
            log.warning("%s has changed: reloading %s", names, host.app)
            await self.reload(host)

    async def reload(self, host: HostSupervisor) -> None:
        """Restart the host of an app, if its code can be loaded.

        Raises:
            AppChanged: The declarations of the app have changed.
        """
        matching = (run for run in self._open_runs() if run.workflow in host.declared.workflows)
        runs = list(islice(matching, _RUNS_MAX))
        variables = self._hosts.options.variables()
        replays = await replay_runs(host.app, runs, limits=_LIMITS, environment=variables)
        if replays.declared.error:
            log.error("%s; keeping the previous code", replays.declared.error)
            return
        differing = [run for run in replays.runs if not run.fits]
        for run in differing[:_SHOWN]:
            instance = f"{run.workflow_name}/{run.instance_id}"
            fields = {"instance": instance, "run": run.run_number}
            log.warning("%s no longer fits its code: %s", instance, run.reason, extra=fields)
        if len(differing) > _SHOWN:
            log.warning("… and %d more", len(differing) - _SHOWN)
        fit = len(replays.runs) - len(differing)
        log.warning("%s: of %d open runs %d fit the new code", host.app, len(runs), fit)
        if changes := _changes(host.declared, replays.declared):
            raise AppChanged(f"{host.app} has changed: {changes}; the worker restarts")
        await host.reload()


def folder_of(app: str) -> Path:
    """Return the folder of an app: its package, or the folder of its module."""
    top = app.partition(":")[0].partition(".")[0]
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None or spec.origin is None:
        return Path.cwd()
    return Path(spec.origin).parent


def _changes(before: Declarations, after: Declarations) -> str:
    """Return what differs of the declarations that a worker uses from its start on."""
    if before == after:
        return ""
    new = sorted({*after.workflows} - {*before.workflows})
    gone = sorted({*before.workflows} - {*after.workflows})
    names = [f"new workflows {', '.join(new)}"] * bool(new)
    names += [f"without {', '.join(gone)}"] * bool(gone)
    return "; ".join(names) or "other schedules, tasks or options of workflows"
