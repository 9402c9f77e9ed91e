"""The code host of an app: one child process at a time, started again whenever it has ended."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from headwater.processors.runs.host_messages import Allow, HostMessage
from headwater.processors.runs.limits import THREADS_MAX
from headwater.schemas.errors import HeadwaterError
from headwater.streams.code_host.apps import AppNotLoaded, Declarations
from headwater.streams.deadlines import SessionDeadlines
from headwater.streams.engine.driver import Driver
from headwater.streams.workflows.host_process import Gone, HostKilled, HostProcess, Program

log = logging.getLogger(__name__)

#: Starts of the first host: whoever kills it so often means it.
_FIRST_TRIES: Final = 3
_RETRY_S: Final = 1.0
#: What is deployed does not change: another start helps only where this machine or Kafka was it.
_LONGEST_S: Final = 30.0
_NOBODY: Final = -1


class HostSupervisor:
    """The host of an app's workflows: what it sends, and that it ends, goes to the driver.

    Shape:  number is its own among the hosts of the driver; schedules are those of other apps, for
            the house's own, and program is what its host runs.
    """

    def __init__(  # noqa: PLR0913, PLR0917, what its host is given
        self,
        number: int,
        app: str,
        driver: Driver,
        schedules: Sequence[str] = (),
        program: Program | None = None,
        threads_max: int = THREADS_MAX,
        deadlines: SessionDeadlines | None = None,
    ) -> None:
        self.number = number
        self._deadlines = deadlines
        self._threads_max = threads_max
        self.app = app
        #: What people know it by.
        self.name = app
        self._fetch: Callable[[], Awaitable[Path]] | None = None
        self._driver = driver
        self._schedules = schedules
        self._program = program
        self._host: HostProcess | None = None
        self._counts = False
        #: What the app declared when it was first loaded; nothing before.
        self.declared = Declarations()
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the first host.

        Errors: AppNotLoaded; HostKilled, when that happens again and again.
        """
        for tries_left in reversed(range(_FIRST_TRIES)):
            try:
                self.declared = await self._begin()
            except HostKilled as error:
                if not tries_left:
                    raise
                log.warning("%s", error)
            else:
                return

    def start_when_there(
        self, name: str, workflows: Collection[str], fetch: Callable[[], Awaitable[Path]]
    ) -> None:
        """Starts the first host in the background, as often as it takes.

        Shape:  workflows are what the app has to declare, and fetch gives the folder that it is in.
        """
        self.name, self._fetch = name, fetch
        self.declared = Declarations(workflows=tuple(workflows))
        self._restarting = asyncio.create_task(self._begin_again(_LONGEST_S))

    async def stop(self) -> None:
        """Ends the host."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self._host is not None:
            await self._host.stop()

    async def _begin(self) -> Declarations:
        folder = None if self._fetch is None else await self._fetch()
        host = HostProcess(
            self.app,
            received=self._driver.host_sent,
            gone=self._lost,
            schedules=self._schedules,
            program=self._program,
            directory=folder,
            threads_max=self._threads_max,
            deadlines=self._deadlines,
        )
        declared = await host.start()
        missing = set(self.declared.workflows) - set(declared.workflows)
        if missing:
            # Their runs would fail for want of code.
            await host.stop()
            raise AppNotLoaded(
                f"expected {self.name} to declare what it did before, found no more "
                f"{', '.join(sorted(missing))}; restart the worker if that is meant"
            )
        self._host = host
        if self._counts:
            # How much was left to the one before it, nobody knows: it waits for the next tick.
            host.send((Allow(0, 0),))
        if self._fetch is not None:
            # The turn that wanted it first may have given it something at once.
            self._driver.host_lost(f"{self.name} was not there yet", _NOBODY, host=self.number)
        self._driver.host_started(self.number)
        return declared

    async def reload(self) -> None:
        """Starts the host again, for code that has changed; what was under way begins anew."""
        host, self._host = self._host, None
        if host is None:
            return  # It is being started again as it is.
        await host.stop()
        # Of no activation: what was under way has not failed.
        self._driver.host_lost(f"{self.app} has changed", _NOBODY, host=self.number)
        self._restarting = asyncio.create_task(self._begin_again())

    def _lost(self, gone: Gone) -> None:
        log.warning("%s; it is started again, for %s", gone.reason, self.name)
        self._host = None
        self._driver.host_lost(gone.reason, gone.turn, host=self.number)
        self._restarting = asyncio.create_task(self._begin_again())

    async def _begin_again(self, longest_s: float = _RETRY_S) -> None:
        """Starts a host, as often as it takes, with pauses that become longer."""
        pause_s = _RETRY_S
        while self._host is None:
            try:
                await self._begin()
            except (HeadwaterError, OSError) as error:
                log.error("the code host of %s cannot be started: %s", self.name, error)  # noqa: TRY400
            except Exception:
                # Nothing else would ever start it again.
                log.exception("the code host of %s cannot be started", self.name)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def send(self, messages: Sequence[HostMessage]) -> None:
        """Sends the host messages, if there is one."""
        if self._host is not None and messages:
            self._host.send(messages)

    async def caught_up(self) -> None:
        """Waits until the host, if there is one, has done all that it was sent."""
        if self._host is not None:
            await self._host.caught_up()

    def allow(self, attempts: int | None) -> None:
        """Lets the host begin so many attempts of steps, None any number."""
        self._counts = attempts is not None
        self.send((Allow(0, attempts),))

    # -- how much

    @property
    def is_open(self) -> bool:
        """Whether there is a host that may be given more."""
        return self._host is not None and not self._host.full

    @property
    def threads_held(self) -> int:
        """How many threads callbacks hold that were given up and have not returned."""
        return 0 if self._host is None else self._host.threads_held

    def pause_reading(self) -> None:
        """Reads no more of the host."""
        if self._host is not None:
            self._host.pause_reading()

    def resume_reading(self) -> None:
        """Reads it again."""
        if self._host is not None:
            self._host.resume_reading()
