"""The parent's end of a code host in a child process: starts, reads, watches and ends it.

The child runs authors' code, so it may stand still or die at any time. Its parent sees both: the
process ends, or its pulse in the black box does. In either case the parent says once how the host
went, and whose code had its turn; its user informs the owners, and starts another.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from headwater.processors.replay.host_messages import FromHost
from headwater.processors.runs.host_messages import HostMessage, Ping, Pong
from headwater.processors.runs.limits import THREADS_MAX
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.code_host.apps import AppNotLoaded, Declarations
from headwater.streams.code_host.crash_record import (
    EXIT_BROKEN,
    EXIT_NO_THREADS,
    CrashRecord,
    crash_location,
)
from headwater.streams.code_host.frames import HOST_FRAME_MAX, Pipe
from headwater.streams.deadlines import SessionDeadlines
from headwater.streams.workflows.app_environment import environment_of_apps, hint_of_withheld

log = logging.getLogger(__name__)

#: How long one turn of code may take. Longer than any honest one, shorter than an operator's
#: patience: while it lasts, no other run of the app moves.
STALL_S: Final = 10.0
#: How long the import of an app may take; large libraries take some seconds.
START_S: Final = 60.0
#: How long a host may take to cancel and leave before it is killed.
STOP_S: Final = 5.0
#: How often a stall's time the pulse is looked at. Looks are counted, not time: when both processes
#: were suspended, the child has not stood still.
_LOOKS: Final = 10
#: How long a child may take to say where it stands, or to end after it closed its pipe.
_END_S: Final = 1.0

_FROM_HOST: Final = msgspec.msgpack.Decoder(list[FromHost])
#: What a child says first, in a frame of its own.
_HELLO: Final = msgspec.msgpack.Decoder(list[Declarations])
_EXITS: Final = {
    EXIT_BROKEN: "with an error of its own, which its log shows",
    EXIT_NO_THREADS: "because callbacks that went on after their timeout held all threads "
    "(step_threads)",
}


class Gone(msgspec.Struct, frozen=True):
    """How a host went, for `Owner.host_lost`.

    Shape:  turn is the activation whose own code had its turn; None if none had.
    """

    reason: str
    turn: int | None


class Program(NamedTuple):
    """What a host runs: a module whose main program is that of `code_host.child`, or ends in it.

    Args:
        environment: All variables that it sees; None gives it those that apps always see.
    """

    module: str = "headwater.streams.code_host.child"
    environment: Mapping[str, str] | None = None


class HostKilled(HeadwaterError):
    """A code host was killed while it loaded its app."""

    disposition = Disposition.RETRY
    code = "host_killed"


class HostProcess:
    """A child process that hosts the workflows of one app; it is started once.

    Shape:  schedules are those of other apps, for the house's own; `received` is called with
            messages of the host, and `gone` at most once, after the last of them, when the host has
            ended but not by `stop`; both by the event loop. It begins no step of a partition whose
            deadline is over; without deadlines it always may.
    """

    def __init__(  # noqa: PLR0913, what its user chooses
        self,
        app: str,
        *,
        received: Callable[[list[FromHost]], None],
        gone: Callable[[Gone], None],
        schedules: Sequence[str] = (),
        program: Program | None = None,
        stall_s: float = STALL_S,
        directory: Path | None = None,
        threads_max: int = THREADS_MAX,
        deadlines: SessionDeadlines | None = None,
    ) -> None:
        self._deadlines, self._threads_max = deadlines, threads_max
        self._app = app
        self._program = program or Program()
        variables = self._program.environment
        self._environment = environment_of_apps() if variables is None else variables
        self._schedules = schedules
        self._received = received
        self._gone = gone
        self._stall_s = stall_s
        self._directory = directory
        self._process: asyncio.subprocess.Process
        self._pipe: Pipe
        self._box: CrashRecord
        self._attending: asyncio.Task[None] | None = None
        self._hello: asyncio.Future[Declarations]
        self._timer: asyncio.TimerHandle | None = None
        self._pulse = self._still = 0
        self._stalled = self._stopping = False
        self._pings: deque[asyncio.Future[None]] = deque()

    @property
    def threads_held(self) -> int:
        """How many threads callbacks hold that were given up and have not returned."""
        return self._box.threads_held

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def start(self, within_s: float = START_S) -> Declarations:
        """Starts the child; gives what its app declares.

        Errors: AppNotLoaded, with the author's traceback; HostKilled.
        """
        self._hello = asyncio.get_running_loop().create_future()
        await self._launch()
        self._attending = asyncio.create_task(self._attend())
        try:
            async with asyncio.timeout(within_s):
                hello = await self._hello
        except TimeoutError:
            await self.stop(0)
            raise AppNotLoaded(
                f"expected {self._app} to be imported within {within_s:g} s, found it still busy"
            ) from None
        except BaseException:
            await self.stop(0)
            raise
        if hello.error:
            await self.stop()
            code = self._process.returncode
            # Killed from outside, perhaps: that is no fault of the app's.
            error = hello.error + hint_of_withheld(hello.error, self._environment)
            raise (HostKilled if code is not None and code < 0 else AppNotLoaded)(error)
        self._look()
        return hello

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        box = CrashRecord.create()
        shared = -1 if self._deadlines is None else self._deadlines.descriptor
        inherited = [each for each in (theirs.fileno(), box.descriptor, shared) if each >= 0]
        try:
            self._process = await asyncio.create_subprocess_exec(
                # Without the current directory, where an author may have a `streams` too.
                *(sys.executable, "-P", "-m", self._program.module),
                *(str(theirs.fileno()), str(box.descriptor), str(shared)),
                *(str(self._stall_s / _LOOKS), str(self._threads_max)),
                *(self._app, *self._schedules),
                pass_fds=inherited,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                cwd=self._directory,
            )
        except BaseException:
            ours.close()
            box.close()
            raise
        finally:
            theirs.close()
        self._box = box
        self._pipe = Pipe(
            ours,
            received=self._receive,
            ended=self._pipe_ended,
            waits=False,
            frame_max=HOST_FRAME_MAX,
            garbled=self._end_garbled,
        )

    # -- talking

    def send(self, messages: Sequence[HostMessage]) -> None:
        """Sends messages, without waiting; those to a host that is gone concern nobody."""
        self._pipe.send(messages)

    async def caught_up(self) -> None:
        """Waits until the child has done all that it was sent, or has ended."""
        if self._attending is None or self._attending.done():
            return
        ping = asyncio.get_running_loop().create_future()
        self._pings.append(ping)
        self.send((Ping(0),))
        await ping

    @property
    def full(self) -> bool:
        """Whether the child reads far too slowly: new runs had better wait for `room`."""
        return self._pipe.full

    async def room(self) -> None:
        """Waits until it is not full, or gone."""
        await self._pipe.room()

    def pause_reading(self) -> None:
        """Reads nothing until `resume_reading`: the child soon stops reading too."""
        self._pipe.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        self._pipe.resume_reading()

    def _receive(self, frames: list[bytearray]) -> None:
        try:
            if not self._hello.done():
                (hello,) = _HELLO.decode(frames.pop(0))
                self._hello.set_result(hello)
            messages = [message for frame in frames for message in _FROM_HOST.decode(frame)]
        except Exception:
            log.exception("code host %d sent what cannot be read", self.pid)
            self._end_garbled()
            return
        if self._pings:
            messages = [message for message in messages if not self._is_pong(message)]
        if messages:
            self._received(messages)

    def _end_garbled(self) -> None:
        """End a host whose authors' code has written to a descriptor that is not its own."""
        log.error("code host %d sent what is not a message; it is ended", self.pid)
        self._pipe.close()
        self._signal(signal.SIGKILL)

    def _is_pong(self, message: FromHost) -> bool:
        if not isinstance(message, Pong):
            return False
        self._let_go_on(self._pings.popleft())
        return True

    def _let_go_on(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():  # It may have waited long enough.
            waiter.set_result(None)

    # -- watching

    def _look(self) -> None:
        """Sees whether the pulse goes on."""
        pulse = self._box.pulse
        self._still = self._still + 1 if pulse == self._pulse else 0
        self._pulse = pulse
        if self._still < _LOOKS:
            self._later(self._stall_s / _LOOKS, self._look)
            return
        self._stalled = True
        # The fault handler writes where the code stands, and the process ends.
        self._signal(signal.SIGABRT)
        self._later(_END_S, self._kill)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, action)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _pipe_ended(self) -> None:
        """The child ends, or its code has closed what is not its own."""
        if not self._stalled:
            self._later(_END_S, self._kill)

    async def _attend(self) -> None:
        """Waits for the child's end, and reports it."""
        code = await self._process.wait()
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._pipe.drain()
        finally:
            self._ended(code)
            self._box.close()
            for waiter in self._pings:
                self._let_go_on(waiter)

    def _ended(self, code: int) -> None:
        if not self._hello.done():
            self._hello.set_result(Declarations(error=self._not_loaded(code)))
        elif not self._stopping and not self._hello.result().error:
            loop = asyncio.get_running_loop()
            gone = Gone(self._reason(code), self._box.turn())
            starting: list[FromHost] = [*self._box.starting()]
            loop.call_soon(self._report_exit, starting, gone)

    def _report_exit(self, starting: list[FromHost], gone: Gone) -> None:
        if self._stopping:
            return
        if starting:
            self._received(starting)
        self._gone(gone)

    def _not_loaded(self, code: int) -> str:
        return (
            f"expected {self._app} to be imported, found that the process {_how(code)} meanwhile\n"
            f"{self._box.crash_report()}"
        ).rstrip()

    def _reason(self, code: int) -> str:
        report = self._box.crash_report()
        how = f"stood still for {self._stall_s:g} s" if self._stalled else _how(code)
        if report:
            log.error("code host %d %s; its threads were here:\n%s", self.pid, how, report)
        place = crash_location(report)
        return f"the code host {how}{f' at {place}' if place else ''}"

    # -- ending

    async def stop(self, within_s: float = STOP_S) -> None:
        """Ends the child: cancels what runs, and kills it if that takes too long."""
        if self._attending is None:
            return
        self._stopping = True
        self._pipe.close()
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._attending)
        if not self._attending.done():
            self._kill()
        await self._attending


async def declarations_of(
    app: str,
    *,
    directory: Path | None = None,
    within_s: float = START_S,
    passed: Iterable[str] = (),
) -> Declarations:
    """Loads an app in a host that ends at once, and returns what it declares.

    Args:
        app: The app, as `package.module:name`.
        directory: The folder to import it from.
        within_s: How long the import may take, in seconds.
        passed: Variables that it sees besides those that apps always see.

    Raises:
        AppNotLoaded: With the author's traceback.
        HostKilled: It was ended from outside.
    """
    program = Program(environment=environment_of_apps(passed))
    host = HostProcess(
        app, received=lambda _: None, gone=lambda _: None, directory=directory, program=program
    )
    declared = await host.start(within_s)
    await host.stop()
    return declared


def _how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended {_EXITS.get(code, f'with exit code {code}')}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", by the kernel if memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
