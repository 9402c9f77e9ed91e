"""How the runs of code end and begin again: their children end with them."""

from collections.abc import Iterable
from typing import Final

from headwater.processors.replay.state import CodeRun
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

#: What a run fails with whose code was told that it is cancelled, and made no more of it.
TOLD: Final = "CancelledError"
#: Why children end.
_ENDED: Final = "its parent has ended"


def ending(
    run: CodeRun,
    end: RunCompleted | RunErrored | RunTerminated,
    *,
    with_children: bool = True,
) -> list[RunEvent]:
    """Return the end of a run, after what it leads to: nothing of a run follows its end.

    Args:
        run: The run.
        end: The event that ends it.
        with_children: Whether to end its children and to cancel its open entries, too.
    """
    keys = tuple(run.open) if with_children else ()
    cancelled = isinstance(end, RunTerminated) and end.cancelled
    children = end_children(run, keys, _ENDED, cancelled=cancelled)
    return [*_cancelled(keys), *ended_by(run, end, children)]


def code_ended(run: CodeRun, *, cancelled: bool) -> list[RunEvent]:
    """Return what ends with the code of a run that is about to be rolled back.

    Args:
        run: The run.
        cancelled: Whether the run was cancelled, as its children are then.
    """
    keys = tuple(run.open)
    children = end_children(run, keys, _ENDED, cancelled=cancelled)
    return [*queue(run, children), *_cancelled(keys)]


def _cancelled(keys: tuple[str, ...]) -> list[RunEvent]:
    return [EntriesCancelled(keys, ended=True)] if keys else []


def failed(run: CodeRun, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
    """The end of a run that cannot go on; one that was cancelled was to end anyway."""
    if run.cancelling is None:
        return ending(run, RunErrored(failure), with_children=with_children)
    end = RunTerminated(run.cancelling.reason, cancelled=True)
    ends = ending(run, end, with_children=with_children)
    if failure.name == TOLD:
        return ends
    why = f"once it was cancelled, the run failed: {failure.name}: {failure.message}"
    return [LogWritten("warn", SYSTEM, bounded(why, LOG_MESSAGE_MAX)), *ends]


def started_again(run: CodeRun | None, started: Decision) -> Decision:
    """A new run; the children that the one before it still had are ended."""
    if isinstance(started, Rejection) or run is None or run.ended:
        return started
    return [*started, *queue(run, end_children(run, run.open, "its parent was restarted"))]


def end_children(
    run: CodeRun, keys: Iterable[str], reason: str, *, cancelled: bool = False
) -> list[Post]:
    """Posts that end the children of those of these entries that have one."""
    children = ((key, run.entries[key].child) for key in keys)
    return posts_to_end(run, children, reason, cancelled=cancelled)
