"""How runs end: whoever waits for one hears of it, and nothing of a run follows its end."""

from collections.abc import Iterable, Sequence

from headwater.processors.runs.outbox import queue
from headwater.processors.runs.slots import returned
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
    """The end of a run, after what it sends: to its parent, too, and the slot that it had."""
    if run.parent is not None:
        posts = [*posts, _finish(run.parent, run, end)]
    if run.slot is not None:
        posts = [*posts, *returned(run)]
    return [*queue(run, posts), end]


def posts_to_end(
    run: Run, children: Iterable[tuple[object, Child | None]], reason: str, *, cancelled: bool
) -> list[Post]:
    """Posts that end children: they are cancelled with their parent, and terminated otherwise.

    Shape:  each by the key of what waits for it, which may wait for none.
    """
    command = CancelRun if cancelled else TerminateRun
    who = (run.workflow, run.instance_id, run.run_number)
    return [
        Post(0, child.workflow, child.instance_id, command(reason, Parent(*who, str(key))))
        for key, child in children
        if child is not None
    ]


def _why(run: Run, end: RunTerminated) -> Failure:
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
            failure = _why(run, end)
    finish = FinishChild(parent.run_number, parent.key, output, failure)
    return Post(0, parent.workflow, parent.instance_id, finish)
