"""How the runs of code end and begin again: their children end with them."""

from collections.abc import Iterable

from headwater.processors.replay.state import CodeRun
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.ends import ended_by
from headwater.processors.runs.outbox import queue
from headwater.schemas.history import (
    Parent,
    Post,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunTerminated,
    TerminateRun,
)


def ending(
    run: CodeRun,
    end: RunCompleted | RunErrored | RunTerminated,
    *,
    with_children: bool = True,
) -> list[RunEvent]:
    """The end of a run, after what it leads to: nothing of a run follows its end."""
    children = end_children(run, run.open if with_children else (), "its parent has ended")
    return ended_by(run, end, children)


def started_again(run: CodeRun | None, started: Decision) -> Decision:
    """A new run; the children that the one before it still had are ended."""
    if isinstance(started, Rejection) or run is None or run.ended:
        return started
    return [*started, *queue(run, end_children(run, run.open, "its parent was restarted"))]


def end_children(run: CodeRun, keys: Iterable[str], reason: str) -> list[Post]:
    """Posts that end the children of those of these entries that have one."""
    found = ((key, run.entries[key].child) for key in keys)
    return [
        Post(
            0,
            child.workflow,
            child.instance_id,
            TerminateRun(reason, Parent(run.workflow, run.instance_id, run.run_number, key)),
        )
        for key, child in found
        if child is not None
    ]
