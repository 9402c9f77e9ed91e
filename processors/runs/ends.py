"""End runs: the parent is notified, the slot is returned, and nothing follows the end."""

from collections.abc import Iterable, Sequence

from headwater.processors.runs.outbox import queue
from headwater.processors.runs.slots import slot_return
from headwater.processors.runs.state import Run
from headwater.schemas.history import (
    CancelRun,
    Child,
    Failure,
    FinishChild,
    Parent,
    Post,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunTerminated,
    TerminateRun,
)


def ended_by(
    run: Run, end: RunCompleted | RunErrored | RunTerminated, posts: Sequence[Post] = ()
) -> list[RunEvent]:
    """Return the end of a run, after its posts: to its parent, and the return of its slot."""
    if run.parent is not None:
        posts = [*posts, _finish(run.parent, run, end)]
    if run.slot is not None:
        posts = [*posts, *slot_return(run)]
    return [*queue(run, posts), end]


def posts_to_end(
    run: Run, children: Iterable[tuple[object, Child | None]], reason: str, *, cancelled: bool
) -> list[Post]:
    """Return posts that end children: canceled with their parent, otherwise terminated.

    Args:
        run: The parent.
        children: The child, or None, of every entry or token, with its key.
        reason: Reason of the end.
        cancelled: Whether the parent was canceled.
    """
    command = CancelRun if cancelled else TerminateRun
    address = (run.workflow, run.instance_id, run.run_number)
    return [
        Post(0, child.workflow, child.instance_id, command(reason, Parent(*address, str(key))))
        for key, child in children
        if child is not None
    ]


def _failure(run: Run, end: RunTerminated) -> Failure:
    name, verb = ("Cancelled", "cancelled") if end.cancelled else ("Terminated", "ended")
    reason = f": {end.reason}" if end.reason else ""
    return Failure(name, f"{run.workflow}/{run.instance_id} was {verb}{reason}")


def _finish(parent: Parent, run: Run, end: RunCompleted | RunErrored | RunTerminated) -> Post:
    output, failure = None, None
    match end:
        case RunCompleted():
            output = end.output
        case RunErrored():
            failure = end.failure
        case RunTerminated():
            failure = _failure(run, end)
    finish = FinishChild(parent.run_number, parent.key, output, failure)
    return Post(0, parent.workflow, parent.instance_id, finish)
