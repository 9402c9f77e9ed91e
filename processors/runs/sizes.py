"""Size of a decision in the log, where all its events share one record.

Every value has a limit of its own, and so has the output of a step, so that a decision about a few
of them fits. The rest is checked here, before anything is applied: a record that Kafka rejects
would be decided again after every crash, and its partition would never make progress. Instead the
run fails, or only the command if no run could end.
"""

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeAlias, get_args

import msgspec

from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.engine import Engine
from headwater.processors.runs.limits import DECISION_BYTES_MAX, bounded
from headwater.schemas.failures import RECORD_TOO_LARGE
from headwater.schemas.history import Failure, LogEvent, RunEvent, RunStarted

#: Overhead of an event besides its texts and parts: numbers of at most 10 bytes, lengths of 5.
_EVENT_BYTES: Final = 128
#: The same for a text, a number, or a list within an event.
_PART_BYTES: Final = 16


def _exactly(text: str) -> int:
    return len(text.encode())


def _names(kind: type[msgspec.Struct], *, texts: bool) -> list[str]:
    """Return the fields of an event that hold text, or those that hold parts."""
    names = []
    for field in msgspec.structs.fields(kind):
        members = set(get_args(field.type) or (field.type,)) - {type(None)}
        if not members <= {int, bool} and (members == {str}) is texts:
            names.append(field.name)
    return names


_Get: TypeAlias = Callable[[Any], tuple[Any, ...]]


def _getter(names: list[str]) -> _Get:
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda event: (get(event),)


#: Large fields by type of event: texts, and parts, which contain texts again.
_LARGE: Final = {
    kind: (_getter(_names(kind, texts=True)), _getter(_names(kind, texts=False)))
    for kind in get_args(LogEvent)
}


def bytes_max(events: Iterable[LogEvent], measure: Callable[[str], int] | None = None) -> int:
    """Return an upper bound of the bytes that events take in a record.

    Cheap, because every decision is measured.

    Args:
        events: The events.
        measure: Returns the size of a text; without it four bytes a character, the maximum.
    """
    size = 0
    for event in events:
        texts, parts = _LARGE[type(event)]
        size += _EVENT_BYTES
        for text in texts(event):
            if text:
                size += measure(text) if measure else 4 * len(text)
        for part in parts(event):
            if part is not None:
                size += _part(part, measure)
    return size


def _part(part: object, measure: Callable[[str], int] | None) -> int:
    if isinstance(part, str):
        return _PART_BYTES + (measure(part) if measure else 4 * len(part))
    if isinstance(part, tuple):
        if part and type(part[0]) is int:
            return _PART_BYTES * (1 + len(part))
        return _PART_BYTES + sum([_part(item, measure) for item in part])
    if not isinstance(part, msgspec.Struct):
        return _PART_BYTES
    size, texts, parts = _fields_of(type(part))
    for text in texts(part):
        if text:
            size += measure(text) if measure else 4 * len(text)
    for nested in parts(part):
        if nested is not None:
            size += _part(nested, measure)
    return size


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[int, _Get, _Get]:
    """Return the size of a part without texts and nested parts, and getters of these."""
    size = _PART_BYTES * (1 + len(kind.__struct_fields__))
    return size, _getter(_names(kind, texts=True)), _getter(_names(kind, texts=False))


def fitting(engine: Engine[Any], run: Any, decision: Decision) -> Decision:  # noqa: ANN401
    """Return the decision, or its replacement if no record can hold it.

    A run that has not ended fails. A new run does not start, and a run that has ended stays as it
    is: the replacement is then a rejection.

    Args:
        engine: Engine of the run.
        run: The run that the decision is about, or None.
        decision: The decision.
    """
    if isinstance(decision, Rejection):
        return Rejection(decision.code, bounded(decision.message))
    if bytes_max(decision) <= DECISION_BYTES_MAX:
        return decision
    return replacement(engine, run, decision)


def replacement(engine: Engine[Any], run: Any, decision: list[RunEvent]) -> Decision:  # noqa: ANN401
    """Return a decision whose upper bound is too large, or its replacement; see `fitting`."""
    size = bytes_max(decision, _exactly)
    if size <= DECISION_BYTES_MAX:
        return decision
    problem = _problem(engine, run, decision, size)
    if run is None or run.ended or isinstance(decision[0], RunStarted):
        return Rejection(RECORD_TOO_LARGE, problem)
    failure = Failure(RECORD_TOO_LARGE, problem)
    ended = engine.fail_run(run, failure)
    if bytes_max(ended, _exactly) <= DECISION_BYTES_MAX:
        return ended
    # With so many children, ending them is too large: they continue, and their end is not reported.
    return engine.fail_run(run, failure, with_children=False)


def _problem(engine: Engine[Any], run: Any, events: list[RunEvent], size: int) -> str:  # noqa: ANN401
    largest = max(events, key=lambda event: bytes_max((event,), _exactly))
    location = "" if run is None else engine.event_location(run, events, largest)
    of = f" of {location}" if location else ""
    return (
        f"expected what is decided at once to have at most {DECISION_BYTES_MAX} bytes, "
        f"found {size} in {len(events)} events, the largest {type(largest).__name__}{of} with "
        f"{bytes_max((largest,), _exactly)}; store large data elsewhere and keep a reference to "
        f"it, or {engine.size_advice}"
    )
