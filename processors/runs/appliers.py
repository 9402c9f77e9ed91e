"""Applies the events of a run's life to its state.

Each applier changes the state in place; the status moves by the table in `transitions.py`.
"""

from headwater.processors.runs.state import Received, Run
from headwater.processors.runs.transitions import TRANSITIONS
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    EventReceived,
    PostsQueued,
    PostsSent,
    RunCompleted,
    RunErrored,
    RunEvent,
)


def move(run: Run, event: RunEvent) -> None:
    """Moves the status of a run by an event that the table names.

    Errors: InvariantViolation, when the table has no such move.
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


def apply_event_received(run: Run, event: EventReceived) -> None:
    """Puts the event into the mailbox."""
    run.mailbox.append(Received(event.event_id, event.type, event.payload, event.sent_at_ms))
    sender, _, number = event.event_id.rpartition("#")
    if sender:
        run.received[sender] = int(number)


def apply_posts_queued(run: Run, event: PostsQueued) -> None:
    """Puts the posts into the outbox."""
    run.unsent.extend(event.posts)
    run.posted = event.posts[-1].number + 1


def apply_posts_sent(run: Run, event: PostsSent) -> None:
    """Takes what is acknowledged out of the outbox."""
    run.unsent = [post for post in run.unsent if post.number > event.through]


def apply_run_completed(run: Run, event: RunCompleted) -> None:
    """Keeps the output."""
    run.output = event.output


def apply_run_errored(run: Run, event: RunErrored) -> None:
    """Keeps the error."""
    run.failure = event.failure
