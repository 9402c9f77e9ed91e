"""End waits, sleeps and timeouts: by events, by time, by children.

An event counts for a wait if it was sent at or before the wait's deadline, whenever it is
processed. Events are consumed in the order of arrival, by waits in the order of opening. A sleep
ends before events that were sent after its end, even if no worker was running at that time.

A wait therefore does not end at its deadline but one millisecond later, when all events sent until
the deadline are known. The same holds for children, which may end at their deadline.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from headwater.processors.code.state import CodeRun, Entry
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

#: Kinds that an event or a child may end until their deadline; others end when it is reached.
_ENDED_BY_OTHERS: Final = frozenset({EntryKind.WAIT, EntryKind.CHILD})


def match_wait(run: CodeRun, event: EventReceived) -> list[RunEvent]:
    """Return the end of the wait that an event completes: at most one."""
    received = Received(event.event_id, event.type, event.payload, event.sent_at_ms)
    for key, entry in _waits(run):
        if _fits(received, entry.event_types, entry.wake_at_ms):
            return [_completed(key, [received], entry.limit)]
    return []


def ended_sleeps(run: CodeRun, before_ms: int) -> list[tuple[int, EntryCompleted]]:
    """Return the sleeps that ended before a time, in order, as (end in ms, event)."""
    ended = [
        (entry.wake_at_ms, entry.ordinal, key)
        for key, entry in ((key, run.entries[key]) for key in run.open)
        if entry.kind is EntryKind.SLEEP
        and entry.wake_at_ms is not None
        and entry.wake_at_ms < before_ms
    ]
    return [(at_ms, EntryCompleted(key, "null")) for at_ms, _, key in sorted(ended)]


def complete_waits(run: CodeRun, opened: EntryOpened | None = None) -> list[EntryCompleted]:
    """Complete waits with events of the mailbox: a wait that was just opened, or all open ones."""
    if opened is not None:
        waits = [(opened.key, opened.event_types, opened.wake_at_ms, opened.limit)]
    else:
        waits = [(k, e.event_types, e.wake_at_ms, e.limit) for k, e in _waits(run)]
    events: list[EntryCompleted] = []
    remaining = list(run.mailbox)
    for key, types, deadline_ms, limit in waits:
        fitting = [event for event in remaining if _fits(event, types, deadline_ms)]
        taken = _taken(fitting, limit or 1)
        if taken:
            remaining = [event for event in remaining if event not in taken]
            events.append(_completed(key, taken, limit))
    return events


def catch_up(run: CodeRun, until_ms: int) -> list[RunEvent]:
    """Return the waits and sleeps that ended while a run was halted, in order of time."""
    sent_at_ms = {event.event_id: event.sent_at_ms for event in run.mailbox}
    waits = [(sent_at_ms[wait.consumed[0]], wait) for wait in complete_waits(run)]
    ended = [*waits, *ended_sleeps(run, until_ms + 1)]
    return [event for _, event in sorted(ended, key=lambda pair: pair[0])]


def _taken(fitting: list[Received], limit: int) -> list[Received]:
    """Return the first events, up to a limit, that together fit into a usual result."""
    taken: list[Received] = []
    chars = 0
    for event in fitting[:limit]:
        chars += len(event.payload)
        if taken and chars > VALUE_BYTES_MAX:
            break
        taken.append(event)
    return taken


def due_events(
    run: CodeRun, until_ms: int, *, complete: bool = False
) -> tuple[list[RunEvent], list[str]]:
    """Return the entries that time has ended, and the attempts that it starts.

    Args:
        run: A run that is not halted.
        until_ms: The current time, in ms since the epoch.
        complete: Whether everything that was sent at that time is known.

    Returns:
        Events in the order of their times, retries last; and the keys of children that timed out.
        Attempts that start together start in the order in which the code reached their steps, which
        is the order after a crash as well.
    """
    events: list[RunEvent] = []
    late: list[str] = []
    retried: list[str] = []
    until_over_ms = until_ms if complete else until_ms - 1
    passed = [
        (entry.wake_at_ms, entry.kind in _ENDED_BY_OTHERS, entry.ordinal, key, entry)
        for key, entry in ((key, run.entries[key]) for key in run.open)
        if entry.wake_at_ms is not None
        and entry.wake_at_ms <= (until_over_ms if entry.kind in _ENDED_BY_OTHERS else until_ms)
    ]
    for *_, key, entry in sorted(passed, key=lambda item: item[:3]):
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


def cleanup_expired(run: CodeRun, until_ms: int) -> bool:
    """Return whether the code of a canceled run has used up its time to clean up."""
    cancelling = run.cancelling
    return cancelling is not None and run.rollback is None and cancelling.until_ms <= until_ms


def handlers_due(run: CodeRun, now_ms: int) -> list[str]:
    """Return the keys of the steps with rollback handlers to retry."""
    if run.rollback is None:
        return []
    return [
        key
        for key, entry in run.entries.items()
        if 0 < entry.rollback_at_ms <= now_ms and not entry.rolled_back
    ]


def next_wake_ms(run: CodeRun, after_ms: int = 0) -> int | None:
    """Return when, after `after_ms`, a timer next changes the run, or None."""
    if run.ended or not (run.open or run.back_at_ms or run.rollback or run.cancelling):
        return None
    times = [_timer_ms(run.entries[key]) for key in run.open]
    times.append(run.back_at_ms)
    if run.cancelling is not None and run.rollback is None:
        times.append(run.cancelling.until_ms)
    if run.rollback is not None:
        times += [e.rollback_at_ms for e in run.entries.values() if not e.rolled_back]
    return min((at_ms for at_ms in times if at_ms > after_ms), default=None)


def _timer_ms(entry: Entry) -> int:
    if entry.wake_at_ms is None:
        return 0
    return entry.wake_at_ms + 1 if entry.kind in _ENDED_BY_OTHERS else entry.wake_at_ms


def _waits(run: CodeRun) -> Iterator[tuple[str, Entry]]:
    for key in run.open:
        entry = run.entries[key]
        if entry.kind is EntryKind.WAIT:
            yield key, entry


def _fits(event: Received, types: tuple[str, ...] | None, deadline_ms: int | None) -> bool:
    in_time = deadline_ms is None or event.sent_at_ms <= deadline_ms
    return in_time and types is not None and event.type in types


def _completed(key: str, taken: list[Received], limit: int | None) -> EntryCompleted:
    texts = [_event_json(event) for event in taken]
    result = texts[0] if limit is None else f"[{','.join(texts)}]"
    return EntryCompleted(key, result, tuple(event.event_id for event in taken))


def _event_json(event: Received) -> str:
    # The payload is already JSON text.
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
    """Return the error of a child that has not ended within its timeout."""
    child = entry.child
    name = f"{child.workflow}/{child.instance_id}" if child else entry.name
    message = f"expected {name} to end within its timeout, found it still running"
    return Failure(CHILD_WORKFLOW, message)
