"""How runs end and begin again: their children end with them, and their parent is told."""

from headwater.processors.replay.outbox import end_children, queue
from headwater.processors.replay.state import CodeRun
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.schemas.history import (
    Failure,
    FinishChild,
    Parent,
    Post,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunTerminated,
)


def ending(
    run: CodeRun,
    end: RunCompleted | RunErrored | RunTerminated,
    *,
    with_children: bool = True,
) -> list[RunEvent]:
    """The end of a run, behind what it leads to: nothing of a run follows its end."""
    posts = end_children(run, run.open if with_children else (), "its parent has ended")
    if run.parent is not None:
        posts.append(_told(run.parent, run, end))
    return [*queue(run, posts), end]


def _told(parent: Parent, run: CodeRun, end: RunCompleted | RunErrored | RunTerminated) -> Post:
    output, failure = None, None
    match end:
        case RunCompleted():
            output = end.output
        case RunErrored():
            failure = end.failure
        case RunTerminated():
            reason = f": {end.reason}" if end.reason else ""
            failure = Failure("Terminated", f"{run.workflow}/{run.instance_id} was ended{reason}")
    finish = FinishChild(parent.run_number, parent.key, output, failure)
    return Post(0, parent.workflow, parent.instance_id, finish)


def started_again(run: CodeRun | None, started: Decision) -> Decision:
    """A new run; the children that the one before it still had are ended."""
    if isinstance(started, Rejection) or run is None or run.ended:
        return started
    return [*started, *queue(run, end_children(run, run.open, "its parent was restarted"))]
