"""Decides who gets a slot: whoever came first, as soon as one is free.

Pure: (state, command, the limit as it is now) -> events or a rejection.
"""

from typing import Final

from headwater.processors.runs.decisions import STALE, Decision, Rejection
from headwater.processors.runs.slots import SLOTS, holder_of
from headwater.processors.slots.state import WAITING_MAX, SlotsRun
from headwater.schemas.failures import SLOT_QUEUE_FULL
from headwater.schemas.history import (
    AskSlot,
    GrantSlot,
    Post,
    PostsQueued,
    ReturnSlot,
    RunEvent,
    RunStarted,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
    SlotsLimited,
)

#: Slots that are given at once: a record has room for so many posts. The others follow.
GIVEN_MAX: Final = 1_000


def ask(
    run: SlotsRun | None, who: tuple[str, str], command: AskSlot, limit: int | None
) -> Decision:
    """Gives a slot, or a place among those who wait for one.

    Shape:  who counts: its workflow and itself.
    """
    if run is None:
        started = RunStarted(command.key or "null", "", kind=SLOTS)
        limited = [] if limit is None else [SlotsLimited(limit)]
        queued = SlotQueued(command.ticket, 0, command.key)
        return [started, *limited, queued, *_given(who, 0, [(0, command.ticket)])]
    if command.ticket in run.places:
        return STALE
    if run.waiting >= WAITING_MAX:
        return Rejection(
            SLOT_QUEUE_FULL,
            f"expected at most {WAITING_MAX} runs of {run.workflow} that wait for a slot of one "
            f"limit of concurrency, found as many; is a limit of {limit} what is meant?",
        )
    came = (run.arrived, command.ticket)
    queued = SlotQueued(command.ticket, run.arrived, command.key)
    events: list[RunEvent] = [*_limited(run, limit), queued]
    return events + _give(run, [*_next(run, _free(run.held, limit)), came], run.held, limit)


def give_back(run: SlotsRun, command: ReturnSlot, limit: int | None) -> Decision:
    """Takes a slot back, or a place among those who wait; whoever is first has what is free."""
    number = run.places.get(command.ticket)
    if number is None:
        return STALE
    held = run.held - (number < run.first)
    # One more is looked at, because it may be the one who leaves.
    waiting = [each for each in _next(run, _free(held, limit) + 1) if each[0] != number]
    return [*_limited(run, limit), SlotReturned(number), *_give(run, waiting, held, limit)]


def adjust(run: SlotsRun, limit: int | None) -> Decision:
    """Counts with the limit as it is now: with more slots, more of those who wait have one."""
    waiting = _next(run, _free(run.held, limit))
    return [*_limited(run, limit), *_give(run, waiting, run.held, limit)] or STALE


def is_to_adjust(run: SlotsRun, limit: int | None) -> bool:
    """Whether the limit is another, or somebody waits who could have a slot."""
    return run.limit != limit or (run.waiting > 0 and _free(run.held, limit) > 0)


def _limited(run: SlotsRun, limit: int | None) -> list[RunEvent]:
    return [] if run.limit == limit else [SlotsLimited(limit)]


def _free(held: int, limit: int | None) -> int:
    """How many can be given a slot now; fewer have it than the limit says after it was lowered."""
    return GIVEN_MAX if limit is None else min(GIVEN_MAX, max(0, limit - held))


def _next(run: SlotsRun, most: int) -> list[tuple[int, str]]:
    """Those who have waited longest: their numbers and tickets."""
    found: list[tuple[int, str]] = []
    number = run.first
    while len(found) < min(most, run.waiting):
        if number in run.tickets:
            found.append((number, run.tickets[number]))
        number += 1
    return found


def _give(
    run: SlotsRun, waiting: list[tuple[int, str]], held: int, limit: int | None
) -> list[RunEvent]:
    who = (run.workflow, run.instance_id)
    return _given(who, run.posted, waiting[: _free(held, limit)])


def _given(who: tuple[str, str], posted: int, chosen: list[tuple[int, str]]) -> list[RunEvent]:
    if not chosen:
        return []
    workflow, slots = who
    posts = (
        Post(number, workflow, holder_of(ticket)[0], GrantSlot(ticket, slots))
        for number, (_, ticket) in enumerate(chosen, posted)
    )
    return [SlotsGiven(chosen[-1][0]), PostsQueued(tuple(posts))]
