"""Apply the events of a run's life cycle to its state.

Appliers change the state in place; the status changes by the table `TRANSITIONS` of `state`.
Engines apply further events of their own.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from headwater.processors.runs.limits import SYSTEM
from headwater.processors.runs.slots import slot_asked, slot_granted
from headwater.processors.runs.state import TRANSITIONS, Received, Run, remember
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    EventReceived,
    HistoryAppended,
    LogEvent,
    LogWritten,
    PostsQueued,
    PostsSent,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunMoved,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
)
from headwater.schemas.statuses import RunStatus

R = TypeVar("R", bound=Run)


def begin(state: type[R], before: R | None, record: HistoryAppended) -> tuple[R, RunStarted]:
    """Return the state of a new run, and the event that started it.

    The run keeps the outbox and the received post numbers of the previous run. A run that retries
    the previous one keeps its start time.
    """
    event, at_ms = record.events[0], record.at_ms
    assert isinstance(event, RunStarted)  # noqa: S101, the caller checked it
    retries = event.kept is not None
    run = state(
        workflow=record.workflow,
        instance_id=record.instance_id,
        run_number=record.run_number,
        sequence=1,
        status=RunStatus.ACTIVE,
        params=event.params,
        seed=event.seed,
        parent=event.parent,
        created_at_ms=before.created_at_ms if before else at_ms,
        started_at_ms=before.started_at_ms if before and retries else at_ms,
        updated_at_ms=at_ms,
        unsent=before.unsent if before else [],
        posted=before.posted if before else 0,
        received=before.received if before else {},
        kind=event.kind,
        definition=event.definition,
        deployment=event.deployment,
        labels=event.labels,
        limits=event.limits,
        depth=event.depth,
        trace=event.trace,
        once=event.once,
        keys=before.keys if before else {},
        # Hooks of a run with another seed have other event types.
        calls=before.calls if before and retries else {},
    )
    return run, event


def expect_open(run: Run, event: LogEvent) -> None:
    """Check that the run has not ended.

    Log lines of the engine may follow the end, for example about a rejected message.

    Raises:
        InvariantViolation: The run has ended.
    """
    if run.ended and not (isinstance(event, LogWritten) and event.category == SYSTEM):
        raise InvariantViolation(
            f"expected nothing after the end of run {run.run_number} of "
            f"{run.workflow}/{run.instance_id}, found {type(event).__name__}"
        )


def move(run: Run, event: RunEvent) -> None:
    """Change the status of a run by an event of the transition table.

    Raises:
        InvariantViolation: The table has no such transition.
    """
    moves = TRANSITIONS[type(event)]
    status = moves.get(run.status)
    if status is None:
        raise InvariantViolation(
            f"expected a {type(event).__name__} only after one of {', '.join(moves)}, found it "
            f"after {run.status} in run {run.run_number} of {run.workflow}/{run.instance_id}, "
            f"sequence {run.sequence}"
        )
    run.status = status


def _received(run: Run, event: EventReceived) -> None:
    """Put the event into the mailbox."""
    run.mailbox.append(Received(event.event_id, event.type, event.payload, event.sent_at_ms))
    sender, _, number = event.event_id.rpartition("#")
    if sender:
        run.received[sender] = int(number)


def applied(run: Run, event: LogEvent, at_ms: int) -> None:
    """Update the state after any event: its sequence, its time, and an idempotency key if any."""
    run.sequence += 1
    run.updated_at_ms = at_ms
    if type(event) is EventReceived:
        remember(run, event, at_ms)


def _moved(run: Run, event: RunMoved) -> None:
    """Continue on other code."""
    run.deployment = event.deployment


def _posts_queued(run: Run, event: PostsQueued) -> None:
    """Put the posts into the outbox."""
    run.unsent.extend(event.posts)
    run.posted = event.posts[-1].number + 1


def posts_sent(run: Run, event: PostsSent) -> None:
    """Remove acknowledged posts from the outbox; this may follow the end of a run."""
    run.unsent = [post for post in run.unsent if post.number > event.through]


def _completed(run: Run, event: RunCompleted) -> None:
    run.output = event.output
    move(run, event)


def _errored(run: Run, event: RunErrored) -> None:
    run.failure = event.failure
    move(run, event)


def _terminated(run: Run, event: RunTerminated) -> None:
    move(run, event)
    run.failure = event.failure


def _slot_asked(run: Run, event: SlotAsked) -> None:
    move(run, event)
    slot_asked(run, event)


def _slot_granted(run: Run, event: SlotGranted) -> None:
    move(run, event)
    slot_granted(run, event)


def _nothing(run: Run, event: LogWritten) -> None:
    """Do nothing: log lines are only for readers."""


#: Appliers of the events of a run's life cycle except RunStarted and PostsSent.
APPLIERS: Final[Mapping[type, Callable[[Any, Any], None]]] = {
    RunSuspended: move,
    RunPaused: move,
    RunResumed: move,
    RunMoved: _moved,
    RunTerminated: _terminated,
    RunCompleted: _completed,
    RunErrored: _errored,
    EventReceived: _received,
    PostsQueued: _posts_queued,
    LogWritten: _nothing,
    SlotAsked: _slot_asked,
    SlotGranted: _slot_granted,
}
