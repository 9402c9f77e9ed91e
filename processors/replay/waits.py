"""What waits in a run, and what ends the waiting: events, time, children.

An event counts for a wait when it was sent at or before the wait's deadline, whenever it is
handled. Events are taken in the order in which they came, by waits in the order of their opening.
A sleep has ended before what was sent after its end, also when nobody was there to see it end.

So a wait does not end with its deadline but with the moment after it, when all that was sent until
then may be known; the same holds for children, which may end at their deadline.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from headwater.processors.replay.state import CodeRun, Entry
from headwater.processors.runs.limits import VALUE_BYTES_MAX
from headwater.processors.runs.state import Received
from headwater.schemas.failures import CHILD_WORKFLOW, EVENT_TIMEOUT
from headwater.schemas.history import (
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EventReceived,
    Failure,
    RunEvent,
    StepsRetried,
)
from headwater.schemas.statuses import EntryKind

#: Kinds that others may end until their time is over; the others end as soon as it has come.
_OTHERS_END: Final = frozenset({EntryKind.WAIT, EntryKind.CHILD})


def met(run: CodeRun, event: EventReceived) -> list[RunEvent]:
    """What the arrival of an event ends: at most one wait."""
    received = Received(event.event_id, event.type, event.payload, event.sent_at_ms)
    for key, entry in _waits(run):
        if _fits(received, entry.event_types, entry.wake_at_ms):
            return [_completed(key, [received], entry.limit)]
    return []


def slept(run: CodeRun, before_ms: int) -> list[tuple[int, EntryCompleted]]:
    """The sleeps that ended before a time, in order, each with its end."""
    ended = [
        (entry.wake_at_ms, entry.ordinal, key)
        for key, entry in ((key, run.entries[key]) for key in run.open)
        if entry.kind is EntryKind.SLEEP
        and entry.wake_at_ms is not None
        and entry.wake_at_ms < before_ms
    ]
    return [(at_ms, EntryCompleted(key, "null")) for at_ms, _, key in sorted(ended)]


def settle(run: CodeRun, opened: EntryOpened | None = None) -> list[EntryCompleted]:
    """What lies in the mailbox already ends: a wait that was just opened, or all that are open."""
    if opened is not None:
        waits = [(opened.key, opened.event_types, opened.wake_at_ms, opened.limit)]
    else:
        waits = [(k, e.event_types, e.wake_at_ms, e.limit) for k, e in _waits(run)]
    events: list[EntryCompleted] = []
    left = list(run.mailbox)
    for key, types, deadline_ms, limit in waits:
        taken = _taken([each for each in left if _fits(each, types, deadline_ms)], limit or 1)
        if taken:
            left = [each for each in left if each not in taken]
            events.append(_completed(key, taken, limit))
    return events


def caught_up(run: CodeRun, until_ms: int) -> list[RunEvent]:
    """What ended while a run stood still, in the order of its times: waits and sleeps."""
    sent_at_ms = {each.event_id: each.sent_at_ms for each in run.mailbox}
    waits = [(sent_at_ms[each.consumed[0]], each) for each in settle(run)]
    ended = [*waits, *slept(run, until_ms + 1)]
    return [event for _, event in sorted(ended, key=lambda each: each[0])]


def _taken(fitting: list[Received], limit: int) -> list[Received]:
    """The first events, up to a limit, that are a result of the usual size together."""
    taken: list[Received] = []
    chars = 0
    for event in fitting[:limit]:
        chars += len(event.payload)
        if taken and chars > VALUE_BYTES_MAX:
            break
        taken.append(event)
    return taken


def due(run: CodeRun, until_ms: int, *, complete: bool = False) -> tuple[list[RunEvent], list[str]]:
    """What time has ended, and what it begins.

    Args:
        run: A run that is not paused.
        until_ms: The time, in ms since the epoch.
        complete: Whether all that was sent at that time is known.

    Returns:
        Events in the order of their times, retries last; and the keys of children that took too
        long. Attempts that begin together begin in the order in which the code came to their steps:
        so they do after a crash, too.
    """
    events: list[RunEvent] = []
    late: list[str] = []
    retried: list[str] = []
    until_over_ms = until_ms if complete else until_ms - 1
    passed = [
        (entry.wake_at_ms, entry.kind in _OTHERS_END, entry.ordinal, key, entry)
        for key, entry in ((key, run.entries[key]) for key in run.open)
        if entry.wake_at_ms is not None
        and entry.wake_at_ms <= (until_over_ms if entry.kind in _OTHERS_END else until_ms)
    ]
    for *_, key, entry in sorted(passed, key=lambda each: each[:3]):
        match entry.kind:
            case EntryKind.SLEEP:
                events.append(EntryCompleted(key, "null"))
            case EntryKind.WAIT:
                events.append(_timed_out(key, entry))
            case EntryKind.CHILD:
                events.append(EntryErrored(key, too_long(entry)))
                late.append(key)
            case EntryKind.DO if run.rollback is None:
                retried.append(key)
            case _:
                pass
    if retried:
        retried.sort(key=lambda key: run.entries[key].ordinal)
        events.append(StepsRetried(tuple(retried)))
    return events, late


def is_out_of_time(run: CodeRun, until_ms: int) -> bool:
    """Whether the code of a cancelled run has had its time to clean up."""
    cancelling = run.cancelling
    return cancelling is not None and run.rollback is None and cancelling.until_ms <= until_ms


def handlers_due(run: CodeRun, now_ms: int) -> list[str]:
    """The keys of the steps whose rollback handlers are to be tried again."""
    if run.rollback is None:
        return []
    return [
        key
        for key, entry in run.entries.items()
        if 0 < entry.rollback_at_ms <= now_ms and not entry.rolled_back
    ]


def next_wake_ms(run: CodeRun, after_ms: int = 0) -> int | None:
    """When, after a time, time next moves the run, or None."""
    if run.ended or not (run.open or run.back_at_ms or run.rollback or run.cancelling):
        return None
    times = [_moves_at_ms(run.entries[key]) for key in run.open]
    times.append(run.back_at_ms)
    if run.cancelling is not None and run.rollback is None:
        times.append(run.cancelling.until_ms)
    if run.rollback is not None:
        times += [e.rollback_at_ms for e in run.entries.values() if not e.rolled_back]
    return min((at_ms for at_ms in times if at_ms > after_ms), default=None)


def _moves_at_ms(entry: Entry) -> int:
    if entry.wake_at_ms is None:
        return 0
    return entry.wake_at_ms + 1 if entry.kind in _OTHERS_END else entry.wake_at_ms


def _waits(run: CodeRun) -> Iterator[tuple[str, Entry]]:
    for key in run.open:
        entry = run.entries[key]
        if entry.kind is EntryKind.WAIT:
            yield key, entry


def _fits(event: Received, types: tuple[str, ...] | None, deadline_ms: int | None) -> bool:
    in_time = deadline_ms is None or event.sent_at_ms <= deadline_ms
    return in_time and types is not None and event.type in types


def _completed(key: str, taken: list[Received], limit: int | None) -> EntryCompleted:
    shown = [_shown(event) for event in taken]
    result = shown[0] if limit is None else f"[{','.join(shown)}]"
    return EntryCompleted(key, result, tuple(event.event_id for event in taken))


def _shown(event: Received) -> str:
    # The payload is JSON text already.
    return (
        f'{{"type":{json.dumps(event.type)},"payload":{event.payload},'
        f'"timestamp":{event.sent_at_ms}}}'
    )


def _timed_out(key: str, entry: Entry) -> EntryCompleted | EntryErrored:
    if entry.limit is not None:
        return EntryCompleted(key, "[]")
    types = " or ".join(entry.event_types or ())
    until = datetime.fromtimestamp((entry.wake_at_ms or 0) / 1_000, UTC).isoformat()
    message = f"expected an event of type {types} for {entry.name} until {until}, found none"
    return EntryErrored(key, Failure(EVENT_TIMEOUT, message))


def too_long(entry: Entry) -> Failure:
    """The error of a child that has not ended within its timeout."""
    child = entry.child
    name = f"{child.workflow}/{child.instance_id}" if child else entry.name
    message = f"expected {name} to end within its timeout, found it still running"
    return Failure(CHILD_WORKFLOW, message)
