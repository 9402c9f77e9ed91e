"""Child processes of a benchmark: started, read, suspended, resumed and stopped.

A child reports on its standard output, one JSON object per line. Its errors go to a log file.
A failure quotes its last lines.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

#: A child finishes its current batch; one that needs longer is stuck.
_STOP_WITHIN_S: Final = 15.0
_QUOTED_LINES: Final = 12

Message = dict[str, Any]


class BenchmarkFailed(Exception):
    """The measurement failed; the message states why."""


class Child:
    """A process, `python -m MODULE ARGUMENTS`, in a session of its own."""

    def __init__(
        self,
        name: str,
        *arguments: str,
        logs: Path,
        variables: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self._log_file = logs / f"{name.replace(' ', '-')}.log"
        self._reports: queue.Queue[tuple[float, Message | None]] = queue.Queue()
        with self._log_file.open("ab") as log:
            # Its own session: Ctrl-C reaches only the benchmark, which then stops its children.
            self._process = subprocess.Popen(
                (python, "-m", *arguments),
                env={**os.environ, **(variables or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._read_reports, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def _read_reports(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Stock Faust's spinner writes control characters first.
            _, brace, rest = line.partition(b"{")
            if brace:
                self._reports.put((time.perf_counter(), json.loads(brace + rest)))
        self._reports.put((time.perf_counter(), None))

    def expect(self, field: str, *, within_s: float) -> tuple[float, Message]:
        """Wait for a report that has a field; return when it arrived, and the report.

        Raises:
            BenchmarkFailed: The child exited, or the time is over.
        """
        deadline = time.monotonic() + within_s
        while True:
            try:
                at, report = self._reports.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self.failure(f"did not report {field!r} within {within_s:.0f} s") from None
            if report is None:
                raise self.failure("ended too early")
            if field in report:
                return at, report

    def check(self) -> None:
        """Check that the child is still running.

        Raises:
            BenchmarkFailed: It has exited.
        """
        if self._process.poll() is not None:
            raise self.failure(f"ended (exit {self._process.returncode})")

    def failure(self, what: str) -> BenchmarkFailed:
        """Return an error with the end of the child's log."""
        lines = self._log_file.read_text("utf-8", "replace").splitlines()[-_QUOTED_LINES:]
        quoted = "\n".join(f"  {line}" for line in lines) or "  nothing"
        return BenchmarkFailed(f"{self.name} {what}; last lines:\n{quoted}")

    def send_line(self, line: str) -> None:
        """Write a line to the child's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def suspend(self) -> None:
        """Suspend the process."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """Request the process to stop, without waiting for it."""
        if self._process.poll() is None:
            self.resume()
            self._process.terminate()

    def stop(self) -> None:
        """Stop the process in order, or by force if it takes too long."""
        if self._process.poll() is None:
            self.ask_to_stop()
            try:
                self._process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
