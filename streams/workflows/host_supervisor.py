"""The code host of a worker: one child process at a time, started again whenever it has ended."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from headwater.schemas.errors import HeadwaterError
from headwater.streams.code_host.apps import Declarations
from headwater.streams.engine.host_protocol import FromHost, ToHost
from headwater.streams.workflows.host_process import Gone, HostKilled, HostProcess

log = logging.getLogger(__name__)

#: Starts of the first host: whoever kills it so often means it.
_FIRST_TRIES: Final = 3
#: Messages of the host that may wait for a turn.
_SAID_MAX: Final = 50_000
_RETRY_S: Final = 1.0


class Hosting:
    """The host of an app's workflows, what it said, and the numbers of what it was given.

    Shape:  `stirred` is called when the host has said something, was started or is gone.
    """

    def __init__(self, app: str, stirred: Callable[[], None]) -> None:
        self._app = app
        self._stirred = stirred
        self._host: HostProcess | None = None
        #: What the app declares, as its latest host has it; nothing before the first has started.
        self.declared = Declarations()
        self._started = asyncio.Event()
        #: The latest activation, and the latest before the present host was started.
        self._last_activation = 0
        self._before_host = 0
        self._said: list[FromHost] = []
        self._gone: list[Gone] = []
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
        host = HostProcess(self._app, received=self.hear, gone=self._lost)
        self.declared = await host.start()
        self._host = host
        self._started.set()
        # What was given to the host before it concerns nobody any more.
        self._before_host = self._last_activation
        self._stirred()

    def _lost(self, gone: Gone) -> None:
        log.warning("%s; it is started again", gone.reason)
        self._host = None
        self._gone.append(gone)
        self._stirred()
        self._restarting = asyncio.create_task(self._begin_again())

    async def _begin_again(self) -> None:
        while self._host is None:
            try:
                await self._begin()
            except HeadwaterError as error:
                log.error("the code host cannot be started: %s", error)  # noqa: TRY400
                await asyncio.sleep(_RETRY_S)

    # -- what is said

    def hear(self, messages: list[FromHost]) -> None:
        """Takes what the host says, or what is said in its place."""
        self._said.extend(messages)
        self._stirred()

    def said(self) -> list[FromHost]:
        """Gives what was said since the last call."""
        said, self._said = self._said, []
        return said

    def gone(self) -> list[Gone]:
        """Gives the hosts that have ended since the last call, after all that they said."""
        gone, self._gone = self._gone, []
        return gone

    def send(self, messages: Sequence[ToHost]) -> None:
        """Tells the host, except of what was given to another before it."""
        if self._host is None:
            return
        fresh = [each for each in messages if each.activation > self._before_host]
        if fresh:
            self._host.send(fresh)

    # -- how much

    @property
    def is_open(self) -> bool:
        """Whether there is a host that may be given more."""
        return self._host is not None and not self._host.full

    def hold(self) -> None:
        """Hears no more of the host while what it said already has to wait."""
        if self._host is not None and len(self._said) > _SAID_MAX:
            self._host.pause_reading()

    def go_on(self) -> None:
        """Hears it again."""
        if self._host is not None:
            self._host.resume_reading()

    def number(self, partition: int, partitions: int) -> int:
        """A number that no activation had, and that says whose it is."""
        round_ = self._last_activation // partitions + 1
        self._last_activation = round_ * partitions + partition
        return self._last_activation
