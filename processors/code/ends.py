"""End and restart runs of code workflows; their children end with them."""

from collections.abc import Iterable
from typing import Final

from headwater.processors.code.state import CodeRun
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.ends import ended_by, posts_to_end
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.processors.runs.outbox import queue
from headwater.schemas.history import (
    EntriesCancelled,
    Failure,
    LogWritten,
    Post,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunTerminated,
)

#: Error name of a canceled run whose code did not handle the cancellation.
CANCELLED_ERROR: Final = "CancelledError"
#: Reason with which children end.
_ENDED: Final = "its parent has ended"


def end_run(
    run: CodeRun,
    end: RunCompleted | RunErrored | RunTerminated,
    *,
    with_children: bool = True,
) -> list[RunEvent]:
    """Return the end of a run, preceded by its consequences: nothing follows the end.

    Args:
        run: The run.
        end: The event that ends it.
        with_children: Whether to end its children and cancel its open entries as well.
    """
    keys = tuple(run.open) if with_children else ()
    cancelled = isinstance(end, RunTerminated) and end.cancelled
    children = end_children(run, keys, _ENDED, cancelled=cancelled)
    return [*_cancelled(keys), *ended_by(run, end, children)]


def code_ended(run: CodeRun, *, cancelled: bool) -> list[RunEvent]:
    """Return the events that end the code of a run before it is rolled back.

    Args:
        run: The run.
        cancelled: Whether the run was canceled; its children are then canceled as well.
    """
    keys = tuple(run.open)
    children = end_children(run, keys, _ENDED, cancelled=cancelled)
    return [*queue(run, children), *_cancelled(keys)]


def _cancelled(keys: tuple[str, ...]) -> list[RunEvent]:
    return [EntriesCancelled(keys, ended=True)] if keys else []


def fail_run(run: CodeRun, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
    """Fail a run; one that was canceled ends as terminated."""
    if run.cancelling is None:
        return end_run(run, RunErrored(failure), with_children=with_children)
    end = RunTerminated(run.cancelling.reason, cancelled=True)
    ends = end_run(run, end, with_children=with_children)
    if failure.name == CANCELLED_ERROR:
        return ends
    message = f"once it was cancelled, the run failed: {failure.name}: {failure.message}"
    return [LogWritten("warn", SYSTEM, bounded(message, LOG_MESSAGE_MAX)), *ends]


def with_children_ended(run: CodeRun | None, started: Decision) -> Decision:
    """Return the start of a new run, after ending the children that the previous run still had."""
    if isinstance(started, Rejection) or run is None or run.ended:
        return started
    return [*started, *queue(run, end_children(run, run.open, "its parent was restarted"))]


def end_children(
    run: CodeRun, keys: Iterable[str], reason: str, *, cancelled: bool = False
) -> list[Post]:
    """Return posts that end the children of these entries."""
    children = ((key, run.entries[key].child) for key in keys)
    return posts_to_end(run, children, reason, cancelled=cancelled)
