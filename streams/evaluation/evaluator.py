"""An evaluator that runs tasks in a process with time and memory limits."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from itertools import count
from typing import IO, TYPE_CHECKING, Final

import msgspec

from headwater.processors.cel_programs import NO_MEMORY
from headwater.processors.evaluations import EvaluationProblem, SharedValues, Task, TaskOutcome
from headwater.processors.task_runner import TaskRequest, TaskResponse, decode, keep_shared
from headwater.streams.evaluation.frames import LENGTH_BYTES, READY, decode_response, framed

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB: Final = 1024 * 1024
#: A process has to import the expression library, on a machine that may be busy.
_START_S: Final = 30.0
_READ: Final = _MIB
#: A process that exits unexpectedly is replaced once per task.
_ATTEMPTS: Final = 2


class EvaluationLimits(msgspec.Struct, frozen=True):
    """Limits of one task."""

    #: Processor time. A busy machine stops no task.
    cpu_s: float = 0.25
    #: Time after which the process is considered hung.
    wall_s: float = 5.0
    memory_mib: int = 256


#: For deliveries: a body may have 10 MiB, and the process parses it.
DELIVERY_LIMITS: Final = EvaluationLimits(cpu_s=5.0, wall_s=20.0, memory_mib=768)


class _Exited(Exception):
    """The process has exited, or returned an invalid response."""


class _TimedOut(Exception):
    """The process has not answered in time."""


class EvaluatorProcess:
    """Runs tasks in a process; may be called from any thread, one task at a time."""

    def __init__(self, limits: EvaluationLimits = EvaluationLimits()) -> None:  # noqa: B008, frozen
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] | None = None
        self._ready = False
        self._keys = count(1)
        #: Shared values that the process keeps, by their keys.
        self._shared: dict[int, SharedValues] = {}

    def start(self) -> None:
        """Start the process ahead of the first task, without waiting for it."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def __call__(self, task: Task, shared: SharedValues | None = None) -> TaskOutcome:
        """Run a task within the limits."""
        with self._lock:
            reason = ""
            for _ in range(_ATTEMPTS):
                try:
                    return self._outcome(self._send(task, shared))
                except _TimedOut:
                    self._stop()
                    return self._slow()
                except (_Exited, OSError, msgspec.MsgspecError) as error:
                    self._stop()
                    reason = f"{error}"
            message = f"the process that evaluates expressions has ended: {reason}"
            return TaskOutcome(EvaluationProblem(message), 0)

    def _outcome(self, response: TaskResponse | int) -> TaskOutcome:
        if isinstance(response, int):
            self._shared.clear()
            return self._slow() if response == signal.SIGPROF else self._large()
        if response.last:
            self._shared.clear()
        if response.problem is None:
            return TaskOutcome(decode(response.value or b"null"), response.cpu_ns)
        if response.problem.message == NO_MEMORY:
            return self._large()
        return TaskOutcome(response.problem, response.cpu_ns)

    def _slow(self) -> TaskOutcome:
        message = (
            f"expected an evaluation that takes at most {self._limits.cpu_s:g} s of processor "
            "time, it takes longer; evaluate less, or over less data"
        )
        return TaskOutcome(EvaluationProblem(message), int(self._limits.cpu_s * 1e9))

    def _large(self) -> TaskOutcome:
        message = (
            f"expected an evaluation that takes at most {self._limits.memory_mib} MiB of memory, "
            "it takes more; evaluate less, or over less data"
        )
        return TaskOutcome(EvaluationProblem(message), int(self._limits.cpu_s * 1e9))

    def _send(self, task: Task, shared: SharedValues | None) -> TaskResponse | int:
        process = self._started()
        if not self._ready:
            if self._read(process, time.monotonic() + _START_S) != READY:
                raise _Exited("it did not start correctly")
            self._ready = True
        deadline = time.monotonic() + self._limits.wall_s
        self._write(process, framed(self._request(task, shared)), deadline)
        return self._read(process, deadline)

    def _request(self, task: Task, shared: SharedValues | None) -> TaskRequest:
        if shared is None:
            return TaskRequest(task)
        for key, kept in self._shared.items():
            if kept is shared:
                return TaskRequest(task, key)
        key = next(self._keys)
        keep_shared(self._shared, key, shared, len(shared.text))
        return TaskRequest(task, key, shared.text)

    # -- the process

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            limits = self._limits
            command = [sys.executable, "-m", "headwater.streams.evaluation"]
            self._process = subprocess.Popen(  # noqa: S603 (our own module)
                [*command, str(limits.cpu_s), str(limits.memory_mib * _MIB)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            for pipe in _pipes(self._process):
                os.set_blocking(pipe.fileno(), False)
            self._end = weakref.finalize(self, _end, self._process)
        return self._process

    def _stop(self) -> None:
        self._process, self._ready = None, False
        self._shared.clear()
        if self._end is not None:
            self._end()

    def _write(self, process: "subprocess.Popen[bytes]", frame: bytes, deadline: float) -> None:
        to = _pipes(process)[0].fileno()
        view = memoryview(frame)
        while view:
            try:
                view = view[os.write(to, view) :]
            except BlockingIOError:
                _await(to, select.POLLOUT, deadline)

    def _read(self, process: "subprocess.Popen[bytes]", deadline: float) -> TaskResponse | int:
        size = int.from_bytes(self._bytes(process, LENGTH_BYTES, deadline), "big")
        response: TaskResponse | int = decode_response(self._bytes(process, size, deadline))
        return response

    def _bytes(self, process: "subprocess.Popen[bytes]", size: int, deadline: float) -> bytes:
        source = _pipes(process)[1].fileno()
        parts = bytearray()
        while len(parts) < size:
            try:
                part = os.read(source, min(size - len(parts), _READ))
            except BlockingIOError:
                _await(source, select.POLLIN, deadline)
                continue
            if not part:
                raise _Exited(f"exit code {process.wait()}")
            parts += part
        return bytes(parts)


def _await(pipe: int, events: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pipe, events)
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0 or not poll.poll(remaining_s * 1_000):
        raise _TimedOut


def started_evaluator(limits: EvaluationLimits = EvaluationLimits()) -> EvaluatorProcess:  # noqa: B008, frozen
    """Return an evaluator, and start its process ahead of the first task."""
    evaluator = EvaluatorProcess(limits)
    evaluator.start()
    return evaluator


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
    return process.stdin, process.stdout


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its child."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in _pipes(process):
        pipe.close()
    process.wait()
