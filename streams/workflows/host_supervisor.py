"""The code host of a worker: one child process at a time, started again whenever it has ended."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from headwater.processors.replay.host_messages import FromHost
from headwater.processors.runs.host_messages import HostMessage
from headwater.schemas.errors import HeadwaterError
from headwater.streams.code_host.apps import Declarations
from headwater.streams.engine.driver import Driver
from headwater.streams.workflows.host_process import Gone, HostKilled, HostProcess

log = logging.getLogger(__name__)

#: Starts of the first host: whoever kills it so often means it.
_FIRST_TRIES: Final = 3
#: Messages of the host that may wait for a turn.
_MESSAGES_MAX: Final = 50_000
_RETRY_S: Final = 1.0


class HostSupervisor:
    """The host of an app's workflows: what it sends, and that it ends, goes to the driver.

    Shape:  `wake_up` is called when the host has sent something, was started or is gone.
    """

    def __init__(self, app: str, driver: Driver, wake_up: Callable[[], None]) -> None:
        self._app = app
        self._driver = driver
        self._wake_up = wake_up
        self._host: HostProcess | None = None
        #: What the app declares, as its latest host has it; nothing before the first has started.
        self.declared = Declarations()
        self._started = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the first host.

        Errors: AppNotLoaded; HostKilled, when that happens again and again.
        """
        for tries_left in reversed(range(_FIRST_TRIES)):
            try:
                await self._begin()
            except HostKilled as error:
                if not tries_left:
                    raise
                log.warning("%s", error)
            else:
                return

    async def started(self) -> None:
        """Waits until the first host has started."""
        await self._started.wait()

    async def stop(self) -> None:
        """Ends the host."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self._host is not None:
            await self._host.stop()

    async def _begin(self) -> None:
        host = HostProcess(self._app, received=self._sent, gone=self._lost)
        self.declared = await host.start()
        self._host = host
        self._started.set()
        self._driver.host_started()
        self._wake_up()

    def _sent(self, messages: list[FromHost]) -> None:
        self._driver.host_sent(messages)
        self._wake_up()

    def _lost(self, gone: Gone) -> None:
        log.warning("%s; it is started again", gone.reason)
        self._host = None
        self._driver.host_gone(gone.reason, gone.turn)
        self._wake_up()
        self._restarting = asyncio.create_task(self._begin_again())

    async def _begin_again(self) -> None:
        while self._host is None:
            try:
                await self._begin()
            except HeadwaterError as error:
                log.error("the code host cannot be started: %s", error)  # noqa: TRY400
                await asyncio.sleep(_RETRY_S)

    def send(self, messages: Sequence[HostMessage]) -> None:
        """Sends the host messages, if there is one."""
        if self._host is not None and messages:
            self._host.send(messages)

    # -- how much

    @property
    def is_open(self) -> bool:
        """Whether there is a host that may be given more."""
        return self._host is not None and not self._host.full

    def hold(self) -> None:
        """Reads no more of the host while what it sent already has to wait."""
        if self._host is not None and self._driver.messages_waiting() > _MESSAGES_MAX:
            self._host.pause_reading()

    def go_on(self) -> None:
        """Reads it again."""
        if self._host is not None:
            self._host.resume_reading()
