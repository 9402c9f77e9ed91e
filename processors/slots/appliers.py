"""Applies the events of slots: `apply(run, event, at_ms)` is the one path for owners and readers.

The state is changed in place. An event that its state cannot meet is a bug of ours, because
`decide` wrote it: InvariantViolation.
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
    """The state of a limit that nobody has asked for."""
    run, _ = runs.begin(SlotsRun, before, record)
    return run


def apply(run: SlotsRun, event: LogEvent, at_ms: int) -> None:
    """Applies an event other than RunStarted."""
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
            _give(run, event.through)
        case SlotReturned():
            _take_back(run, event.number)
        case _:
            runs.APPLIERS[type(event)](run, event)
    # While somebody waits it has to be at hand; for those who have a slot nothing is to be done.
    run.status = RunStatus.ACTIVE if run.waiting else RunStatus.WAITING
    runs.applied(run, event, at_ms)


def _give(run: SlotsRun, through: int) -> None:
    given = sum(number in run.tickets for number in range(run.first, through + 1))
    if not given:
        raise InvariantViolation(
            f"expected somebody to wait for a slot of {run.workflow}/{run.instance_id} up to "
            f"place {through}, found nobody"
        )
    run.waiting -= given
    run.first = through + 1


def _take_back(run: SlotsRun, number: int) -> None:
    ticket = run.tickets.pop(number, None)
    if ticket is None:
        raise InvariantViolation(
            f"expected a place {number} in {run.workflow}/{run.instance_id}, found none"
        )
    del run.places[ticket]
    run.waiting -= number >= run.first
