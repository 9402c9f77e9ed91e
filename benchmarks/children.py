"""Child processes of a benchmark: started, listened to, held, let go and stopped.

A child that reports does so on its standard output, one JSON object a line. Its errors go to a log
file, whose last lines a failure quotes.
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

#: A child finishes the batch it is in; one that needs longer is stuck.
_STOP_WITHIN_S: Final = 15.0
_QUOTED_LINES: Final = 12

Message = dict[str, Any]


class BenchmarkFailed(Exception):
    """Nothing could be measured; says why."""


class Child:
    """One process, `python -m MODULE ARGUMENTS`, in a session of its own."""

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
            # Its own session: Ctrl-C reaches the benchmark alone, which then stops its children.
            self._process = subprocess.Popen(
                (python, "-m", *arguments),
                env={**os.environ, **(variables or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Stock Faust's spinner leaves control characters in front.
            _, brace, rest = line.partition(b"{")
            if brace:
                self._reports.put((time.perf_counter(), json.loads(brace + rest)))
        self._reports.put((time.perf_counter(), None))

    def expect(self, field: str, *, within_s: float) -> tuple[float, Message]:
        """Waits for a report that has a field; returns when it arrived, and the report.

        Errors: BenchmarkFailed when the child ends or the time is over.
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
        """Makes sure that the child still runs.

        Errors: BenchmarkFailed.
        """
        if self._process.poll() is not None:
            raise self.failure(f"ended (exit {self._process.returncode})")

    def failure(self, what: str) -> BenchmarkFailed:
        """Says what went wrong, with the end of the child's log."""
        lines = self._log_file.read_text("utf-8", "replace").splitlines()[-_QUOTED_LINES:]
        said = "\n".join(f"  {line}" for line in lines) or "  nothing"
        return BenchmarkFailed(f"{self.name} {what}; it said last:\n{said}")

    def tell(self, line: str) -> None:
        """Writes a line to the child's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def hold(self) -> None:
        """Suspends the process, threads and all."""
        self._process.send_signal(signal.SIGSTOP)

    def let_go(self) -> None:
        """Lets the process run on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process as a crash would."""
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """Tells the process to end, without waiting for it."""
        if self._process.poll() is None:
            self.let_go()
            self._process.terminate()

    def stop(self) -> None:
        """Ends the process in order, or by force if it takes too long."""
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
