"""Timeline of a run: bars of its entries on an axis of time."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from headwater.gateway.api.console.rendering import moment

#: Length of the axis in units, whatever its duration.
WIDTH: Final = 1000
#: Least length of a bar; a shorter one would not be visible.
_BAR_MIN: Final = 4


class Bar(NamedTuple):
    """Bar of an entry; start, width and tick are in units of the axis, of `WIDTH`.

    Attributes:
        start: Start of the entry.
        width: Duration of the entry.
        tick: Start of its last attempt; None if there was only one.
        seconds: Duration in seconds.
    """

    start: float
    width: float
    tick: float | None
    seconds: float


def bars(entries: Sequence[Mapping[str, Any]], now: datetime) -> list[Bar]:
    """Return the bars of entries, on an axis from the earliest start to the latest end.

    Args:
        entries: Steps or tokens from the API.
        now: End of entries that have not ended.
    """
    spans = [_span(entry, now) for entry in entries]
    if not spans:
        return []
    began = min(start for start, _ in spans)
    duration_s = (max(end for _, end in spans) - began).total_seconds() or 1.0

    def at(when: datetime) -> float:
        return (when - began).total_seconds() / duration_s * WIDTH

    result = []
    for entry, (start, end) in zip(entries, spans, strict=True):
        width = max(at(end) - at(start), _BAR_MIN)
        last_attempt = entry.get("lastAttemptAt")
        tick = at(moment(last_attempt)) if last_attempt and entry["attempts"] > 1 else None
        seconds = (end - start).total_seconds()
        result.append(Bar(min(at(start), WIDTH - width), width, tick, seconds))
    return result


def _span(entry: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    start = moment(entry["createdAt"])
    end = moment(entry["completedAt"]) if entry["completedAt"] else now
    return start, max(start, end)
