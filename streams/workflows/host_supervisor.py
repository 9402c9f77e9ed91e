"""Supervises the code host of an app: one child process at a time, restarted whenever it exits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from headwater.monitoring.catalog import CODE_HOST_EXITS
from headwater.processors.runs.host_messages import AllowAttempts
from headwater.schemas.errors import HeadwaterError
from headwater.streams.code_host.apps import AppNotLoaded, Declarations
from headwater.streams.engine.driver import Driver
from headwater.streams.workflows.host_process import (
    HostCode,
    HostExit,
    HostKilled,
    HostOptions,
    HostProcess,
)

log = logging.getLogger(__name__)

#: Attempts to start the first host if it is killed each time.
_FIRST_TRIES: Final = 3
_RETRY_S: Final = 1.0
#: Longest pause between attempts for deployments. They do not change, so another attempt helps only
#: if this machine or Kafka was the cause.
_LONGEST_S: Final = 30.0
#: An activation that does not exist.
_NO_ACTIVATION: Final = -1


class HostSupervisor:
    """The host of an app's workflows. Its messages and its exits are passed to the driver.

    Args:
        number: Number of the host, unique in the driver.
        app: Name of the app.
        driver: Receives messages and exits.
        options: Options of the host.
        schedules: Schedules of other apps, for the built-in app.

    Attributes:
        process: The host that runs, if any.
    """

    def __init__(
        self,
        number: int,
        app: str,
        driver: Driver,
        options: HostOptions,
        schedules: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.app = app
        #: Name in log messages.
        self.name = app
        self._fetch: Callable[[], Awaitable[HostCode]] | None = None
        self._driver = driver
        self._schedules = schedules
        self._options = options
        self.process: HostProcess | None = None
        self._limits_attempts = False
        #: Declarations of the app when it was first loaded; empty before.
        self.declared = Declarations()
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the first host.

        Raises:
            AppNotLoaded: The app cannot be imported.
            HostKilled: The host was killed repeatedly.
        """
        for tries_left in reversed(range(_FIRST_TRIES)):
            try:
                self.declared = await self._start_host()
            except HostKilled as error:
                if not tries_left:
                    raise
                log.warning("%s", error)
            else:
                return

    def start_when_fetched(
        self, name: str, workflows: Collection[str], fetch: Callable[[], Awaitable[HostCode]]
    ) -> None:
        """Start the first host in the background, retrying until it succeeds.

        Args:
            name: Name in log messages.
            workflows: Workflows that the app must declare.
            fetch: Returns the code of the app.
        """
        self.name, self._fetch = name, fetch
        self.declared = Declarations(workflows=tuple(workflows))
        self._restarting = asyncio.create_task(self._restart(_LONGEST_S))

    async def stop(self) -> None:
        """Stop the host."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self.process is not None:
            await self.process.stop()

    async def _start_host(self) -> Declarations:
        code = None if self._fetch is None else await self._fetch()
        host = HostProcess(
            self.app,
            received=self._driver.host_sent,
            exited=self._lost,
            schedules=self._schedules,
            options=self._options,
            code=code,
        )
        declared = await host.start()
        missing = set(self.declared.workflows) - set(declared.workflows)
        if missing:
            # Their runs would fail for lack of code.
            await host.stop()
            raise AppNotLoaded(
                f"expected {self.name} to declare the same as before, found it without "
                f"{', '.join(sorted(missing))}; restart the worker if this is intended"
            )
        self.process = host
        if self._limits_attempts:
            # The remaining allowance of the previous host is unknown: wait for the next tick.
            host.send((AllowAttempts(0, 0),))
        if self._fetch is not None:
            # The turn that requested the host may have assigned instances to it already.
            reason = f"{self.name} was not started yet"
            self._driver.host_lost(reason, _NO_ACTIVATION, host=self.number)
        self._driver.host_started(self.number)
        return declared

    async def reload(self) -> None:
        """Restart the host with changed code. Attempts that were running start again."""
        host, self.process = self.process, None
        if host is None:
            return  # It is being restarted anyway.
        await host.stop()
        # No activation is to blame, and attempts that were running have not failed.
        reason = f"{self.app} has changed"
        self._driver.host_lost(reason, _NO_ACTIVATION, host=self.number)
        self._restarting = asyncio.create_task(self._restart())

    def _lost(self, host_exit: HostExit) -> None:
        CODE_HOST_EXITS.add((self.name,))
        log.warning("%s; restarting it for %s", host_exit.reason, self.name)
        self.process = None
        self._driver.host_lost(host_exit.reason, host_exit.turn, host=self.number)
        self._restarting = asyncio.create_task(self._restart())

    async def _restart(self, longest_s: float = _RETRY_S) -> None:
        """Start a host, retrying with increasing pauses until it succeeds."""
        pause_s = _RETRY_S
        while self.process is None:
            try:
                await self._start_host()
            except (HeadwaterError, OSError) as error:
                log.error("the code host of %s cannot be started: %s", self.name, error)  # noqa: TRY400
            except Exception:
                # No other code would start it again.
                log.exception("the code host of %s cannot be started", self.name)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def allow(self, attempts: int | None) -> None:
        """Limit the number of step attempts that the host may start; None for no limit."""
        self._limits_attempts = attempts is not None
        if self.process is not None:
            self.process.send((AllowAttempts(0, attempts),))
