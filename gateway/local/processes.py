"""Processes of the supervisor: children, servers that start themselves, and restarts."""

import contextlib
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from headwater.schemas.errors import ProcessUnavailable
from headwater.server_process import ServerProcess, last_lines, run_logged


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Capped exponential backoff, in seconds.

    The first restart is quick because most crashes are accidents. The cap keeps a broken process
    from filling its log while a developer repairs it, and is short enough that the repair takes
    effect soon.

    Attributes:
        first_s: Delay of the first restart.
        slowest_s: Longest delay.
        calm_after_s: A process that has run this long is healthy; earlier crashes are forgotten.
        many: This many crashes within `within_s` are reported as a problem, not as accidents.
        within_s: See `many`.
        first_start_s: A process that exits with an error this soon after its first start is
            misconfigured, and ends everything. 0 if its readiness shows that.
        hung_after_s: A process without a heartbeat for this long is killed and restarted. Twelve
            heartbeats of a gateway, so that a busy machine is no reason.
    """

    first_s: float = 0.5
    slowest_s: float = 10.0
    calm_after_s: float = 30.0
    many: int = 5
    within_s: float = 60.0
    first_start_s: float = 0.0
    hung_after_s: float = 60.0


class CrashHistory:
    """Crashes of one process that still count."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque(maxlen=policy.many)
        self._in_a_row = 0

    def delay_after(self, *, crashed_at: float, started_at: float) -> float:
        """Record a crash; return the seconds until the next start."""
        policy = self._policy
        if crashed_at - started_at >= policy.calm_after_s:
            self._times.clear()
            self._in_a_row = 0
        self._times.append(crashed_at)
        self._in_a_row += 1
        if self.are_many_at(crashed_at):
            return policy.slowest_s
        return min(policy.first_s * 2.0 ** (self._in_a_row - 1), policy.slowest_s)

    def are_many_at(self, now: float) -> bool:
        """Return whether recent crashes are so many that an operator should look."""
        many = len(self._times) == self._policy.many
        return many and now - self._times[0] <= self._policy.within_s


#: Seconds between two checks of a heartbeat, and how much of the time between them counts.
_CHECKED_EVERY_S: Final = 1.0
_COUNTED_MAX_S: Final = 2.0


class Heartbeat:
    """Detects that a process hangs: what it does regularly has stopped.

    Time in which we were suspended does not count: the process may have been suspended as well.

    Args:
        last: Returns when a process, by its id, last had a heartbeat; 0 if it never had one.
        hung_after_s: See `RestartPolicy`.
    """

    def __init__(self, last: Callable[[int], int], hung_after_s: float) -> None:
        self._last = last
        self._hung_after_s = hung_after_s
        self._known = (0, 0)
        self._checked_at_s = 0.0
        self._silent_s = 0.0

    def has_stopped(self, process_id: int, now_s: float) -> bool:
        """Return whether the process has made no progress for too long.

        Args:
            process_id: The process.
            now_s: Monotonic time.
        """
        passed_s = now_s - self._checked_at_s
        if passed_s < _CHECKED_EVERY_S:
            return False
        self._checked_at_s = now_s
        known = process_id, self._last(process_id)
        if known != self._known:
            self._known, self._silent_s = known, 0.0
        else:
            self._silent_s += min(passed_s, _COUNTED_MAX_S)
        return known[1] > 0 and self._silent_s >= self._hung_after_s


# -- processes

_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
#: The beginning of a line for people, and of one in JSON.
_OWN_LINE: Final = re.compile(rf"^{_TIME} ([A-Z]+) [\w.]+: ")
_JSON_LINE: Final = re.compile(rf'^{{"time": "{_TIME}", "level": "(\w+)", ')
#: Separates the origin of a host's line from the line.
_HOST_SEPARATOR: Final = " | "
_ROUTINE_LEVELS: Final = ("DEBUG", "INFO")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """Specification of a child process.

    Attributes:
        name: Name in messages.
        argv: Command line.
        env: Variables in addition to our own environment.
        ready: Returns at once whether the process is ready; False while it cannot be reached. None
            if that is not known.
        shown: Whether a line of its log is shown, with the lines that continue it.
        last_heartbeat: See `Heartbeat`; None if the process has none.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ready: Callable[[], bool] | None = None
    shown: Callable[[str], bool] | None = None
    last_heartbeat: Callable[[int], int] | None = None


#: Log of processes that write to our own stderr.
OUR_STDERR: Final = Path("/dev/stderr")


class ChildProcess(ServerProcess):
    """A process of Headwater's own; `ProcessSpec.ready` returns whether it is ready."""

    def __init__(self, spec: ProcessSpec, log_file: Path) -> None:
        super().__init__(spec.name, log_file, report=lambda _line: None)
        self.spec = spec
        if log_file != OUR_STDERR:
            with contextlib.suppress(FileNotFoundError):  # Keep one earlier log.
                log_file.replace(log_file.with_suffix(".log.1"))

    @override
    def start(self) -> str:
        """Start the process, without waiting."""
        environment = {**os.environ, **self.spec.env}
        try:
            if self.log_file == OUR_STDERR:
                # By its path, it could not be opened if it is a socket.
                self._process = subprocess.Popen(  # noqa: S603 (our own command lines)
                    self.spec.argv,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            else:
                self._process = run_logged(self.spec.argv, self.log_file, env=environment)
        except OSError as error:
            raise ProcessUnavailable(
                f"{self.name} could not be started: {error.strerror}: {error.filename}"
            ) from error
        return self.spec.name

    @override
    def kill(self) -> None:
        """Kill it and its own children, also after it ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        super().kill()


class LogFollower:
    """Follows a log, and returns the lines of it that are shown."""

    def __init__(self, file: Path, shown: Callable[[str], bool]) -> None:
        self._file = file
        self._shown = shown
        self._read = 0
        self._showing = False

    def new_lines(self) -> list[str]:
        """Return complete lines since the last call that are shown."""
        try:
            with self._file.open("rb") as log:
                log.seek(self._read)
                content = log.read()
        except FileNotFoundError:
            return []
        complete, _, _ = content.rpartition(b"\n")
        if not complete:
            return []
        self._read += len(complete) + 1
        lines = complete.decode("utf-8", "replace").splitlines()
        return [_OWN_LINE.sub("", line) for line in lines if self._is_shown(line)]

    def _is_shown(self, line: str) -> bool:
        # Lines of our own log begin with the time. Others continue the line before, or are a
        # host's, with their origin.
        if _level_of(line) or _HOST_SEPARATOR in line:
            self._showing = self._shown(line)
        return self._showing


def is_above_info(line: str) -> bool:
    """Return whether a log line is above INFO."""
    return _level_of(line) not in _ROUTINE_LEVELS


def _level_of(line: str) -> str | None:
    match = _OWN_LINE.match(line) or _JSON_LINE.match(line)
    return match and match.group(1).upper()


def exit_text(code: int) -> str:
    """Return an exit code as text."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def log_size(process: ServerProcess) -> int:
    """Return the size of a process's log, to know later what it wrote since."""
    if process.log_file == OUR_STDERR:
        return 0
    try:
        return process.log_file.stat().st_size
    except FileNotFoundError:
        return 0


def log_tail(process: ServerProcess, start: int, code: int | None = None) -> str:
    """Quote the end of what a process has logged since its start.

    Nothing is quoted of a process that was killed by SIGKILL: its last line may be hours old. Nor
    of one that logs to our stderr, where the lines are already.

    Args:
        process: The process.
        start: Size of its log when it was started.
        code: Its exit code.
    """
    if process.log_file == OUR_STDERR:
        return ""
    if code == -signal.SIGKILL:
        return f"Its log is {process.log_file}"
    lines = last_lines(process.log_file, start)
    quoted = "".join(f"\n  | {line}" for line in lines) or " has nothing."
    return f"Its log, {process.log_file},{' ends:' if lines else ''}{quoted}"
