"""How runs end: whoever waits for one hears of it, and nothing of a run follows its end."""

from collections.abc import Sequence

from headwater.processors.runs.outbox import queue
from headwater.processors.runs.state import Run
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


def ended_by(
    run: Run, end: RunCompleted | RunErrored | RunTerminated, posts: Sequence[Post] = ()
) -> list[RunEvent]:
    """The end of a run, after what it sends: to its parent, too, if it has one."""
    if run.parent is not None:
        posts = [*posts, _finish(run.parent, run, end)]
    return [*queue(run, posts), end]


def _finish(parent: Parent, run: Run, end: RunCompleted | RunErrored | RunTerminated) -> Post:
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
