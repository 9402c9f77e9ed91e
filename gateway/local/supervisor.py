"""Runs the parts of `headwater up`: starts, watches, restarts and stops them.

Rules:
1. One thread. Parts are started, watched and stopped by the same loop, so nothing is in two states.
2. A signal never interrupts our own bookkeeping. Its handler raises only where a wait says that it
   may (`_interruptible`), and leaves a note for the next such place otherwise.
3. A part that fails its first start ends everything with one message: it is misconfigured. A part
   that dies later is restarted for as long as we run: it met a bad moment.
4. Every part runs in a session of its own. Ctrl-C reaches the supervisor alone, which stops the
   parts in the reverse of their order: parts that were started together stop together, and the
   servers, which need none of each other, last.
5. Nothing outlives us: `gateway.local.leash` ends the parts if we are killed and cannot. It holds
   our claim on the data directory until it has; who comes next waits for that.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TextIO

from headwater.gateway.local import leash
from headwater.gateway.local.parts import (
    ChildProcess,
    EmbeddedPart,
    LogOnScreen,
    Part,
    end_of_log,
    how_it_ended,
    size_of_log,
)
from headwater.gateway.local.restarts import Deaths, RestartPolicy
from headwater.gateway.privacy import make_private_folder
from headwater.schemas.errors import ProcessUnavailable

__all__ = ["EmbeddedPart", "Part", "Supervisor"]

#: How long a part may take until it is ready for the first time; a cold start takes 1 s here.
_READY_WITHIN_S = 60.0
#: How often parts are looked at. A death is noticed this much later at worst.
_POLL_S = 0.1
#: Someone who waits is told so this often.
_STILL_WAITING_EVERY_S = 5.0
#: How long what a killed supervisor left behind may take to end: twice the leash's patience.
_ENDED_WITHIN_S = 30.0


class _StopRequested(BaseException):
    """Ctrl-C or SIGTERM. Not an Exception: no part's error handling may swallow it."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A part as the loop sees it."""

    part: EmbeddedPart
    ready: Callable[[], bool]
    deaths: Deaths
    started_at: float
    #: Those of one group stop together; servers are group 0.
    group: int
    #: How much of its log is of earlier starts.
    log_from: int
    #: What the leash was told to end.
    pid: int | None = None
    #: When it is to be started again; None while it runs.
    restart_at: float | None = None
    #: Started again, but not known to be ready yet.
    returning: bool = False


class Supervisor:
    """Starts parts, watches them, and stops them when the `with` block ends, however it ends.

    ```
    with Supervisor(data_dir=..., report=...) as house:
        bootstrap = house.start_embedded(kafka)
        house.start(gateway, worker)
        house.watch()
    ```
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        report: Callable[[str], None],
        restarts: RestartPolicy | None = None,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._log_dir = self._data_dir / "logs"
        self._report = report
        self._restarts = restarts or RestartPolicy()
        self._watched: list[_Watched] = []
        self._groups = 0
        self._screens: list[LogOnScreen] = []
        self._exit = contextlib.ExitStack()
        self._may_interrupt = False
        self._asked_to_stop = False

    def __enter__(self) -> Self:
        make_private_folder(self._log_dir, self._data_dir)
        with contextlib.ExitStack() as exits:
            claim = exits.enter_context(_claimed(self._data_dir, self._report))
            self._leash = exits.enter_context(_leash(claim))
            exits.enter_context(self._signals())
            self._exit = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> bool:
        self._asked_to_stop = False  # from here on, a signal means "at once"
        try:
            self._stop_all()
        finally:
            self._exit.close()
        return kind is not None and issubclass(kind, _StopRequested)

    def start_embedded(self, part: EmbeddedPart) -> str:
        """Starts a server, returns where it answers, and watches it from now on."""
        watched = self._watch(part, ready=lambda: True, group=0)
        self._report(f"Starting {part.name}")
        with self._interruptible():
            address = part.start()
        self._started(watched)
        self._report_ready(watched)
        return address

    def start(self, *parts: Part) -> None:
        """Starts parts together, in their order, and waits until each of them is ready."""
        self._groups += 1
        group = [
            self._watch(
                ChildProcess(part, self._log_dir / f"{part.name}.log"), part.ready, self._groups
            )
            for part in parts
        ]
        self._screens += [
            LogOnScreen(self._log_dir / f"{part.name}.log", part.shown)
            for part in parts
            if part.shown is not None
        ]
        for watched in group:
            self._report(f"Starting {watched.part.name}")
            watched.part.start()
            self._started(watched)
        for watched in group:
            self._wait_until_ready(watched)
            self._report_ready(watched)

    def watch(self) -> None:
        """Restarts what dies, until Ctrl-C or SIGTERM."""
        while True:
            self._pause()
            for line in [line for screen in self._screens for line in screen.new_lines()]:
                self._report(line)
            for watched in self._watched:
                self._look_at(watched)

    def _watch(self, part: EmbeddedPart, ready: Callable[[], bool], group: int) -> _Watched:
        watched = _Watched(
            part=part,
            ready=ready,
            deaths=Deaths(self._restarts),
            started_at=time.monotonic(),
            group=group,
            log_from=size_of_log(part),
        )
        self._watched.append(watched)
        return watched

    def _started(self, watched: _Watched) -> None:
        watched.restart_at = None
        watched.pid = watched.part.pid
        if watched.pid is not None:
            self._leash(f"+ {watched.pid} {watched.part.stop_signal.value} {watched.group}")

    def _ended(self, watched: _Watched) -> None:
        if watched.pid is not None:
            self._leash(f"- {watched.pid}")
            watched.pid = None

    def _report_ready(self, watched: _Watched) -> None:
        took_s = time.monotonic() - watched.started_at
        self._report(f"{watched.part.name} is ready ({took_s:.1f} s)")

    def _wait_until_ready(self, watched: _Watched) -> None:
        part, say_at = watched.part, time.monotonic() + _STILL_WAITING_EVERY_S
        while not watched.ready():
            if (code := part.poll()) is not None:
                raise ProcessUnavailable(
                    f"{part.name} ended while starting ({how_it_ended(code)}). "
                    + end_of_log(part, watched.log_from, code)
                )
            now = time.monotonic()
            if now - watched.started_at > _READY_WITHIN_S:
                raise ProcessUnavailable(
                    f"{part.name} was not ready within {_READY_WITHIN_S:.0f} s. "
                    + end_of_log(part, watched.log_from)
                )
            if now > say_at:
                self._report(f"Still waiting for {part.name}; its log is {part.log_file}")
                say_at = now + _STILL_WAITING_EVERY_S
            self._pause()

    def _look_at(self, watched: _Watched) -> None:
        if watched.restart_at is not None:
            if time.monotonic() >= watched.restart_at:
                self._restart(watched)
        elif (code := watched.part.poll()) is not None:
            ending = end_of_log(watched.part, watched.log_from, code)
            self._report_exit(watched, f"died ({how_it_ended(code)}). {ending}")
        elif watched.returning and watched.ready():
            watched.returning = False
            self._report(f"{watched.part.name} is back")

    def _report_exit(self, watched: _Watched, what: str) -> None:
        """Reports a death and says when the part will be started again."""
        now = time.monotonic()
        delay_s = watched.deaths.delay_after(died_at=now, started_at=watched.started_at)
        watched.restart_at = now + delay_s
        watched.part.kill()  # what it left of its own children
        self._ended(watched)
        name = watched.part.name
        self._report(f"{name} {what}\nStarting {name} again in {delay_s:g} s")
        if watched.deaths.are_many_at(now):
            policy = self._restarts
            self._report(
                f"{name} died {policy.many} times within {policy.within_s:g} s: something is wrong "
                f"with it. Trying on every {policy.slowest_s:g} s. See {watched.part.log_file}"
            )

    def _restart(self, watched: _Watched) -> None:
        watched.started_at, watched.log_from = time.monotonic(), size_of_log(watched.part)
        try:
            with self._interruptible():
                watched.part.start()
        except ProcessUnavailable as error:
            self._report_exit(watched, f"could not be started: {error.message}")
            return
        self._started(watched)
        watched.returning = True

    def _stop_all(self) -> None:
        """Stops the parts, last started first; a signal meanwhile kills the rest at once."""
        at_once = False
        for _, group in groupby(reversed(self._watched), lambda watched: watched.group):
            together, began = list(group), time.monotonic()
            ran = [watched for watched in together if watched.part.pid is not None]
            if not at_once:
                for watched in ran:
                    watched.part.ask_to_stop()
            for watched in together:
                if not at_once:
                    at_once = self._stop_interrupted(watched.part)
                watched.part.kill()
                self._ended(watched)
                if watched in ran:
                    how = "killed" if at_once else f"stopped ({time.monotonic() - began:.1f} s)"
                    self._report(f"{watched.part.name} {how}")

    def _stop_interrupted(self, part: EmbeddedPart) -> bool:
        """Stops a part; tells whether a signal ended the wait for it."""
        try:
            with self._interruptible():
                part.stop()
        except _StopRequested:
            self._report("Killing what is left")
            return True
        return False

    def _pause(self) -> None:
        with self._interruptible():
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Lets a signal end the block at once; one that came earlier ends it before it begins."""
        self._may_interrupt = True
        try:
            if self._asked_to_stop:
                raise _StopRequested
            yield
        finally:
            self._may_interrupt = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._may_interrupt:
            self._may_interrupt = False
            raise _StopRequested
        self._asked_to_stop = True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        ours = (signal.SIGINT, signal.SIGTERM)
        previous = [signal.signal(number, self._on_signal) for number in ours]
        try:
            yield
        finally:
            for number, handler in zip(ours, previous, strict=True):
                signal.signal(number, handler)


@contextlib.contextmanager
def _claimed(data_dir: Path, report: Callable[[str], None]) -> Iterator[int]:
    """Holds the data directory, by a file that is locked; gives the file.

    The kernel lets go of it when we have ended, however we end, and our leash, too.
    """
    with (data_dir / "headwater.lock").open("a+", encoding="utf-8") as lock:
        deadline = time.monotonic() + _ENDED_WITHIN_S
        waits = False
        while not _locked(lock):
            lock.seek(0)
            owner = lock.read().strip()
            if _runs(owner) or time.monotonic() > deadline:
                raise ProcessUnavailable(
                    f"Headwater already runs on {data_dir} (pid {owner or 'unknown'}). Stop it "
                    "first, or choose another directory with --data-dir or HEADWATER_DATA_DIR."
                )
            if not waits:
                report(f"Waiting for the parts of a Headwater that was killed (pid {owner}) to end")
                waits = True
            time.sleep(_POLL_S)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield lock.fileno()


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _runs(pid: str) -> bool:
    """Whether the process that has locked a file still runs; one that is not named there might."""
    return not pid.isdecimal() or leash.runs(int(pid))


@contextlib.contextmanager
def _leash(claim: int) -> Iterator[Callable[[str], None]]:
    """Starts the program that outlives us if we are killed; yields how to tell it of a part.

    Shape:  it inherits the claim on our data directory, and so holds it for as long as it lives.
    """
    process = subprocess.Popen(  # noqa: S603 (our own module, by its path: it needs no imports)
        (sys.executable, "-I", "-S", leash.__file__),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(claim,),
        env={"PATH": os.defpath},  # Not ours, which has secrets.
    )
    assert process.stdin is not None  # noqa: S101 (a pipe was asked for)
    pipe = process.stdin.fileno()

    def tell(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed it; we still stop in order
            os.write(pipe, f"{line}\n".encode())

    try:
        yield tell
    finally:
        process.stdin.close()
        process.wait()
