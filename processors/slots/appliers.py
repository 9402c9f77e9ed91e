"""Apply the events of slots: `apply(run, event, at_ms)` is used by owners and readers.

The state is changed in place. An event that does not fit the state is a bug, because `decide` wrote
it: InvariantViolation.
"""

from headwater.processors.runs import appliers as runs
from headwater.processors.slots.state import SlotsRun
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    HistoryAppended,
    LogEvent,
    PostsSent,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
    SlotsLimited,
)
from headwater.schemas.statuses import RunStatus


def begin(before: SlotsRun | None, record: HistoryAppended) -> SlotsRun:
    """Return the initial state of a limit."""
    run, _ = runs.begin(SlotsRun, before, record)
    return run


def apply(run: SlotsRun, event: LogEvent, at_ms: int) -> None:
    """Apply an event other than RunStarted."""
    match event:
        case PostsSent():
            runs.posts_sent(run, event)
            return
        case SlotsLimited():
            run.limit = event.limit
        case SlotQueued():
            run.tickets[event.number] = event.ticket
            run.places[event.ticket] = event.number
            run.arrived = event.number + 1
            run.waiting += 1
        case SlotsGiven():
            _grant(run, event.through)
        case SlotReturned():
            _return_slot(run, event.number)
        case _:
            runs.APPLIERS[type(event)](run, event)
    # An owner has to act only while runs wait for a slot.
    run.status = RunStatus.ACTIVE if run.waiting else RunStatus.WAITING
    runs.applied(run, event, at_ms)


def _grant(run: SlotsRun, through: int) -> None:
    granted = sum(number in run.tickets for number in range(run.first, through + 1))
    if not granted:
        raise InvariantViolation(
            f"expected a waiting run in {run.workflow}/{run.instance_id} up to number {through}, "
            "found none"
        )
    run.waiting -= granted
    run.first = through + 1


def _return_slot(run: SlotsRun, number: int) -> None:
    ticket = run.tickets.pop(number, None)
    if ticket is None:
        raise InvariantViolation(
            f"expected number {number} in {run.workflow}/{run.instance_id}, found none"
        )
    del run.places[ticket]
    run.waiting -= number >= run.first
