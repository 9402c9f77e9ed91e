"""Supervisor of `headwater up` and of `--processes`: starts, watches, restarts, stops processes.

Rules:
1. One thread. Processes are started, watched and stopped by the same loop, so their state is
   consistent.
2. A signal never interrupts bookkeeping. Its handler raises only where a wait allows it
   (`_interruptible`), and otherwise records the signal for the next such wait. The start of a
   server is a wait; one that is interrupted may leave the server, which its next start finds.
3. A process that fails its first start ends everything with one message: it is misconfigured. A
   process that crashes later is restarted indefinitely: the cause was temporary. Without a sign
   of readiness, a first start fails by an exit with an error within `RestartPolicy.first_start_s`.
   Code 78 ends everything at any time: another process has the name, and a restart would end it.
   A process whose heartbeat stops is killed and restarted like one that crashed.
4. Every process has a session of its own. Only the supervisor receives Ctrl-C, and stops the
   processes in reverse order: processes that were started together stop together, and the servers,
   which are independent, last.
5. No process outlives us: `gateway.local.reaper` ends them if we are killed. It holds our lock on
   the data directory until then; the next supervisor waits for that.
6. Without a data directory there is no lock, and the processes write to our stderr.
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
from typing import Final, Self, TextIO

from headwater.gateway.local import reaper
from headwater.gateway.local.processes import (
    OUR_STDERR,
    ChildProcess,
    CrashHistory,
    Heartbeat,
    LogFollower,
    ProcessSpec,
    RestartPolicy,
    exit_text,
    log_size,
    log_tail,
)
from headwater.gateway.settings.privacy import make_private_folder
from headwater.schemas.errors import ProcessUnavailable
from headwater.server_process import ServerProcess

#: Seconds that a process may take until it is first ready; a cold start takes 1 s here.
_READY_TIMEOUT_S = 60.0
#: Seconds between checks of the processes: the longest time until a crash is noticed.
_POLL_S = 0.1
#: Seconds between messages while waiting.
_STILL_WAITING_EVERY_S = 5.0
#: Seconds that processes of a killed supervisor may take to end: twice the reaper's timeout.
_ORPHANS_TIMEOUT_S = 30.0


#: EX_CONFIG of sysexits.h: another process has the name of a worker.
_FENCED: Final = os.EX_CONFIG
#: Group of the servers.
_SERVERS: Final = 0


class ProcessFailed(ProcessUnavailable):
    """A process exited with an error that a restart does not solve."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _StopRequested(BaseException):
    """Ctrl-C or SIGTERM. Not an Exception, so that error handling does not catch it."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    """State of a process in the loop."""

    process: ServerProcess
    ready: Callable[[], bool] | None
    deaths: CrashHistory
    started_at: float
    #: Processes of a group stop together.
    group: int
    #: Size of its log when it was last started.
    log_from: int
    #: Process id that was sent to the reaper.
    pid: int | None = None
    #: Time of its next start; None while it runs.
    restart_at: float | None = None
    restarted: bool = False
    #: Restarted, but not known to be ready yet.
    returning: bool = False
    heartbeat: Heartbeat | None = None


class Supervisor:
    """Starts and watches processes, and stops them when the `with` block ends, however it ends.

    ```
    with Supervisor(data_dir=..., report=...) as supervisor:
        bootstrap = supervisor.start_embedded(kafka)
        supervisor.start(gateway, worker)
        supervisor.watch()
    ```

    Attributes:
        stopped_in_order: False once a process had to be killed to stop it.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        report: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
        restarts: RestartPolicy | None = None,
    ) -> None:
        self.stopped_in_order = True
        self._data_dir = data_dir.absolute() if data_dir else None
        self._report = report
        self._warn = warn or report
        self._restarts = restarts or RestartPolicy()
        self._watched: list[_Watched] = []
        self._groups = _SERVERS
        self._screens: list[LogFollower] = []
        self._exit = contextlib.ExitStack()
        self._may_interrupt = False
        self._stop_requested = False

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            claim = None
            if self._data_dir:
                make_private_folder(self._data_dir / "logs", self._data_dir)
                claim = exits.enter_context(_claimed(self._data_dir, self._report))
            self._reaper = exits.enter_context(_reaper(claim))
            exits.enter_context(self._signals())
            self._exit = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> bool:
        self._stop_requested = False  # From here on, a signal means "at once".
        try:
            self._stop_all()
        finally:
            self._exit.close()
        return kind is not None and issubclass(kind, _StopRequested)

    def start_embedded(self, process: ServerProcess) -> str:
        """Start a server and watch it; return its address."""
        watched = self._watch(process, ready=lambda: True, group=_SERVERS)
        self._report(f"Starting {process.name}")
        with self._interruptible():
            address = process.start()
        self._started(watched)
        self._report_ready(watched)
        return address

    def start(self, *specs: ProcessSpec) -> None:
        """Start processes in order, and wait until all of them are ready."""
        self._groups += 1
        group = []
        for spec in specs:
            process = ChildProcess(spec, self._log_of(spec))
            watched = self._watch(process, spec.ready, self._groups)
            if spec.last_heartbeat is not None:
                hung_after_s = self._restarts.hung_after_s
                watched.heartbeat = Heartbeat(spec.last_heartbeat, hung_after_s)
            group.append(watched)
            if spec.shown is not None:
                self._screens.append(LogFollower(process.log_file, spec.shown))
        for watched in group:
            self._report(f"Starting {watched.process.name}")
            watched.process.start()
            self._started(watched)
        for watched in group:
            if watched.ready is not None:
                self._wait_until_ready(watched, watched.ready)
                self._report_ready(watched)

    def watch(self) -> None:
        """Restart processes that crash, until Ctrl-C or SIGTERM."""
        while True:
            self._pause()
            for line in [line for screen in self._screens for line in screen.new_lines()]:
                self._report(line)
            for watched in self._watched:
                self._look_at(watched)

    def _log_of(self, spec: ProcessSpec) -> Path:
        return self._data_dir / "logs" / f"{spec.name}.log" if self._data_dir else OUR_STDERR

    def _watch(
        self, process: ServerProcess, ready: Callable[[], bool] | None, group: int
    ) -> _Watched:
        watched = _Watched(
            process=process,
            ready=ready,
            deaths=CrashHistory(self._restarts),
            started_at=time.monotonic(),
            group=group,
            log_from=log_size(process),
        )
        self._watched.append(watched)
        return watched

    def _started(self, watched: _Watched) -> None:
        watched.restart_at = None
        watched.pid = watched.process.pid
        if watched.pid is not None:
            self._reaper(f"+ {watched.pid} {watched.process.stop_signal.value} {watched.group}")
        if watched.ready is None:
            self._report(f"{watched.process.name} is running (pid {watched.pid})")

    def _ended(self, watched: _Watched) -> None:
        if watched.pid is not None:
            self._reaper(f"- {watched.pid}")
            watched.pid = None

    def _report_ready(self, watched: _Watched) -> None:
        took_s = time.monotonic() - watched.started_at
        self._report(f"{watched.process.name} is ready ({took_s:.1f} s)")

    def _wait_until_ready(self, watched: _Watched, ready: Callable[[], bool]) -> None:
        process, say_at = watched.process, time.monotonic() + _STILL_WAITING_EVERY_S
        while not ready():
            if (code := process.poll()) is not None:
                self._check_restart_helps(watched, code)
                raise ProcessUnavailable(
                    f"{process.name} ended while starting ({exit_text(code)}). "
                    + log_tail(process, watched.log_from, code)
                )
            now = time.monotonic()
            if now - watched.started_at > _READY_TIMEOUT_S:
                raise ProcessUnavailable(
                    f"{process.name} was not ready within {_READY_TIMEOUT_S:.0f} s. "
                    + log_tail(process, watched.log_from)
                )
            if now > say_at:
                self._report(f"Still waiting for {process.name}; its log is {process.log_file}")
                say_at = now + _STILL_WAITING_EVERY_S
            self._pause()

    def _look_at(self, watched: _Watched) -> None:
        if watched.restart_at is not None:
            if time.monotonic() >= watched.restart_at:
                self._restart(watched)
        elif (code := watched.process.poll()) is not None:
            self._check_restart_helps(watched, code)
            ending = log_tail(watched.process, watched.log_from, code)
            verb = "died" if code else "ended"
            self._report_exit(watched, f"{verb} ({exit_text(code)}). {ending}".rstrip())
        elif self._hangs(watched):
            self._report_exit(
                watched, f"makes no progress for {self._restarts.hung_after_s:g} s and is killed"
            )
        elif watched.returning and watched.ready and watched.ready():
            watched.returning = False
            self._report(f"{watched.process.name} is back")

    def _hangs(self, watched: _Watched) -> bool:
        heartbeat, pid = watched.heartbeat, watched.pid
        if heartbeat is None or pid is None:
            return False
        return heartbeat.has_stopped(pid, time.monotonic())

    def _check_restart_helps(self, watched: _Watched, code: int) -> None:
        """Raise `ProcessFailed` if it does not: after a failed first start, or without the name."""
        within_s = self._restarts.first_start_s
        since_s = time.monotonic() - watched.started_at
        if code == _FENCED:
            when, cause = "", "another process has its name (HEADWATER_MEMBER)"
        elif code > 0 and not watched.restarted and since_s < within_s:
            when, cause = f"within {within_s:g} s of its first start ", "its settings or arguments"
        else:
            return
        ending = log_tail(watched.process, watched.log_from, code)
        raise ProcessFailed(
            f"{watched.process.name} ended {when}({exit_text(code)}); usual cause: {cause}. "
            f"{ending}".rstrip(),
            code,
        )

    def _report_exit(self, watched: _Watched, what: str) -> None:
        """Report a crash, and when the process will be restarted."""
        now = time.monotonic()
        delay_s = watched.deaths.delay_after(crashed_at=now, started_at=watched.started_at)
        watched.restart_at = now + delay_s
        watched.process.kill()  # Its own children may be left.
        self._ended(watched)
        name = watched.process.name
        self._warn(f"{name} {what}")
        self._warn(f"Starting {name} again in {delay_s:g} s")
        if watched.deaths.are_many_at(now):
            policy = self._restarts
            self._warn(
                f"{name} died {policy.many} times within {policy.within_s:g} s: something is wrong "
                f"with it. Retrying every {policy.slowest_s:g} s. "
                f"See {watched.process.log_file if self._data_dir else 'its lines above'}"
            )

    def _restart(self, watched: _Watched) -> None:
        watched.started_at, watched.log_from = time.monotonic(), log_size(watched.process)
        watched.restarted = True
        # Others do not wait; a signal between their fork and our knowledge of it would leave them.
        is_server = watched.group == _SERVERS
        try:
            with self._interruptible() if is_server else contextlib.nullcontext():
                watched.process.start()
        except ProcessUnavailable as error:
            self._report_exit(watched, f"could not be started: {error.message}")
            return
        self._started(watched)
        watched.returning = True

    def _stop_all(self) -> None:
        """Stop the processes, last started first; a signal meanwhile kills the rest at once."""
        at_once = False
        for _, group in groupby(reversed(self._watched), lambda watched: watched.group):
            together, began = list(group), time.monotonic()
            ran = [watched for watched in together if watched.process.pid is not None]
            if not at_once:
                for watched in ran:
                    watched.process.ask_to_stop()
            for watched in together:
                stopped = False
                if not at_once:
                    stopped, at_once = self._stop(watched.process)
                watched.process.kill()
                self._ended(watched)
                if watched in ran:
                    self.stopped_in_order &= stopped
                    took_s = time.monotonic() - began
                    how = f"stopped ({took_s:.1f} s)" if stopped else "killed"
                    self._report(f"{watched.process.name} {how}")

    def _stop(self, process: ServerProcess) -> tuple[bool, bool]:
        """Stop a process; return whether it ended in time, and whether a signal ended the wait."""
        try:
            with self._interruptible():
                return process.stop(), False
        except _StopRequested:
            self._report("Killing the remaining processes")
            return False, True

    def _pause(self) -> None:
        with self._interruptible():
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let a signal end the block at once; an earlier signal ends it before it begins."""
        self._may_interrupt = True
        try:
            if self._stop_requested:
                raise _StopRequested
            yield
        finally:
            self._may_interrupt = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._may_interrupt:
            self._may_interrupt = False
            raise _StopRequested
        self._stop_requested = True

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
    """Lock the data directory by a file; yield the file.

    The kernel releases the lock when we and our reaper have ended.
    """
    with (data_dir / "headwater.lock").open("a+", encoding="utf-8") as lock:
        deadline = time.monotonic() + _ORPHANS_TIMEOUT_S
        waits = False
        while not _locked(lock):
            lock.seek(0)
            owner = lock.read().strip()
            if _owner_is_running(owner) or time.monotonic() > deadline:
                raise ProcessUnavailable(
                    f"Headwater already runs on {data_dir} (pid {owner or 'unknown'}). Stop it "
                    "first, or choose another directory with --data-dir or HEADWATER_DATA_DIR."
                )
            if not waits:
                report(f"Waiting for processes of a killed Headwater (pid {owner}) to end")
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


def _owner_is_running(pid: str) -> bool:
    """Return whether the owner of a lock is running; an unknown owner counts as running."""
    return not pid.isdecimal() or reaper.is_running(int(pid))


@contextlib.contextmanager
def _reaper(claim: int | None) -> Iterator[Callable[[str], None]]:
    """Start the program that outlives us if we are killed; yield a function that sends it a line.

    It inherits the lock on our data directory, if there is one, and holds it while it lives.
    """
    process = subprocess.Popen(  # noqa: S603 (our own module, by its path: it needs no imports)
        (sys.executable, "-I", "-S", reaper.__file__),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=() if claim is None else (claim,),
        env={"PATH": os.defpath},  # Not ours, which contains secrets.
    )
    assert process.stdin is not None  # noqa: S101 (it is a pipe)
    pipe = process.stdin.fileno()

    def send(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # It was killed; we still stop in order.
            os.write(pipe, f"{line}\n".encode())

    try:
        yield send
    finally:
        process.stdin.close()
        process.wait()
