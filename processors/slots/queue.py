"""The queue of a concurrency limit: its state, its events, and which run gets a slot.

Deciding is pure: (state, command, current limit) -> events or a rejection. Applying changes the
state in place. An event that does not fit the state is a bug, because it was decided here:
InvariantViolation.
"""

from typing import Final

import msgspec
from typing_extensions import override

from headwater.processors.runs import appliers as runs
from headwater.processors.runs.decisions import STALE, Decision, Rejection
from headwater.processors.runs.slots import SLOTS, holder_of
from headwater.processors.runs.state import Run
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.failures import SLOT_QUEUE_FULL
from headwater.schemas.history import (
    AskSlot,
    GrantSlot,
    HistoryAppended,
    LogEvent,
    Post,
    PostsQueued,
    PostsSent,
    ReturnSlot,
    RunEvent,
    RunStarted,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
    SlotsLimited,
)
from headwater.schemas.statuses import RunStatus

#: Maximum runs that wait for slots of one limit.
WAITING_MAX: Final = 100_000


class SlotsRun(Run, kw_only=True):
    """The slots of a limit.

    Slots are granted in order of arrival, so all numbers below `first` hold one.

    Attributes:
        limit: Number of slots; None is unlimited.
        tickets: Tickets of all holders and waiting runs, by number of arrival.
        places: Numbers of arrival by ticket.
        first: Number of the first run without a slot.
        arrived: Number of the next arrival.
        waiting: Number of runs that wait.
    """

    limit: int | None = None
    tickets: dict[int, str] = msgspec.field(default_factory=dict)
    places: dict[str, int] = msgspec.field(default_factory=dict)
    first: int = 0
    arrived: int = 0
    waiting: int = 0

    @property
    @override
    def is_forgotten(self) -> bool:
        """Whether no run holds a slot or waits for one: the instance may be deleted."""
        return not self.tickets

    @property
    def held(self) -> int:
        """Number of runs that hold a slot."""
        return len(self.tickets) - self.waiting


# -- applying: `apply(run, event, at_ms)`


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
            _grant_through(run, event.through)
        case SlotReturned():
            _return_slot(run, event.number)
        case _:
            runs.APPLIERS[type(event)](run, event)
    # An owner has to act only while runs wait for a slot.
    run.status = RunStatus.ACTIVE if run.waiting else RunStatus.WAITING
    runs.applied(run, event, at_ms)


def _grant_through(run: SlotsRun, through: int) -> None:
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


# -- deciding: first come, first served

#: Maximum slots granted in one decision, so that the posts fit into a record. Others follow.
GRANTED_MAX: Final = 1_000


def request_slot(
    run: SlotsRun | None, slots: tuple[str, str], command: AskSlot, limit: int | None
) -> Decision:
    """Grant a slot, or queue the request.

    Args:
        run: State of the limit; None if no run holds or waits for a slot.
        slots: Workflow name and instance id of the limit.
        command: The request.
        limit: Current limit; None is unlimited.
    """
    if run is None:
        started = RunStarted(command.key or "null", "", kind=SLOTS)
        limited = [] if limit is None else [SlotsLimited(limit)]
        queued = SlotQueued(command.ticket, 0, command.key)
        return [started, *limited, queued, *_grants(slots, 0, [(0, command.ticket)])]
    if command.ticket in run.places:
        return STALE
    if run.waiting >= WAITING_MAX:
        return Rejection(
            SLOT_QUEUE_FULL,
            f"expected at most {WAITING_MAX} runs of {run.workflow} to wait for a slot of one "
            f"concurrency limit, found that many already; is a limit of {limit} intended?",
        )
    arrival = (run.arrived, command.ticket)
    queued = SlotQueued(command.ticket, run.arrived, command.key)
    events: list[RunEvent] = [*_limited(run, limit), queued]
    return events + _grant(run, [*_next(run, _free(run.held, limit)), arrival], run.held, limit)


def return_slot(run: SlotsRun, command: ReturnSlot, limit: int | None) -> Decision:
    """Return a slot or cancel a queued request, then grant free slots in order of arrival."""
    number = run.places.get(command.ticket)
    if number is None:
        return STALE
    held = run.held - (number < run.first)
    # One more, because the returning run may be among them.
    waiting = [entry for entry in _next(run, _free(held, limit) + 1) if entry[0] != number]
    return [*_limited(run, limit), SlotReturned(number), *_grant(run, waiting, held, limit)]


def adjust_to_limit(run: SlotsRun, limit: int | None) -> Decision:
    """Apply the current limit: with more slots, more waiting runs are granted one."""
    waiting = _next(run, _free(run.held, limit))
    return [*_limited(run, limit), *_grant(run, waiting, run.held, limit)] or STALE


def needs_adjustment(run: SlotsRun, limit: int | None) -> bool:
    """Whether the limit has changed, or a waiting run could have a slot."""
    return run.limit != limit or (run.waiting > 0 and _free(run.held, limit) > 0)


def _limited(run: SlotsRun, limit: int | None) -> list[RunEvent]:
    return [] if run.limit == limit else [SlotsLimited(limit)]


def _free(held: int, limit: int | None) -> int:
    """Return how many slots can be granted now. After the limit was lowered it may be 0."""
    return GRANTED_MAX if limit is None else min(GRANTED_MAX, max(0, limit - held))


def _next(run: SlotsRun, limit: int) -> list[tuple[int, str]]:
    """Return the runs that have waited longest: their numbers and tickets."""
    runs: list[tuple[int, str]] = []
    number = run.first
    while len(runs) < min(limit, run.waiting):
        if number in run.tickets:
            runs.append((number, run.tickets[number]))
        number += 1
    return runs


def _grant(
    run: SlotsRun, waiting: list[tuple[int, str]], held: int, limit: int | None
) -> list[RunEvent]:
    slots = (run.workflow, run.instance_id)
    return _grants(slots, run.posted, waiting[: _free(held, limit)])


def _grants(
    slots_instance: tuple[str, str], posted: int, chosen: list[tuple[int, str]]
) -> list[RunEvent]:
    if not chosen:
        return []
    workflow, slots_id = slots_instance
    posts = (
        Post(number, workflow, holder_of(ticket)[0], GrantSlot(ticket, slots_id))
        for number, (_, ticket) in enumerate(chosen, posted)
    )
    return [SlotsGiven(chosen[-1][0]), PostsQueued(tuple(posts))]
