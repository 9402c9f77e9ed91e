"""Exported histories as tests: replays against an author's code, without a running Headwater."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from headwater.processors.code.host_messages import Resolved
from headwater.processors.code.replaying import failed_step, recorded_run
from headwater.processors.graph.past import Past
from headwater.processors.graph.replaying import (
    GraphReplay,
    difference_points,
    failed_task,
    task_of,
)
from headwater.processors.graph.state import LiveToken
from headwater.processors.runs.history_files import HistoryFileInvalid, RunHistory, read_history
from headwater.processors.runs.limits import BUILTIN_PREFIX, DEFAULT_LIMITS
from headwater.schemas.failures import InstanceFailedError
from headwater.schemas.history import RunErrored
from headwater.schemas.replay_answers import ReplayReport, report_lines, sorted_report
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.tasks import TaskInfo
from headwater.streams.authoring.values import decode, encode
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import load_app
from headwater.streams.code_host.compatibility import CheckedCode, check_run, result_of
from headwater.streams.harness.definitions import Definitions
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.replay.replay_check import Difference, Replay, difference_of
from headwater.streams.replay.workflow import Workflow

#: Ending of the names of exported histories.
SUFFIX: Final = ".jsonl"

_Path: TypeAlias = str | PathLike[str]


class ReplayDivergedError(AssertionError):
    """The code does not fit recorded runs.

    Attributes:
        report: The report, with the first difference of each run.
    """

    def __init__(self, report: ReplayReport) -> None:
        super().__init__("\n".join(report_lines(report)))
        self.report = report


def read_folder(folder: _Path) -> list[RunHistory]:
    """Return the histories in a folder, in the order of the names of their files.

    Raises:
        FileNotFoundError: It has none.
        HistoryFileInvalid: A file is not a history.
    """
    files = sorted(Path(folder).glob(f"*{SUFFIX}"))
    if not files:
        raise FileNotFoundError(
            f"expected histories, which end in {SUFFIX}, in {folder}, found none; "
            "`headwater histories export FOLDER` writes them"
        )
    return [_read(file) for file in files]


def _read(file: _Path) -> RunHistory:
    return read_history(Path(file).read_text(encoding="utf-8").splitlines())


def _code_of(workflows: object, tasks: Iterable[object]) -> CheckedCode:
    refuse_in_workflows()
    if isinstance(workflows, str):
        return CheckedCode.of_app(load_app(workflows))
    return CheckedCode(*Definitions.collect(workflows, tasks))


def check_replay(folder: _Path, workflows: object) -> ReplayReport:
    """Replay the histories of a folder against code, and raise if one does not fit.

    No step is called. Histories of other workflows are skipped.

    Args:
        folder: Histories that `headwater histories export` wrote.
        workflows: Workflows and graphs, as for `WorkflowTest`, or the name of an app.

    Returns:
        The report, with a result for each history.

    Raises:
        ReplayDivergedError: A history does not fit. The message has the first difference of each.
        FileNotFoundError: The folder has no history.
    """
    code = _code_of(workflows, ())
    results = [check_run(code, history) for history in read_folder(folder)]
    report = sorted_report(ReplayReport(runs=[result for result in results if result is not None]))
    if report.diverged:
        raise ReplayDivergedError(report)
    return report


# -- one history


def replay_history(
    file: _Path, workflows: object, tasks: Iterable[object] = (), *, calls: Collection[str] = ()
) -> None:
    """Replay one history, and fail as its run failed, as long as the code has the same error.

    An error that the workflow's own code raises is raised again. If a step failed, its error is
    recorded, and only a call shows whether it is fixed: name the step in `calls`. A run that has
    not failed has to fit.

    Args:
        file: A history that `headwater instances export-test` wrote.
        workflows: Workflows and graphs, as for `WorkflowTest`, or the name of an app.
        tasks: Tasks of the graphs.
        calls: Keys of steps, or nodes of a graph: if the last failure of the run is one of these,
            it is replaced by a call of their code.

    Raises:
        ReplayDivergedError: The code does not fit what was recorded before the failure.
        InstanceFailedError: A graph still fails as recorded.
        LookupError: The code does not have the workflow.
    """
    history = _read(file)
    code = _code_of(workflows, tasks)
    if history.workflow in code.graphs:
        _replay_graph(history, code, calls)
    elif history.workflow in code.workflows:
        _replay_code(history, code.workflows[history.workflow], calls)
    else:
        names = sorted((*code.workflows, *code.graphs))
        known = ", ".join(name for name in names if not name.startswith(BUILTIN_PREFIX))
        raise LookupError(f"expected the workflow {history.workflow}, found only {known}")


def _raise_divergence(history: RunHistory, difference: Difference) -> NoReturn:
    raise ReplayDivergedError(ReplayReport(runs=[result_of(history, difference)]))


# -- code


def _replay_code(history: RunHistory, workflow: Workflow, calls: Collection[str]) -> None:
    number = history.run_number
    failed = failed_step(history.records, number)
    before = failed[1] if failed is not None and failed[0] in calls else None
    recorded = recorded_run(history.records, number, before)
    if recorded is None:
        raise HistoryFileInvalid(f"expected the beginning of run {number}, found none")
    has_failed = recorded.end is not None and recorded.end.failure is not None
    replay = Replay(recorded.begin, workflow, now_ms())
    try:
        if before is not None:
            _call_steps(replay, workflow, calls)
        if replay.error is not None and has_failed:
            raise replay.error
        # Fixed code continues where the run has failed.
        expected = recorded._replace(end=None) if has_failed else recorded
        difference = difference_of(replay, expected, exact=not history.redacted)
    finally:
        replay.close()
    if difference is not None:
        _raise_divergence(history, difference)


def _call_steps(replay: Replay, workflow: Workflow, keys: Collection[str]) -> None:
    """Call steps that the code has reached, and let the code continue with their results."""
    activation = replay.activation
    for call in [call for call in replay.host.calls if call.reached.key in keys]:
        arguments = (StepTx(DEFAULT_LIMITS, workflow.publishes),) if call.wants_tx else ()
        value = _called(call.callback, *arguments)
        key = call.reached.key
        text = encode(value, f"the result of {key}")
        if activation is not None:
            sequence = replay.begin.seen + 1
            activation.resolved(Resolved(0, key, sequence, call.attempt, text))
            replay.error = activation.error


def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    """Call an author's function, async or not."""
    result = function(*arguments, **named)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[Any]) -> Any:  # noqa: ANN401, what the author returns
    return await result


# -- graphs


def _replay_graph(history: RunHistory, code: CheckedCode, calls: Collection[str]) -> None:
    failed = failed_task(history.records, history.run_number) if calls else None
    past = Past(history.workflow, history.instance_id, history.run_number)
    before = None if failed is None else failed[1]
    graph = code.graphs[history.workflow]
    replay = GraphReplay(past, graph, before, exact=not history.redacted)
    for decision in replay.decisions(history.records):
        error = next((one for one in decision.requested if isinstance(one, RunErrored)), None)
        was_error = any(isinstance(event, RunErrored) for event in decision.recorded)
        if error is not None and was_error:
            name = f"{history.workflow}/{history.instance_id}"
            failure = error.failure
            raise InstanceFailedError(name, RunStatus.ERRORED, failure.name, failure.message)
        if not decision.same and not was_error:
            points = difference_points(decision)
            _raise_divergence(history, Difference("the definition decides otherwise", *points))
    token = None if failed is None else task_of(replay.run, failed[0])
    if token is not None and token.node in calls:
        node = graph.node(token.node)
        task = code.tasks.get(node.task or "")
        if task is None:
            raise LookupError(f"expected the task {node.task!r} among `tasks`, found none")
        info = _info(history, token) if task.takes_info else None
        named = {} if info is None else {"info": info}
        _called(task, decode(token.input or "null"), **named)


def _info(history: RunHistory, token: LiveToken) -> TaskInfo:
    return TaskInfo(
        workflow_name=history.workflow,
        instance_id=history.instance_id,
        run_number=history.run_number,
        token_id=str(token.number),
        node_ref=token.node,
        attempt=token.attempts + 1,
        idempotency_token=f"replay-{token.number}",
    )
