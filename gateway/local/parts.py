"""What the supervisor runs: our own parts as child processes, and servers that start themselves."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from headwater.schemas.errors import ProcessUnavailable

__all__ = ["ChildProcess", "EmbeddedPart", "Part", "end_of_log", "how_it_ended", "size_of_log"]

#: How long a part may take to stop: a worker finishes the step it is in.
_STOP_WITHIN_S = 15.0
_OWN_LINE: Final = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) [\w.]+: ")
#: Stands between whose a line of a host is, and the line.
_SAYS: Final = " | "
_NEWS: Final = ("DEBUG", "INFO")
#: Lines of a log that a message about a death quotes.
_QUOTED_LINES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A child process of ours.

    `env` adds to our own environment. `ready` answers at once, and answers False rather than
    raising while the part cannot be reached. Lines of its log are shown to people if `shown` says
    so of the line that they begin, or go on with.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ready: Callable[[], bool]
    shown: Callable[[str], bool] | None = None


class EmbeddedPart(Protocol):
    """What the supervisor needs of a server that starts and stops itself."""

    #: The signal by which it stops in order.
    stop_signal: signal.Signals

    @property
    def name(self) -> str:
        """The name its messages carry."""

    @property
    def pid(self) -> int | None:
        """Its first process, while it runs."""

    @property
    def log_file(self) -> Path:
        """Where it logs."""

    def start(self) -> str:
        """Starts it, waits until it answers, and returns where."""

    def ask_to_stop(self) -> None:
        """Sends it the signal by which it stops, and waits for nothing."""

    def stop(self) -> None:
        """Stops it in order; it may have been asked to before."""

    def kill(self) -> None:
        """Ends it at once; also called for one that ended already."""

    def poll(self) -> int | None:
        """Returns the exit code once it died by itself."""


class ChildProcess:
    """A `Part` in the shape of an `EmbeddedPart`, so that the supervisor knows one kind only."""

    stop_signal = signal.SIGTERM

    def __init__(self, part: Part, log_file: Path) -> None:
        self.part = part
        self.log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        #: A part may take a second signal for "at once".
        self._asked = False
        with contextlib.suppress(FileNotFoundError):  # the previous run's log is kept, once
            log_file.replace(log_file.with_suffix(".log.1"))

    @property
    def name(self) -> str:
        """The name its messages and its log carry."""
        return self.part.name

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> str:
        """Starts the process; whether it is ready is for `Part.ready` to say."""
        try:
            with open(self.log_file, "ab", opener=_private) as log:
                self._process, self._asked = self._launch(log), False
        except OSError as error:
            raise ProcessUnavailable(
                f"{self.name} could not be started: {error.strerror}: {error.filename}"
            ) from error
        return self.part.name

    def _launch(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 (the caller's own command line)
            self.part.argv,
            env={**os.environ, **self.part.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ask_to_stop(self) -> None:
        """Sends SIGTERM, once."""
        if self._process is not None and not self._asked:
            self._asked = True
            self._process.terminate()

    def stop(self) -> None:
        """Stops it by SIGTERM, and by SIGKILL if it takes too long."""
        self.ask_to_stop()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_WITHIN_S)
        self.kill()

    def kill(self) -> None:
        """Ends it, and what it started, at once."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its own children, too
        self._process.wait()

    def poll(self) -> int | None:
        """Returns the exit code once it ended."""
        return self._process.poll() if self._process else None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class LogOnScreen:
    """Follows a log: those of its lines that are for people."""

    def __init__(self, file: Path, shown: Callable[[str], bool]) -> None:
        self._file = file
        self._shown = shown
        self._read = 0
        self._showing = False

    def new_lines(self) -> list[str]:
        """The lines since the last call that are ended, and to be shown."""
        try:
            with self._file.open("rb") as log:
                log.seek(self._read)
                found = log.read()
        except FileNotFoundError:
            return []
        ended, _, _ = found.rpartition(b"\n")
        if not ended:
            return []
        self._read += len(ended) + 1
        lines = ended.decode("utf-8", "replace").splitlines()
        return [_OWN_LINE.sub("", line) for line in lines if self._is_for(line)]

    def _is_for(self, line: str) -> bool:
        # What our own log says begins with the time; what does not goes on with what was before,
        # or is of a host, and says whose.
        if _OWN_LINE.match(line) or _SAYS in line:
            self._showing = self._shown(line)
        return self._showing


def says_more_than_news(line: str) -> bool:
    """Whether a line of a part's log is more than what goes on as it should."""
    own = _OWN_LINE.match(line)
    return own is None or own.group(1) not in _NEWS


def how_it_ended(code: int) -> str:
    """Says an exit code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def size_of_log(part: EmbeddedPart) -> int:
    """How much there is of a part's log: what it writes from now on comes after that."""
    try:
        return part.log_file.stat().st_size
    except FileNotFoundError:
        return 0


def end_of_log(part: EmbeddedPart, start: int, code: int | None = None) -> str:
    """Quotes the end of a part's log, of what it wrote since its start.

    Shape:  nothing is quoted of one that was killed by SIGKILL: it could not say so, and what it
            said last may be hours old.
    """
    if code == -signal.SIGKILL:
        return f"Its log is {part.log_file}"
    try:
        log = part.log_file.read_bytes()
    except FileNotFoundError:
        log = b""
    since = log[start:] if start <= len(log) else log  # a shorter one was begun anew
    lines = since.decode("utf-8", "replace").splitlines()[-_QUOTED_LINES:]
    quoted = "".join(f"\n  | {line}" for line in lines) or " has nothing."
    return f"Its log, {part.log_file},{' ends:' if lines else ''}{quoted}"
