"""A child process that serves: its start, readiness, log and stop.

It runs in a session of its own: Ctrl-C in a terminal reaches only its owner, which then stops it
in order. If the owner is killed, it survives, and the next owner stops it first.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from headwater.schemas.errors import ProcessUnavailable

HOST: Final = "127.0.0.1"
#: Below the ports that systems assign to outgoing connections, which could take one meanwhile.
_FREE_PORTS: Final = range(20_000, 32_000)
#: A start takes seconds; recovery after a power failure is what needs the minute.
_START_TIMEOUT_S: Final = 60.0
#: An orderly stop takes 2 s, and a worker finishes the step that it executes. A process that needs
#: more than this is stuck.
STOP_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.05
#: Lines of a log that an error message quotes.
_QUOTED_LINES: Final = 12


class ServerProcess(ABC):
    """A child process, started and stopped by its owner.

    Attributes:
        stop_signal: The signal that stops it in order.
        name: Name in messages.
        log_file: Its log.
    """

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, name: str, log_file: Path, report: Callable[[str], None]) -> None:
        self.name = name
        self.log_file = log_file
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        #: The process that was sent the stop signal: a second one may mean "at once".
        self._asked: subprocess.Popen[bytes] | None = None
        self._asked_at_s = 0.0
        self._stop_timeout_s = STOP_TIMEOUT_S

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @abstractmethod
    def start(self) -> str:
        """Start it unless it runs, wait until it answers, and return its address.

        Raises:
            ProcessUnavailable: It cannot be started; the message says what to do.
        """

    def ask_to_stop(self) -> None:
        """Send the signal that stops it, once, without waiting."""
        if self._process is not None and self._process is not self._asked:
            self._asked, self._asked_at_s = self._process, time.monotonic()
            self._process.send_signal(self.stop_signal)

    def stop(self) -> bool:
        """Stop it in order; kill it if that takes too long since the signal, which may be earlier.

        Returns:
            Whether it ended in time.
        """
        if self._process is None:
            return True
        self.ask_to_stop()
        in_time = True
        try:
            deadline_s = self._asked_at_s + self._stop_timeout_s
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            in_time = False
            self._report(
                f"{self._title} did not stop within {self._stop_timeout_s:.0f} s; killing it."
            )
        self.kill()
        return in_time

    def kill(self) -> None:
        """Kill it at once (SIGKILL), unless it has ended; `start` works on the same data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def poll(self) -> int | None:
        """Return the exit code if it ended by itself; None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def _title(self) -> str:
        return self.name.capitalize()

    def _wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_ready():
            if (code := self.poll()) is not None:
                self.kill()
                raise self._failure(f"died while starting (exit {code})")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"did not answer within {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _failure(self, problem: str, *more_logs: Path) -> ProcessUnavailable:
        lines = [line for file in (*more_logs, self.log_file) for line in last_lines(file)]
        ending = "\n".join(f"  {line}" for line in lines) or "  nothing"
        return ProcessUnavailable(
            f"{self._title} {problem}. Its log is {self.log_file}; last lines:\n{ending}"
        )

    def _stop_stale(self, pid: int, is_running: Callable[[], bool]) -> bool:
        """Stop a server whose owner was killed; return whether it ended in time."""
        self._report(f"Stopping the {self._title} of an earlier run (pid {pid})")
        try:
            os.kill(pid, self.stop_signal)
        except ProcessLookupError:
            return True  # It ended by itself meanwhile.
        return wait_until(lambda: not is_running(), STOP_TIMEOUT_S)

    def _refuse_taken_port(self, port: int) -> None:
        try:
            # As the servers do: reuse an address while connections of a stopped one fade out.
            socket.create_server((HOST, port)).close()
        except OSError as error:
            raise ProcessUnavailable(
                f"{self._title} cannot listen on {HOST}:{port}: {os.strerror(error.errno or 0)}. "
                f"Usual cause: another {self._title} or another Headwater runs here. Stop it, or "
                f"choose a port with --{self.name}-port or HEADWATER_{self.name.upper()}_PORT "
                "(0 takes a free one)."
            ) from error


def run_logged(
    argv: Sequence[str],
    log: Path,
    mode: Literal["ab", "wb"] = "ab",
    *,
    env: Mapping[str, str],
    **options: Any,  # noqa: ANN401 (those of Popen)
) -> subprocess.Popen[bytes]:
    """Run a program in a session of its own, with its output in a log that only we may read."""
    with open(log, mode, opener=partial(os.open, mode=0o600)) as output:
        process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 (our own command lines)
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )
    return process


def last_lines(log: Path, start: int = 0) -> list[str]:
    """Return the last lines of a log; only what was written after `start` bytes."""
    content = log.read_bytes() if log.exists() else b""
    since = content[start:] if start <= len(content) else content  # A shorter log was begun again.
    return since.decode("utf-8", "replace").splitlines()[-_QUOTED_LINES:]


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def command_of(pid: int, part: Literal["comm", "command"] = "command") -> str:
    """Return the command line of a process, or its program's name; empty if it has ended."""
    if Path("/proc/self/cmdline").exists():
        file = Path(f"/proc/{pid}/{'comm' if part == 'comm' else 'cmdline'}")
        try:
            return file.read_bytes().replace(b"\0", b" ").decode().strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    command = ("/bin/ps", "-ww", "-p", str(pid), "-o", f"{part}=")  # macOS has no /proc
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed command)
    return done.stdout.strip()


def free_port() -> int:
    """Return a port that no process listens on."""
    while True:
        port = secrets.choice(_FREE_PORTS)
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            return port
