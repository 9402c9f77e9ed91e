"""When each entry of a run's history was under way, as bars on one line of time."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from headwater.gateway.console.rendering import moment

#: The line is so many units long, whatever it lasts.
WIDTH: Final = 1000
#: What is shorter would not be seen.
_BAR_MIN: Final = 4


class Bar(NamedTuple):
    """An entry on the line of time.

    Shape:  tick is where its last attempt began, None if it was the first.
    Units:  start, width and tick of `WIDTH`.
    """

    start: float
    width: float
    tick: float | None
    seconds: float


def bars(entries: Sequence[Mapping[str, Any]], now: datetime) -> list[Bar]:
    """A bar for each entry, on the line from the first beginning to the last end.

    Shape:  steps or tokens as the API gives them; what has not ended lasts until now.
    """
    spans = [_span(each, now) for each in entries]
    if not spans:
        return []
    began = min(start for start, _ in spans)
    whole = (max(end for _, end in spans) - began).total_seconds() or 1.0

    def at(when: datetime) -> float:
        return (when - began).total_seconds() / whole * WIDTH

    found = []
    for each, (start, end) in zip(entries, spans, strict=True):
        width = max(at(end) - at(start), _BAR_MIN)
        last = each.get("lastAttemptAt")
        tick = at(moment(last)) if last and each["attempts"] > 1 else None
        seconds = (end - start).total_seconds()
        found.append(Bar(min(at(start), WIDTH - width), width, tick, seconds))
    return found


def _span(entry: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    start = moment(entry["createdAt"])
    end = moment(entry["completedAt"]) if entry["completedAt"] else now
    return start, max(start, end)
