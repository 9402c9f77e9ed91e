"""Main program of a code host: a child process at the other end of a pipe.

Started by `streams.workflows.host_process`. Authors' code may do anything here: block, crash,
print, exit. What the parent must know about such ends is written to the crash record in advance.
The process exits when the pipe is closed, and on Linux the kernel kills it when its parent exits.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

import msgspec
import uvloop

from headwater.processors.code.host_messages import FromHost, Raise
from headwater.processors.runs.host_messages import Evict, Requested
from headwater.schemas.errors import ProcessUnavailable
from headwater.schemas.failures import UNSERIALISABLE
from headwater.schemas.history import Failure
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import App, AppNotLoaded, Declarations, load_app
from headwater.streams.code_host.builtin_app import BUILTIN_APP, builtin_workflows
from headwater.streams.code_host.host import Host, ToHost
from headwater.streams.code_host.host_channel import (
    EXIT_BROKEN,
    EXIT_NO_THREADS,
    UNSENDABLE,
    CrashRecord,
    Pipe,
    encode_frames,
)
from headwater.streams.code_host.hosted_run import MayBegin, always
from headwater.streams.code_host.named_output import use_style
from headwater.streams.code_host.threads import Threads, watch_forks
from headwater.streams.log_lines import inherited_style
from headwater.streams.ownership.deadlines import SessionDeadlines
from headwater.streams.process_tuning import collect_seldom, run_as_batch
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.telemetry import start_telemetry

log = logging.getLogger(__name__)

#: Creates the built-in app. Its argument is the names of the schedules that other apps declare.
BuiltinApp: TypeAlias = Callable[[Sequence[str]], App]

#: Passed instead of the descriptor of deadlines: any step may begin at any time.
NO_DEADLINES: Final = "-1"
#: Longest time that cancelled attempts may take to clean up after the parent closed the pipe.
_LEAVE_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1

_TO_HOST: Final = msgspec.msgpack.Decoder(list[ToHost])


class Child:
    """Connects the host to the pipe and the threads."""

    def __init__(
        self,
        connection: socket.socket,
        record: CrashRecord,
        app: App,
        beat_s: float,
        threads_max: int,
        may_begin: MayBegin,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._record = record
        self._beat_s = beat_s
        self._unsent: list[FromHost] = []
        self._flushing = False
        #: Received frames that are not finished; the first is being handled.
        self._frames: deque[list[ToHost]] = deque()
        #: Activations that a later frame ends.
        self._forgotten: set[int] = set()
        self.left = asyncio.Event()
        self._life = asyncio.current_task()
        threads = Threads(lambda: _exit(EXIT_NO_THREADS), threads_max, record.set_threads_held)
        self._host = Host(
            app.workflows,
            emit=self._emit,
            now_ms=now_ms,
            call_sync=threads.call,
            tasks=app.tasks,
            may_begin=may_begin,
            loop=self._loop,
        )
        self._pipe = Pipe(connection, received=self._receive, ended=self._end, waits=True)
        self._beat()

    def _beat(self) -> None:
        self._record.beat()
        self._loop.call_later(self._beat_s, self._beat)

    def _receive(self, frames: list[bytearray]) -> None:
        busy = bool(self._frames)
        for frame in frames:
            try:
                messages = _TO_HOST.decode(frame)
            except msgspec.DecodeError:
                traceback.print_exc()
                _exit(EXIT_BROKEN)
            self._forgotten.update(
                message.activation for message in messages if isinstance(message, Evict)
            )
            self._frames.append(messages)
        if not busy:
            self._handle_next()

    def _handle_next(self) -> None:
        """Handle one frame, then schedule the next one after the responses to it are sent.

        The parent can thus process the responses to one frame while this process handles the next.
        All data that is available is received first: if this process was suspended, its owner may
        meanwhile have cancelled what the first frames request, and none of that may start.
        """
        if not self._frames:
            return
        self._pipe.read_waiting()
        host, record = self._host, self._record
        try:
            for message in self._frames[0]:
                if isinstance(message, Evict):
                    self._forgotten.discard(message.activation)
                elif message.activation in self._forgotten:
                    continue
                record.set_turn(message.activation)
                host.handle((message,))
        except BaseException:  # noqa: BLE001, the host raises no errors of authors
            traceback.print_exc()
            _exit(EXIT_BROKEN)
        record.set_turn(None)
        self._flush_soon()
        if not record.record_starting(host.starting()):
            self._flush()
        self._frames.popleft()
        if self._frames:
            self._loop.call_soon(self._handle_next)

    def _emit(self, message: FromHost) -> None:
        if threading.get_ident() != self._thread:
            # A callback in a thread writes to the log of its run.
            self._loop.call_soon_threadsafe(self._emit, message)
            return
        self._unsent.append(message)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send all messages of this iteration of the loop together, at its end."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        messages, self._unsent = self._unsent, []
        messages += self._host.still_running()
        # The recorded attempts stay: the pipe may be closed by now, and attempts that have ended
        # since are not charged twice.
        try:
            self._pipe.send(messages)
        except UNSENDABLE:
            self._pipe.send([_sendable(message) for message in messages])

    def _end(self) -> None:
        """Cancel what runs, wait briefly for it, and leave, because the parent closed the pipe."""
        tasks = asyncio.all_tasks(self._loop) - {self._life}
        self._frames.clear()
        self._host.stop()
        self._ending = self._loop.create_task(self._leave(tasks))

    async def _leave(self, tasks: set[asyncio.Task[object]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=_LEAVE_S)
        self.left.set()


def _sendable(message: FromHost) -> FromHost:
    """Return the message, or one that fails its run if the message cannot be encoded."""
    try:
        encode_frames([message])
    except UNSENDABLE as error:
        log.exception("a message of a run cannot be encoded")
        failure = Failure(
            UNSERIALISABLE, f"expected a message that can be encoded, found {error!r}"
        )
        return Requested(message.activation, Raise(failure))
    return message


def _exit(code: int) -> NoReturn:
    """Exit the process at once, without waiting for threads that hang."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _prepare_process(record: CrashRecord) -> None:
    """Set up signals, crash reports and output. Authors' prints go to the log."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    run_as_batch()
    # Ctrl-C and a service manager's SIGTERM reach the whole process group: the parent ends this
    # process. A handler, because programs that authors start would inherit an ignored signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    faulthandler.enable(record.descriptor)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)


def _schedules_only(schedules: Sequence[str]) -> App:
    """Return the built-in app with the schedule runner only, for use without other parts."""
    return App(builtin_workflows(schedules))


def _prepare_for_deployed(memory_max: int) -> None:
    """Protect the folder of deployed code, and the machine."""
    # Not even root writes bytecode into a folder that is compared with what was deployed.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if memory_max:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_max, memory_max))


def _load(
    connection: socket.socket,
    spec: str,
    folder: str,
    schedules: Sequence[str],
    builtin: BuiltinApp,
) -> App:
    """Load the app and send its declarations."""
    try:
        deployed = Path(folder) if folder else None
        app = builtin(schedules) if spec == BUILTIN_APP else load_app(spec, deployed)
        declared = app.declared
    except AppNotLoaded as error:
        app, declared = App({}), Declarations(error=error.message)
    for frame in encode_frames([declared]):
        connection.sendall(frame)
    if declared.error:
        _exit(EXIT_BROKEN)
    return app


async def _run_host(
    connection: socket.socket,
    record: CrashRecord,
    app: App,
    beat_s: float,
    threads_max: int,
    deadlines: SessionDeadlines | None,
) -> None:
    may_begin = always if deadlines is None else deadlines.may_begin
    child = Child(connection, record, app, beat_s, threads_max, may_begin)
    await child.left.wait()


def main(builtin: BuiltinApp = _schedules_only) -> NoReturn:
    """Run until the pipe is closed.

    Command-line arguments: pipe, crash record, deadlines, seconds between beats, maximum number of
    threads, maximum number of bytes of memory, folder of deployed code, app; for the built-in app,
    names of schedules.
    """
    pipe, memory, shared, beat_s, threads_max, memory_max, folder, app, *schedules = sys.argv[1:]
    for descriptor in (pipe, memory, *([] if shared == NO_DEADLINES else [shared])):
        # Programs that authors start must not keep the pipe open.
        os.set_inheritable(int(descriptor), False)
    record = CrashRecord(int(memory))
    deadlines = None if shared == NO_DEADLINES else SessionDeadlines(int(shared))
    style = inherited_style()
    _prepare_process(record)
    use_style(style, app)
    if folder:
        _prepare_for_deployed(int(memory_max))
    try:
        start_telemetry("steps", os.environ)
    except ProcessUnavailable as error:
        log.warning("steps have no spans: %s", error)
    # Before the app is imported, which may bind its own names to the functions that are refused.
    refuse_in_workflows()
    connection = socket.socket(fileno=int(pipe))
    watch_forks(connection)
    loaded_app = _load(connection, app, folder, schedules, builtin)
    collect_seldom()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(
        _run_host(connection, record, loaded_app, float(beat_s), int(threads_max), deadlines)
    )
    task.add_done_callback(lambda _: loop.stop())
    while not task.done():
        # Not run_until_complete: a task that raises SystemExit would leave the loop inconsistent.
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            log.exception(
                "a task of a step raised SystemExit or KeyboardInterrupt; the host continues"
            )
    task.result()
    _exit(0)


if __name__ == "__main__":
    main()
