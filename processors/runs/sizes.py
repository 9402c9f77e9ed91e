"""How large what is decided is in the log, where all events of a decision share one record.

Each value has a limit of its own, and so has what a step sends; so what is decided of a few of them
fits. The rest is checked here, before anything is applied: a record that Kafka would refuse would
be decided again after every crash, and its partition would stand still for ever. It costs its run
instead, or only the command, where there is no run that could end.
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

#: What an event takes besides its texts and its parts: numbers of 10 bytes at most, lengths of 5.
_EVENT_BYTES: Final = 128
#: The same for a text, a number, or a list within it.
_PART_BYTES: Final = 16


def _exactly(text: str) -> int:
    return len(text.encode())


def _names(kind: type[msgspec.Struct], *, texts: bool) -> list[str]:
    """The fields of an event that hold text, or those that hold parts."""
    found = []
    for field in msgspec.structs.fields(kind):
        members = set(get_args(field.type) or (field.type,)) - {type(None)}
        if not members <= {int, bool} and (members == {str}) is texts:
            found.append(field.name)
    return found


_Get: TypeAlias = Callable[[Any], tuple[Any, ...]]


def _getter(names: list[str]) -> _Get:
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda event: (get(event),)


#: What may be large, by the type of an event: its texts, and its parts, which have texts again.
_LARGE: Final = {
    kind: (_getter(_names(kind, texts=True)), _getter(_names(kind, texts=False)))
    for kind in get_args(LogEvent)
}


def bytes_max(events: Iterable[LogEvent], measure: Callable[[str], int] | None = None) -> int:
    """The most bytes that events take in a record. Cheap: every decision is measured.

    Shape:  what measures a text; without it four bytes a character, the most that one takes.
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
        return _PART_BYTES + sum([_part(each, measure) for each in part])
    if not isinstance(part, msgspec.Struct):
        return _PART_BYTES
    size, texts, parts = _fields_of(type(part))
    for text in texts(part):
        if text:
            size += measure(text) if measure else 4 * len(text)
    for each in parts(part):
        if each is not None:
            size += _part(each, measure)
    return size


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[int, _Get, _Get]:
    """The bytes of a part but for its texts and the parts within it, and what gives these."""
    size = _PART_BYTES * (1 + len(kind.__struct_fields__))
    return size, _getter(_names(kind, texts=True)), _getter(_names(kind, texts=False))


def fitting(engine: Engine[Any], run: Any, decision: Decision) -> Decision:  # noqa: ANN401
    """What is decided instead of what no record can hold; all else as it is.

    Shape:  run is what the decision is about, or None; the engine is that run's. A run that is
            under way ends with an error; a new run does not begin, and one that has ended stays as
            it is: that is a rejection.
    """
    if isinstance(decision, Rejection):
        return Rejection(decision.code, bounded(decision.message))
    if bytes_max(decision) <= DECISION_BYTES_MAX:
        return decision
    size = bytes_max(decision, _exactly)
    if size <= DECISION_BYTES_MAX:
        return decision
    fault = _fault(engine, run, decision, size)
    if run is None or run.ended or isinstance(decision[0], RunStarted):
        return Rejection(RECORD_TOO_LARGE, fault)
    failure = Failure(RECORD_TOO_LARGE, fault)
    ended = engine.give_up(run, failure)
    if bytes_max(ended, _exactly) <= DECISION_BYTES_MAX:
        return ended
    # It has so many children that to end them is too large: they go on, and nobody hears of them.
    return engine.give_up(run, failure, with_children=False)


def _fault(engine: Engine[Any], run: Any, events: list[RunEvent], size: int) -> str:  # noqa: ANN401
    largest = max(events, key=lambda event: bytes_max((event,), _exactly))
    place = "" if run is None else engine.place_of(run, events, largest)
    of = f" of {place}" if place else ""
    return (
        f"expected what is decided at once to have at most {DECISION_BYTES_MAX} bytes, "
        f"found {size} in {len(events)} events, the largest {type(largest).__name__}{of} with "
        f"{bytes_max((largest,), _exactly)}; store large data elsewhere and keep a reference to "
        f"it, or {engine.to_decide_less}"
    )
