"""The parent's side of a code host in a child process: starts, reads, monitors and stops it.

The child runs authors' code, so it may hang or crash at any time. The parent detects that the
process has exited, or that its pulse in the crash record has stopped. In either case it reports
once how the host exited, and which activation was executing; the caller informs the owners and
starts another host.
"""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from headwater.processors.code.host_messages import FromHost
from headwater.processors.runs.host_messages import HostMessage, Ping, Pong
from headwater.processors.runs.limits import THREADS_MAX
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.code_host import environment_host
from headwater.streams.code_host.apps import AppNotLoaded, Declarations
from headwater.streams.code_host.host_channel import (
    EXIT_BROKEN,
    EXIT_NO_THREADS,
    HOST_FRAME_MAX,
    CrashRecord,
    Pipe,
    crash_location,
)
from headwater.streams.code_host.library import library_folders
from headwater.streams.log_lines import variables_for_host
from headwater.streams.ownership.deadlines import SessionDeadlines
from headwater.streams.workflows.app_environment import (
    environment_of_apps,
    hint_of_withheld,
    in_virtual_environment,
)

log = logging.getLogger(__name__)

#: Longest time that code may execute without yielding. Longer than any legitimate code needs, and
#: short enough for an operator: no other run of the app makes progress meanwhile.
STALL_S: Final = 10.0
#: Longest time to import an app. Large libraries take some seconds.
START_S: Final = 60.0
#: Longest time for a host to cancel its attempts and exit before it is killed.
STOP_S: Final = 5.0
#: Number of checks of the pulse in the time of STALL_S. Checks are counted rather than time: if
#: both processes were suspended, the child did not hang.
_CHECKS: Final = 10
#: Longest time for a child to write its stacks, or to exit after it closed its pipe.
_END_S: Final = 1.0

_FROM_HOST: Final = msgspec.msgpack.Decoder(list[FromHost])
#: First message of a child, in a separate frame.
_HELLO: Final = msgspec.msgpack.Decoder(list[Declarations])
_EXITS: Final = {
    EXIT_BROKEN: "with an internal error, which its log shows",
    EXIT_NO_THREADS: "because callbacks that continued after their timeout held all threads "
    "(step_threads)",
}


class HostExit(msgspec.Struct, frozen=True):
    """How a host exited, for `Owner.host_lost`.

    Attributes:
        reason: Description of the exit.
        turn: Activation whose workflow code was executing, if any.
    """

    reason: str
    turn: int | None


#: Main program of a host.
_CHILD: Final = "headwater.streams.code_host.child"


class HostOptions(NamedTuple):
    """Options of a host.

    Attributes:
        module: Its main program: the module `code_host.child`, or one that calls its `main`.
        environment: All variables that it sees; by default those that apps always see.
        threads_max: Number of threads for callbacks that are not async.
        deadlines: No step of a partition starts after its deadline. Without, it always may.
        stall_s: Longest time that code may execute without yielding, in seconds.
        memory_max: Largest memory of the process, in bytes; 0 for any.
        names_steps: Whether lines of its output for people begin with the step that prints them.
    """

    module: str = _CHILD
    environment: Mapping[str, str] | None = None
    threads_max: int = THREADS_MAX
    deadlines: SessionDeadlines | None = None
    stall_s: float = STALL_S
    memory_max: int = 0
    names_steps: bool = False

    def variables(self) -> Mapping[str, str]:
        """Return the variables that the host sees."""
        return environment_of_apps() if self.environment is None else self.environment


class HostCode(NamedTuple):
    """Code that was deployed, for a host.

    Attributes:
        folder: Folder to import the app from.
        scratch: Working directory of the host; by default the folder.
        python: Interpreter of the environment of its requirements; None if it has none, and uses
            the packages of this process.
    """

    folder: Path
    scratch: Path | None = None
    python: Path | None = None


def program_of(code: HostCode | None, module: str) -> Sequence[str]:
    """Return the interpreter for code, and a main program that imports it."""
    # -P: without the current directory, where an author may have a package `streams`.
    if code is None or code.python is None:
        return (sys.executable, "-P", "-m", module)
    folders = json.dumps(library_folders())
    return (str(code.python), "-P", environment_host.__file__, folders, module)


def variables_of(code: HostCode | None, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment variables for a process that imports code."""
    if code is None or code.python is None:
        return variables
    return in_virtual_environment(variables, code.python)


class HostKilled(HeadwaterError):
    """A code host was killed while it loaded its app."""

    disposition = Disposition.RETRY
    code = "host_killed"


class HostProcess:
    """A child process that hosts the workflows of one app. It is started once.

    Args:
        app: Name of the app.
        received: Called with messages of the host, by the event loop.
        exited: Called at most once, after all messages, if the host exits other than by `stop`.
        schedules: Schedules of other apps, for the built-in app.
        options: Options of the host.
        code: The code, if it was deployed; else the app is imported as `python -m` does.
    """

    def __init__(
        self,
        app: str,
        *,
        received: Callable[[list[FromHost]], None],
        exited: Callable[[HostExit], None],
        schedules: Sequence[str] = (),
        options: HostOptions = HostOptions(),  # noqa: B008 (a constant)
        code: HostCode | None = None,
    ) -> None:
        self._app = app
        self._options = options
        self._environment = variables_of(code, options.variables())
        self._schedules = schedules
        self._received = received
        self._exited = exited
        self._code = code
        self._process: asyncio.subprocess.Process
        self._pipe: Pipe
        self._crash_record: CrashRecord
        self._attending: asyncio.Task[None] | None = None
        self._declarations: asyncio.Future[Declarations]
        self._timer: asyncio.TimerHandle | None = None
        self._pulse = self._still = 0
        self._stalled = self._stopping = False
        self._pings: deque[asyncio.Future[None]] = deque()

    @property
    def threads_held(self) -> int:
        """Number of threads held by abandoned callbacks."""
        return self._crash_record.threads_held

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    async def start(self, within_s: float = START_S) -> Declarations:
        """Start the child, and return the declarations of its app.

        Raises:
            AppNotLoaded: The app cannot be imported. The message has the author's traceback.
            HostKilled: The child was killed from outside.
        """
        self._declarations = asyncio.get_running_loop().create_future()
        await self._launch()
        self._attending = asyncio.create_task(self._attend())
        try:
            async with asyncio.timeout(within_s):
                declared = await self._declarations
        except TimeoutError:
            await self.stop(0)
            raise AppNotLoaded(
                f"expected {self._app} to be imported within {within_s:g} s, found it still busy"
            ) from None
        except BaseException:
            await self.stop(0)
            raise
        if declared.error:
            await self.stop()
            code = self._process.returncode
            # If the child was killed from outside, the app is not to blame.
            error = declared.error + hint_of_withheld(declared.error, self._environment)
            raise (HostKilled if code is not None and code < 0 else AppNotLoaded)(error)
        self._check_pulse()
        return declared

    async def _launch(self) -> None:
        parent_end, child_end = socket.socketpair()
        record = CrashRecord.create()
        options, code = self._options, self._code
        shared = -1 if options.deadlines is None else options.deadlines.descriptor
        log = variables_for_host(self._app, names_steps=options.names_steps)
        inherited = [
            descriptor
            for descriptor in (child_end.fileno(), record.descriptor, shared)
            if descriptor >= 0
        ]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._program(),
                *(str(child_end.fileno()), str(record.descriptor), str(shared)),
                *(str(options.stall_s / _CHECKS), str(options.threads_max)),
                *(str(options.memory_max), "" if code is None else str(code.folder)),
                *(self._app, *self._schedules),
                pass_fds=inherited,
                env={**self._environment, **log},
                stdin=asyncio.subprocess.DEVNULL,
                cwd=None if code is None else code.scratch or code.folder,
            )
        except BaseException:
            parent_end.close()
            record.close()
            raise
        finally:
            child_end.close()
        self._crash_record = record
        self._pipe = Pipe(
            parent_end,
            received=self._receive,
            ended=self._pipe_ended,
            waits=False,
            frame_max=HOST_FRAME_MAX,
            garbled=self._end_garbled,
        )

    def _program(self) -> Sequence[str]:
        has_environment = self._code is not None and self._code.python is not None
        return program_of(self._code, _CHILD if has_environment else self._options.module)

    # -- messages

    def send(self, messages: Sequence[HostMessage]) -> None:
        """Send messages without waiting. Messages to a host that has exited are dropped."""
        self._pipe.send(messages)

    async def caught_up(self) -> None:
        """Wait until the child has handled all messages so far, or has exited."""
        if self._attending is None or self._attending.done():
            return
        ping = asyncio.get_running_loop().create_future()
        self._pings.append(ping)
        self.send((Ping(0),))
        await ping

    @property
    def full(self) -> bool:
        """Whether the child reads too slowly, so that it should not be assigned new runs."""
        return self._pipe.full

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`. The child soon stops reading, too."""
        self._pipe.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        self._pipe.resume_reading()

    def _receive(self, frames: list[bytearray]) -> None:
        try:
            if not self._declarations.done():
                (declared,) = _HELLO.decode(frames.pop(0))
                self._declarations.set_result(declared)
            messages = [message for frame in frames for message in _FROM_HOST.decode(frame)]
        except Exception:
            log.exception("code host %d sent a message that cannot be decoded", self.pid)
            self._end_garbled()
            return
        if self._pings:
            messages = [message for message in messages if not self._is_pong(message)]
        if messages:
            self._received(messages)

    def _end_garbled(self) -> None:
        """Kill a host whose authors' code wrote to a descriptor that is not its own."""
        log.error("code host %d sent data that is not a message; killing it", self.pid)
        self._pipe.close()
        self._signal(signal.SIGKILL)

    def _is_pong(self, message: FromHost) -> bool:
        if not isinstance(message, Pong):
            return False
        self._wake(self._pings.popleft())
        return True

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():  # Its caller may have stopped waiting.
            waiter.set_result(None)

    # -- watching

    def _check_pulse(self) -> None:
        """Check whether the pulse has changed since the last check."""
        pulse = self._crash_record.pulse
        self._still = self._still + 1 if pulse == self._pulse else 0
        self._pulse = pulse
        if self._still < _CHECKS:
            self._later(self._options.stall_s / _CHECKS, self._check_pulse)
            return
        self._stalled = True
        # The fault handler writes the stacks, and the process aborts.
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
        """Handle the end of the pipe: the child exits, or authors' code closed the descriptor."""
        if not self._stalled:
            self._later(_END_S, self._kill)

    async def _attend(self) -> None:
        """Wait for the exit of the child, and report it."""
        code = await self._process.wait()
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._pipe.drain()
        finally:
            self._handle_exit(code)
            self._crash_record.close()
            for waiter in self._pings:
                self._wake(waiter)

    def _handle_exit(self, code: int) -> None:
        if not self._declarations.done():
            self._declarations.set_result(Declarations(error=self._not_loaded(code)))
        elif not self._stopping and not self._declarations.result().error:
            loop = asyncio.get_running_loop()
            host_exit = HostExit(self._reason(code), self._crash_record.turn())
            starting: list[FromHost] = [*self._crash_record.starting()]
            loop.call_soon(self._report_exit, starting, host_exit)

    def _report_exit(self, starting: list[FromHost], host_exit: HostExit) -> None:
        if self._stopping:
            return
        if starting:
            self._received(starting)
        self._exited(host_exit)

    def _not_loaded(self, code: int) -> str:
        return (
            f"expected {self._app} to be imported, found that the process {describe_exit(code)} "
            "meanwhile\n"
            f"{self._crash_record.crash_report()}"
        ).rstrip()

    def _reason(self, code: int) -> str:
        report = self._crash_record.crash_report()
        how = f"was stuck for {self._options.stall_s:g} s" if self._stalled else describe_exit(code)
        if report:
            log.error("code host %d %s; stacks of its threads:\n%s", self.pid, how, report)
        location = crash_location(report)
        where = f" at {location}" if location else ""
        # Threads do not make a host stand still.
        advice = " (make a callback that blocks a plain function, which runs in a thread)"
        return f"the code host {how}{where}{advice if self._stalled else ''}"

    # -- ending

    async def stop(self, within_s: float = STOP_S) -> None:
        """Stop the child: cancel its attempts, and kill it if that takes too long."""
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
    code: HostCode | None = None,
    within_s: float = START_S,
    passed: Iterable[str] = (),
    memory_max: int = 0,
) -> Declarations:
    """Load an app in a temporary host, and return its declarations.

    Args:
        app: The app, as `package.module:name`.
        code: The code, if it was deployed.
        within_s: Longest time for the import, in seconds.
        passed: Variables that it sees in addition to those that apps always see.
        memory_max: Largest memory of the process, in bytes; 0 for any.

    Raises:
        AppNotLoaded: The app cannot be imported. The message has the author's traceback.
        HostKilled: The host was killed from outside.
    """
    options = HostOptions(environment=environment_of_apps(passed), memory_max=memory_max)
    host = HostProcess(
        app, received=lambda _: None, exited=lambda _: None, code=code, options=options
    )
    declared = await host.start(within_s)
    await host.stop()
    return declared


def describe_exit(code: int) -> str:
    """Describe an exit code."""
    if code >= 0:
        return f"ended {_EXITS.get(code, f'with exit code {code}')}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", by the kernel if memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
