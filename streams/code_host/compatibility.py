"""Replay recorded runs against an app, in a process of its own.

No step is called. This is the main program of that process, so that code that is about to be loaded
can do no harm. It reads runs from standard input, and writes the declarations of the app and then
the result of each run to standard output, a JSON line each.
"""

import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.code.decide import KIND as CODE
from headwater.processors.code.host_messages import Activate
from headwater.processors.code.replaying import RecordedRun, recorded_run
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.past import Past
from headwater.processors.graph.replaying import GraphReplay, difference_points
from headwater.processors.graph.state import KIND as GRAPH
from headwater.processors.runs.history_files import RunHistory
from headwater.processors.runs.limits import bounded
from headwater.schemas.replay_answers import ReplayedRun, ReplayPoint
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.tasks import Task
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import App, AppNotLoaded, Declarations, load_app
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.replay.replay_check import Difference, difference
from headwater.streams.replay.workflow import Workflow

#: A run to replay: its history, or the state of a run that a worker holds.
CheckedRun: TypeAlias = RunHistory | Activate


class CheckRequest(msgspec.Struct, frozen=True):
    """The runs that the process replays: histories, or what a worker holds, in this order."""

    histories: list[RunHistory] = []
    live: list[Activate] = []


REQUEST: Final = msgspec.msgpack.Decoder(CheckRequest)
#: Characters of a difference's reason: a report has many.
_REASON_MAX: Final = 2_000


class CheckedCode(NamedTuple):
    """The code that runs are replayed against, by name."""

    workflows: Mapping[str, Workflow]
    graphs: Mapping[str, Graph]
    tasks: Mapping[str, Task]

    @classmethod
    def of_app(cls, app: App) -> "CheckedCode":
        """Return the code of an app."""
        graphs = {name: graph.graph() for name, graph in app.graphs.items()}
        return cls(app.workflows, graphs, app.tasks)


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one run; None if the app does not have its workflow."""

    run: ReplayedRun | None = None


def check_run(code: CheckedCode, run: CheckedRun) -> ReplayedRun | None:
    """Replay a run against code. Return None if the code does not have its workflow."""
    if run.workflow not in code.workflows and run.workflow not in code.graphs:
        return None
    if isinstance(run, Activate):
        found = difference(RecordedRun(run, {}), code.workflows[run.workflow], now_ms())
        return result_of(run, found)
    return result_of(run, _difference(code, run))


def _difference(code: CheckedCode, history: RunHistory) -> Difference | None:
    """Return the first difference between a history and code that has its workflow."""
    kind = CODE if history.workflow in code.workflows else GRAPH
    if history.kind != kind:
        return Difference(
            f"the run is of the kind {history.kind or 'unknown'}, and the code of the kind {kind}",
            ReplayPoint(kind=history.kind),
            ReplayPoint(kind=kind),
        )
    if kind == GRAPH:
        return _graph_difference(code.graphs[history.workflow], history)
    recorded = recorded_run(history.records, history.run_number)
    if recorded is None:
        return Difference("the history does not have the beginning of the run", None, None)
    return difference(
        recorded, code.workflows[history.workflow], now_ms(), exact=not history.redacted
    )


def _graph_difference(graph: Graph, history: RunHistory) -> Difference | None:
    past = Past(history.workflow, history.instance_id, history.run_number)
    replay = GraphReplay(past, graph, exact=not history.redacted)
    try:
        for decision in replay.decisions(history.records):
            if not decision.same:
                reason = "the definition decides otherwise"
                return Difference(reason, *difference_points(decision))
    except Exception as error:  # noqa: BLE001, a definition may lack what the run refers to
        run = past.state
        sequence = None if run is None else run.sequence
        reason = f"the definition has nothing for what is recorded: {type(error).__name__}: {error}"
        return Difference(reason, ReplayPoint(kind="decision", sequence=sequence), None)
    return None


def result_of(run: CheckedRun, found: Difference | None) -> ReplayedRun:
    """Return the result of a replay, with the first difference if there is one."""
    return ReplayedRun(
        workflow_name=run.workflow,
        instance_id=run.instance_id,
        run_number=run.run_number,
        status=RunStatus.ACTIVE if isinstance(run, Activate) else run.status,
        deployment_id=None if isinstance(run, Activate) else run.deployment,
        moves=isinstance(run, Activate) or run.moves,
        fits=found is None,
        reason="" if found is None else bounded(found.reason, _REASON_MAX),
        recorded=None if found is None else found.recorded,
        requested=None if found is None else found.requested,
    )


# -- the process


def main(arguments: Sequence[str] | None = None) -> None:
    """Check an app.

    Args:
        arguments: Largest memory in bytes, 0 for any; folder of deployed code, or ""; and the app.
    """
    memory_max, folder, spec = sys.argv[1:] if arguments is None else arguments
    out = os.dup(1)
    os.dup2(2, 1)  # Prints of the app must not mix with the results.
    request = REQUEST.decode(sys.stdin.buffer.read())
    if folder:
        # The folder is compared with what was deployed.
        sys.dont_write_bytecode = True
    if int(memory_max):
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory_max), int(memory_max)))
    refuse_in_workflows()
    with os.fdopen(out, "wb", buffering=0) as output:
        try:
            app = load_app(spec, Path(folder) if folder else None)
        except AppNotLoaded as error:
            _write(output.fileno(), Declarations(error=error.message))
            return
        _write(output.fileno(), app.declared)
        code = CheckedCode.of_app(app)
        runs: list[CheckedRun] = [*request.histories, *request.live]
        for run in runs:
            _write(output.fileno(), CheckResult(check_run(code, run)))


def _write(descriptor: int, line: msgspec.Struct) -> None:
    data = memoryview(msgspec.json.encode(line) + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
