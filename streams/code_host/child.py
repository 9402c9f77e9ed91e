"""The child's main program: a host in a process of its own, at the other end of a pipe.

Started by `host_process.py`. Authors' code may do anything here: block, crash, print, exit. What
the parent must know of such ends is in the black box before they happen. The process ends when the
pipe is closed, and on Linux the kernel ends it with its parent, whatever it is doing.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, TypeAlias

import msgspec
import uvloop

from headwater.processors.replay.commands import Raise
from headwater.processors.replay.host_messages import FromHost
from headwater.processors.runs.host_messages import Evict, Requested
from headwater.schemas.failures import UNSERIALISABLE
from headwater.schemas.history import Failure
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import App, AppNotLoaded, Declarations, load_app
from headwater.streams.code_host.blackbox import EXIT_BROKEN, EXIT_NO_THREADS, BlackBox
from headwater.streams.code_host.forks import watch_forks
from headwater.streams.code_host.frames import UNSENDABLE, Pipe, frames_of
from headwater.streams.code_host.host import Host, ToHost
from headwater.streams.code_host.hosted_run import MayBegin, always
from headwater.streams.code_host.house_app import HOUSE_APP, house_workflows
from headwater.streams.code_host.threads import Threads
from headwater.streams.deadlines import SessionDeadlines
from headwater.streams.garbage import collect_seldom
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.scheduling import run_as_batch

log = logging.getLogger(__name__)

#: Makes the house's own app, given the names of the schedules that other apps declare.
House: TypeAlias = Callable[[Sequence[str]], App]

#: In place of the descriptor of deadlines: any step may begin at any time.
NO_DEADLINES: Final = "-1"
#: How long attempts that are cancelled may take to clean up when the parent closes the pipe.
_LEAVE_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1

_TO_HOST: Final = msgspec.msgpack.Decoder(list[ToHost])


class Child:
    """The host, between the pipe and the threads."""

    def __init__(
        self,
        connection: socket.socket,
        box: BlackBox,
        app: App,
        beat_s: float,
        threads_max: int,
        may_begin: MayBegin,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._box = box
        self._beat_s = beat_s
        self._unsent: list[FromHost] = []
        self._flushing = False
        #: What was received and is not done; the first is being done.
        self._frames: deque[list[ToHost]] = deque()
        #: Activations that a frame further back says are over.
        self._forgotten: set[int] = set()
        self.left = asyncio.Event()
        self._life = asyncio.current_task()
        threads = Threads(lambda: _die(EXIT_NO_THREADS), threads_max, box.hold_threads)
        self._host = Host(
            app.workflows,
            emit=self._emit,
            now_ms=now_ms,
            call_sync=threads.call,
            tasks=app.tasks,
            may_begin=may_begin,
        )
        self._pipe = Pipe(connection, received=self._receive, ended=self._end, waits=True)
        self._beat()

    def _beat(self) -> None:
        self._box.beat()
        self._loop.call_later(self._beat_s, self._beat)

    def _receive(self, frames: list[bytearray]) -> None:
        busy = bool(self._frames)
        for frame in frames:
            try:
                messages = _TO_HOST.decode(frame)
            except msgspec.DecodeError:
                traceback.print_exc()
                _die(EXIT_BROKEN)
            self._forgotten.update(each.activation for each in messages if isinstance(each, Evict))
            self._frames.append(messages)
        if not busy:
            self._handle_next()

    def _handle_next(self) -> None:
        """Handles one frame, and the next one after the answers to it are sent.

        So the parent works on the answers to the one while this process works on the other. All
        that waits is received before: after this process was suspended, what its owner wanted
        first may be what it has given up since, and nothing of that is begun.
        """
        if not self._frames:
            return
        self._pipe.read_waiting()
        host, box = self._host, self._box
        try:
            for message in self._frames[0]:
                if isinstance(message, Evict):
                    self._forgotten.discard(message.activation)
                elif message.activation in self._forgotten:
                    continue
                box.set_turn(message.activation)
                host.handle((message,))
        except BaseException:  # noqa: BLE001, the host lets no error of an author's through
            traceback.print_exc()
            _die(EXIT_BROKEN)
        box.set_turn(None)
        self._flush_soon()
        if not box.note(host.starting()):
            self._flush()
        self._frames.popleft()
        if self._frames:
            self._loop.call_soon(self._handle_next)

    def _emit(self, message: FromHost) -> None:
        if threading.get_ident() != self._thread:
            # A callback in a thread writes to the run's log.
            self._loop.call_soon_threadsafe(self._emit, message)
            return
        self._unsent.append(message)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Sends all messages of this turn of the loop together, at its end."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        messages, self._unsent = self._unsent, []
        messages += self._host.still_running()
        # What is noted stays: the pipe may be closed by now, and an attempt that has ended since is
        # not charged twice.
        try:
            self._pipe.send(messages)
        except UNSENDABLE:
            self._pipe.send([_sendable(message) for message in messages])

    def _end(self) -> None:
        """The parent is gone: cancels what runs, waits a little for it, and leaves."""
        tasks = asyncio.all_tasks(self._loop) - {self._life}
        self._frames.clear()
        self._host.stop()
        self._ending = self._loop.create_task(self._leave(tasks))

    async def _leave(self, tasks: set[asyncio.Task[object]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=_LEAVE_S)
        self.left.set()


def _sendable(message: FromHost) -> FromHost:
    """The message; or, if it cannot be sent, that its run has failed, and no other with it."""
    try:
        frames_of([message])
    except UNSENDABLE as why:
        log.exception("a run sends what cannot be encoded")
        failure = Failure(UNSERIALISABLE, f"expected what can be sent, found {why!r}")
        return Requested(message.activation, Raise(failure))
    return message


def _die(code: int) -> NoReturn:
    """Ends the process at once: threads that hang are not waited for."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _settle_in(box: BlackBox) -> None:
    """Sees that the process ends when it should, and that authors' prints go to the log."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    run_as_batch()
    # Ctrl-C and a service manager's SIGTERM reach the whole group: it is for the parent to end us.
    # A handler, because what is ignored would also be ignored by programs that authors start.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    faulthandler.enable(box.descriptor)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)


def _schedules_alone(schedules: Sequence[str]) -> App:
    """The house's own app where nobody has composed more of one."""
    return App(house_workflows(schedules))


def _load(connection: socket.socket, spec: str, schedules: Sequence[str], house: House) -> App:
    """Loads the app, and sends what it declares."""
    try:
        app = house(schedules) if spec == HOUSE_APP else load_app(spec)
        declared = app.declared
    except AppNotLoaded as error:
        app, declared = App({}), Declarations(error=error.message)
    for frame in frames_of([declared]):
        connection.sendall(frame)
    if declared.error:
        _die(EXIT_BROKEN)
    return app


async def _live(
    connection: socket.socket,
    box: BlackBox,
    app: App,
    beat_s: float,
    threads_max: int,
    deadlines: SessionDeadlines | None,
) -> None:
    may_begin = always if deadlines is None else deadlines.may_begin
    child = Child(connection, box, app, beat_s, threads_max, may_begin)
    await child.left.wait()


def main(house: House = _schedules_alone) -> NoReturn:
    """Runs until the pipe is closed.

    Arguments: pipe, black box, deadlines, seconds between beats, threads at most, app; for the
    house's, names of schedules.
    """
    pipe, memory, shared, beat_s, threads_max, app, *schedules = sys.argv[1:]
    for descriptor in (pipe, memory, *([] if shared == NO_DEADLINES else [shared])):
        # Programs that authors start must not keep the pipe open.
        os.set_inheritable(int(descriptor), False)
    box = BlackBox(int(memory))
    deadlines = None if shared == NO_DEADLINES else SessionDeadlines(int(shared))
    _settle_in(box)
    # Before the app is imported, which may give names of its own to what is refused.
    refuse_in_workflows()
    connection = socket.socket(fileno=int(pipe))
    watch_forks(connection)
    loaded = _load(connection, app, schedules, house)
    collect_seldom()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    life = loop.create_task(
        _live(connection, box, loaded, float(beat_s), int(threads_max), deadlines)
    )
    life.add_done_callback(lambda _: loop.stop())
    while not life.done():
        # Not until complete: a task that raises SystemExit would leave it with the loop half run.
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            log.exception("a task that a step has started wants to exit; the host does not")
    life.result()
    _die(0)


if __name__ == "__main__":
    main()
