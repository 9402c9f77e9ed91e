"""The code hosts of a worker: one for each app that it serves, and one for the house's own.

Those of deployments come and go.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.limits import THREADS_MAX
from headwater.processors.runs.slots import Concurrency
from headwater.streams.code_host.apps import Declarations, merge_declarations
from headwater.streams.code_host.builtin_app import BUILTIN_APP
from headwater.streams.deadlines import SessionDeadlines
from headwater.streams.engine.driver import Driver
from headwater.streams.workflows.app_environment import environment_of_apps
from headwater.streams.workflows.host_process import Program
from headwater.streams.workflows.host_supervisor import HostSupervisor

log = logging.getLogger(__name__)

#: Messages of hosts that may wait for a turn.
_MESSAGES_MAX: Final = 50_000
#: How long a rebalance may wait for code that has its turn.
_CAUGHT_UP_S: Final = 2.0
#: A host whose lines of output say which step printed them.
_NAMED_OUTPUT: Final = "headwater.streams.code_host.named_output"


class Hosts:
    """The hosts of a worker, by their numbers: that of the house is 0.

    Each is started, watched and started again alone. What apps declare is what they declared when
    the worker started. A deployment has the same number whenever it has a host.
    """

    def __init__(  # noqa: PLR0913, what each host is given
        self,
        apps: Sequence[str],
        driver: Driver,
        house: Program | None = None,
        *,
        named: bool = False,
        threads_max: int = THREADS_MAX,
        passed: Iterable[str] = (),
        deadlines: SessionDeadlines | None = None,
    ) -> None:
        """Make the hosts of some apps, and that of the built-in workflows.

        Args:
            apps: The apps.
            driver: What the messages of hosts go to.
            house: The program of the built-in workflows.
            named: Whether lines that steps print say whose they are.
            threads_max: Threads of each for callbacks that are not async.
            passed: Variables that apps see besides those that they always see.
            deadlines: A step of a partition whose deadline is over is not begun.
        """
        self._deadlines = deadlines
        self._threads_max = threads_max
        #: What the hosts of apps see of the environment.
        self.environment = environment_of_apps(passed)
        program = Program(environment=self.environment)
        self._program = program = program._replace(module=_NAMED_OUTPUT) if named else program
        self._driver = driver
        self._house = house
        self._apps = [
            HostSupervisor(
                *(number, app, driver),
                program=program,
                threads_max=threads_max,
                deadlines=deadlines,
            )
            for number, app in enumerate(apps, 1)
        ]
        self._all: list[HostSupervisor] = list(self._apps)
        self._deployed: dict[int, HostSupervisor] = {}
        self._numbers_of_deployments: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._started = asyncio.Event()
        self._held = False
        self._without_code: set[str] = set()
        #: The workflows that the apps declare together, and all schedules, those of the house too.
        self.declared = Declarations()

    async def start(self) -> None:
        """Starts all of them, the house's own last: it has to know the schedules of the others.

        Errors: AppNotLoaded, also when two apps declare the same; HostKilled, when that happens
                again and again.
        """
        try:
            await self._start_apps()
            apps = self.declared_by_app()
            declared = merge_declarations(apps)
            names = [each.schedule for each in declared.schedules]
            house = HostSupervisor(
                *(0, BUILTIN_APP, self._driver, names, self._house, self._threads_max),
                deadlines=self._deadlines,
            )
            self._all.append(house)
            await house.start()
            everything = merge_declarations({**apps, BUILTIN_APP: house.declared})
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
                for each in self._apps:
                    starting.create_task(each.start())
        except ExceptionGroup as several:
            raise several.exceptions[0] from None

    async def started(self) -> None:
        """Waits until all have started for the first time."""
        await self._started.wait()

    async def stop(self) -> None:
        """Ends all of them."""
        await asyncio.gather(*(each.stop() for each in self._everyone()), *self._ending)

    # -- those of deployments

    def begin(
        self,
        deployment: str,
        app: str,
        workflows: Collection[str],
        fetch: Callable[[], Awaitable[Path]],
    ) -> int:
        """Starts the host of a deployment, as soon as that can be; gives its number.

        Shape:  workflows are what the app has to declare, and fetch gives the folder that it is in.
        """
        numbers = self._numbers_of_deployments
        number = numbers.setdefault(deployment, 1 + len(self._apps) + len(numbers))
        begun = self._deployed[number] = HostSupervisor(
            *(number, app, self._driver),
            program=self._program,
            threads_max=self._threads_max,
            deadlines=self._deadlines,
        )
        begun.start_when_there(f"{app} of {deployment}", workflows, fetch)
        return number

    def end(self, number: int) -> None:
        """Ends the host of a deployment, which has nothing in hand."""
        ending = asyncio.create_task(self._deployed.pop(number).stop())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _everyone(self) -> Iterable[HostSupervisor]:
        return chain(self._all, self._deployed.values())

    # -- what they have

    def apps(self) -> list[str]:
        """The apps, as they were named, without the house's own."""
        return [each.app for each in self._apps]

    def of_apps(self) -> list[HostSupervisor]:
        """The hosts of apps, without the house's own."""
        return list(self._apps)

    def kinds(self) -> dict[str, str]:
        """The kinds of the runs of all workflows that there is code of, by their names."""
        return {name: kind for each in self._all for name, kind in each.declared.kinds.items()}

    def params(self) -> dict[str, str]:
        """The JSON Schemas of params, by the names of workflows that have one."""
        return {name: each for one in self._all for name, each in one.declared.params.items()}

    def concurrency(self) -> dict[str, Concurrency]:
        """Limits of concurrency, by the names of workflows that have one."""
        return {name: each for one in self._all for name, each in one.declared.concurrency.items()}

    def numbers(self) -> dict[str, int]:
        """The number of the host that has a workflow, by the names of workflows."""
        return {name: each.number for each in self._all for name in each.declared.workflows}

    def declared_by_app(self) -> dict[str, Declarations]:
        """What each app declares, without the house's own."""
        return {each.app: each.declared for each in self._apps}

    def number_of(self, app: str) -> int | None:
        """The number of the host of an app, or None."""
        return next((each.number for each in self._apps if each.app == app), None)

    def number_with(self, tasks: Collection[str]) -> int:
        """The number of the host that has most of these tasks, the first of several."""
        wanted = set(tasks)
        found = max(
            self._apps, key=lambda each: len(wanted & set(each.declared.tasks)), default=None
        )
        return found.number if found else 0

    def warn_of(self, without_code: Collection[str]) -> None:
        """Log once of each workflow that its instances wait for code."""
        for name in set(without_code) - self._without_code:
            log.warning(
                "instances of %s wait: no workflow of that name is in %s (there are %s), nor in "
                "the active deployment",
                name,
                ", ".join(self.apps()) or "an app of this worker",
                ", ".join(sorted(self.kinds())),
            )
        self._without_code.update(without_code)

    # -- talking

    def send(self, messages: Mapping[int, Sequence[HostMessage]]) -> None:
        """Sends each host what is for it."""
        for each in self._everyone():
            each.send(messages.get(each.number, ()))

    async def caught_up(self) -> None:
        """Waits until they have done all that they were sent, though not for very long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CAUGHT_UP_S):
                await asyncio.gather(*(each.caught_up() for each in self._everyone()))

    def all_numbers(self) -> list[int]:
        """The numbers of all of them."""
        return [each.number for each in self._everyone()]

    def allow(self, number: int, attempts: int | None) -> None:
        """Lets one of them begin so many attempts of steps, None any number."""
        for each in self._everyone():
            if each.number == number:
                each.allow(attempts)

    def threads_held(self) -> dict[str, int]:
        """By app, how many threads callbacks hold that were given up and have not returned."""
        return {each.name: each.threads_held for each in self._everyone()}

    def closed(self) -> set[int]:
        """The numbers of those that may not be given more now."""
        return {each.number for each in self._everyone() if not each.is_open}

    def hold(self) -> None:
        """Reads no more of them while too much of what they sent has to wait, and then again."""
        too_much = self._driver.messages_waiting() > _MESSAGES_MAX
        if too_much != self._held:
            self._held = too_much
            for each in self._everyone():
                (each.pause_reading if too_much else each.resume_reading)()
