"""Texts of times, durations and values, for the command line and the console."""

import json
from datetime import UTC, datetime
from typing import Final

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
#: Units, largest first: milliseconds, name, and from which duration on it is used alone.
_UNITS: Final = (
    (_DAY, "d", 2 * _DAY),
    (_HOUR, "h", _HOUR),
    (_MINUTE, "min", _MINUTE),
    (_SECOND, "s", _SECOND),
)
_DIGITS_BELOW_MS: Final = 10 * _SECOND


def from_unix_ms(moment_ms: int) -> datetime:
    """Return a time from Unix milliseconds."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def rfc3339(moment_ms: int) -> str:
    """Return a time to the millisecond, as the API writes it: it ends in Z."""
    return from_unix_ms(moment_ms).isoformat("T", "milliseconds").replace("+00:00", "Z")


def moment(when: datetime) -> str:
    """Return a time to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def relative(when: datetime, now: datetime) -> str:
    """Return the distance of a time from now: `3 min ago`, `in 2 h`, `now`."""
    ahead = span_ms(now, when)
    for unit, name, least in _UNITS:
        if abs(ahead) >= least:
            count = abs(ahead) // unit
            return f"in {count} {name}" if ahead > 0 else f"{count} {name} ago"
    return "now"


def absolute_and_relative(when: datetime, now: datetime) -> str:
    """Return a time, and its distance from now."""
    return f"{moment(when)} ({relative(when, now)})"


def span_ms(since: datetime, until: datetime) -> int:
    """Return the milliseconds from one time to another."""
    return round((until - since).total_seconds() * 1000)


def span(milliseconds: int) -> str:
    """Return a duration by its two largest units: `850 ms`, `1.2 s`, `3 min 5 s`, `2 d 4 h`."""
    if milliseconds < _SECOND:
        return f"{max(0, milliseconds)} ms"
    if milliseconds < _DIGITS_BELOW_MS:
        return f"{milliseconds // 100 / 10:g} s"
    for index, (unit, name, _) in enumerate(_UNITS[:-1]):
        if milliseconds >= unit:
            smaller, smaller_name, _ = _UNITS[index + 1]
            rest = milliseconds % unit // smaller
            return f"{milliseconds // unit} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{milliseconds // _SECOND} s"


def shortened(text: str, longest: int | None) -> str:
    """Return a text, shortened to `longest` characters."""
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"


def json_text(value: object, longest: int | None = None) -> str:
    """Return a value as JSON, shortened to `longest` characters."""
    return shortened(json.dumps(value, ensure_ascii=False), longest)
