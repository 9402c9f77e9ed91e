"""Replays recorded runs against an app in a separate process, with limits of time and memory.

A run whose code does not return, or ends the process, ends only the replay of that run: the rest
is replayed by another process, as long as there is time.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from headwater.processors.code.host_messages import Activate
from headwater.schemas.replay_answers import NotReplayed, ReplayedRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.code_host import compatibility
from headwater.streams.code_host.apps import Declarations
from headwater.streams.code_host.compatibility import CheckedRun, CheckRequest, CheckResult
from headwater.streams.workflows.host_process import (
    STALL_S,
    START_S,
    HostCode,
    describe_exit,
    program_of,
    variables_of,
)

#: Most bytes of a line of the process: a result with its reason, or the declarations of an app.
_LINE_MAX: Final = 16 * 1024 * 1024
#: Longest time for the process to exit after its last result, in seconds.
_EXIT_S: Final = 5.0
_RESULTS: Final = msgspec.json.Decoder(CheckResult)
_DECLARED: Final = msgspec.json.Decoder(Declarations)


class ReplayLimits(NamedTuple):
    """Limits of a check.

    Attributes:
        seconds: Longest time of all replays together, the import of the app included.
        stall_s: Longest time of one replay, in seconds.
        memory_max: Largest memory of the process, in bytes; 0 for any.
    """

    seconds: float = START_S
    stall_s: float = STALL_S
    memory_max: int = 0


class Replays(NamedTuple):
    """The declarations of the app, the results, and the runs without results."""

    declared: Declarations
    runs: list[ReplayedRun]
    not_replayed: list[NotReplayed]


async def replay_runs(
    app: str,
    runs: Sequence[CheckedRun],
    *,
    limits: ReplayLimits,
    environment: Mapping[str, str],
    code: HostCode | None = None,
) -> Replays:
    """Replay runs against an app.

    Args:
        app: The app, as `package.module:name`.
        runs: The runs.
        limits: Limits of the check.
        environment: Variables that the app sees.
        code: The code, if it was deployed.

    Returns:
        The results. If the app cannot be loaded, its declarations have the error.
    """
    loop = asyncio.get_running_loop()
    check = _Check(app, limits, environment, code, loop.time() + limits.seconds)
    remaining = list(runs)
    while check.declared is None or (remaining and not check.declared.error):
        if loop.time() >= check.deadline_s:
            break
        count, problem = await check.run_process(remaining)
        if check.declared is None:
            error = f"expected {app} to be loaded, found that it {problem}"
            check.declared = Declarations(error=error)
        elif not check.declared.error:
            if problem and count < len(remaining) and loop.time() < check.deadline_s:
                check.results.append(_failed(remaining[count], problem))
                count += 1
            remaining = remaining[count:]
    no_time = f"no time was left of the {limits.seconds:g} s of the check"
    declared = check.declared or Declarations(error=f"expected {app} to be loaded, found {no_time}")
    skipped = Counter(run.workflow for run in remaining) if not declared.error else Counter[str]()
    not_replayed = [
        NotReplayed(workflow_name=name, runs=count, reason=no_time)
        for name, count in skipped.items()
    ]
    missing = Counter(check.missing)
    not_replayed += [
        NotReplayed(workflow_name=name, runs=count, reason=f"{app} does not have the workflow")
        for name, count in missing.items()
    ]
    return Replays(declared, check.results, not_replayed)


def _failed(run: CheckedRun, problem: str) -> ReplayedRun:
    """Return the result of a run whose replay ended its process."""
    return ReplayedRun(
        workflow_name=run.workflow,
        instance_id=run.instance_id,
        run_number=run.run_number,
        status=RunStatus.ACTIVE if isinstance(run, Activate) else run.status,
        deployment_id=None if isinstance(run, Activate) else run.deployment,
        fits=False,
        moves=isinstance(run, Activate) or run.moves,
        reason=f"its replay {problem}",
    )


class _Check:
    """A check of an app, by one process after another."""

    def __init__(
        self,
        app: str,
        limits: ReplayLimits,
        environment: Mapping[str, str],
        code: HostCode | None,
        deadline_s: float,
    ) -> None:
        self._app = app
        self._limits = limits
        self._environment = environment
        self._code = code
        self.deadline_s = deadline_s
        self.declared: Declarations | None = None
        self.results: list[ReplayedRun] = []
        #: Workflows of runs that the app does not have.
        self.missing: list[str] = []

    async def run_process(self, runs: Sequence[CheckedRun]) -> tuple[int, str]:
        """Replay runs in one process. Return how many have results, and why not all have."""
        code, data = self._code, await asyncio.to_thread(_encoded, runs)
        process = await asyncio.create_subprocess_exec(
            *program_of(code, compatibility.__name__),
            *(str(self._limits.memory_max), "" if code is None else str(code.folder), self._app),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=variables_of(code, self._environment),
            cwd=None if code is None else code.scratch or code.folder,
            limit=_LINE_MAX,
        )
        assert process.stdin is not None  # noqa: S101, it is a pipe
        assert process.stdout is not None  # noqa: S101, it is a pipe
        writing = asyncio.create_task(_write(process.stdin, data))
        try:
            return await self._read(process.stdout, process, runs)
        finally:
            writing.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()

    async def _read(
        self,
        lines: asyncio.StreamReader,
        process: asyncio.subprocess.Process,
        runs: Sequence[CheckedRun],
    ) -> tuple[int, str]:
        declared, problem = await self._line(lines, process, START_S)
        if problem:
            return 0, problem
        self.declared = _DECLARED.decode(declared)
        for count, run in enumerate(runs if not self.declared.error else ()):
            line, problem = await self._line(lines, process, self._limits.stall_s)
            if problem:
                return count, problem
            result = _RESULTS.decode(line).run
            if result is None:
                self.missing.append(run.workflow)
            else:
                self.results.append(result)
        return len(runs), ""

    async def _line(
        self, lines: asyncio.StreamReader, process: asyncio.subprocess.Process, within_s: float
    ) -> tuple[bytes, str]:
        """Return the next line of a process, or why there is none."""
        within_s = min(within_s, self.deadline_s - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(within_s):
                line = await lines.readline()
                if line.endswith(b"\n"):
                    return line, ""
            async with asyncio.timeout(_EXIT_S):
                code = await process.wait()
        except TimeoutError:
            return b"", f"was not over within {within_s:.3g} s"
        except ValueError:
            return b"", f"has a result of more than {_LINE_MAX} bytes"
        return b"", f"ended its process: it {describe_exit(code)}"


def _encoded(runs: Sequence[CheckedRun]) -> bytes:
    histories = [run for run in runs if not isinstance(run, Activate)]
    live = [run for run in runs if isinstance(run, Activate)]
    return msgspec.msgpack.encode(CheckRequest(histories, live))


async def _write(pipe: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        pipe.write(data)
        await pipe.drain()
        pipe.close()
