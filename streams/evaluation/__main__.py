"""The evaluator: reads tasks from standard input, and writes results to standard output.

A single-threaded process forks a child that runs tasks. The kernel kills the child if a task
exceeds its processor time; a child that runs out of memory exits, or is killed. The parent then
reports that instead of a result, and forks again, which takes a millisecond.
"""

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from headwater.processors.cel_programs import NO_MEMORY, ResultKind
from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.expressions import Expression, ExpressionValues
from headwater.processors.task_runner import TaskResponse, TaskRunner, failure_of
from headwater.streams.evaluation.frames import LENGTH_BYTES, READY, decode_request, framed

#: Tasks after which a new child is forked: the expression library keeps some names for good.
_TASKS_MAX: Final = 20_000
#: Exit code of a child that is to be replaced.
_AGAIN: Final = 3
_PIPE_READ: Final = 1024 * 1024


def main() -> None:
    """Serve until standard input ends."""
    cpu_s, memory = float(sys.argv[1]), int(sys.argv[2])
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)  # The parent ends it by closing its input.
    # Loads the library before the forks; without the extra `graphs`, there are schemas only.
    with suppress(ModuleNotFoundError):
        Expression("event.a", ResultKind.VALUE).evaluate(ExpressionValues({"event": {"a": 1}}))
    _write(framed(READY))
    while True:
        pid = os.fork()
        if pid == 0:
            _limit_memory(memory)
            os._exit(_serve(cpu_s))
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            _write(framed(os.WTERMSIG(status)))
        elif os.waitstatus_to_exitcode(status) != _AGAIN:
            return


def _limit_memory(memory: int) -> None:
    """Limit memory to `memory` bytes more than the process has at its start."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return  # Only Linux limits the address space.
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(cpu_s: float) -> int:
    runner = TaskRunner()
    for number in range(1, _TASKS_MAX + 1):
        body = _read_frame()
        if body is None:
            return 0
        started_ns = time.process_time_ns()
        # The timer's signal ends the process, whatever it does at the time.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        response = _run(runner, body)
        signal.setitimer(signal.ITIMER_PROF, 0)
        used_ns = time.process_time_ns() - started_ns
        out_of_memory = response.problem is not None and response.problem.message == NO_MEMORY
        last = out_of_memory or number == _TASKS_MAX
        _write(framed(TaskResponse(response.value, response.problem, used_ns, last)))
        if last:
            break
    return _AGAIN


def _run(runner: TaskRunner, body: bytes) -> TaskResponse:
    try:
        return runner.run(decode_request(body))
    except MemoryError:
        return TaskResponse(None, EvaluationProblem(NO_MEMORY))
    except Exception as error:  # noqa: BLE001, an error of a task is its result
        return failure_of(error)


def _read_frame() -> bytes | None:
    head = _read(LENGTH_BYTES)
    return None if head is None else _read(int.from_bytes(head, "big"))


def _read(size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(0, min(size - len(parts), _PIPE_READ))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _write(frame: bytes) -> None:
    view = memoryview(frame)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
