"""Times and spans in words, for people."""

from datetime import UTC, datetime
from typing import Final

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
#: From the largest: the unit, what it is called, and from which span on it is used alone.
_UNITS: Final = (
    (_DAY, "d", 2 * _DAY),
    (_HOUR, "h", _HOUR),
    (_MINUTE, "min", _MINUTE),
    (_SECOND, "s", _SECOND),
)
_DIGITS_BELOW_MS: Final = 10 * _SECOND


def at(moment_ms: int) -> datetime:
    """A moment, from Unix milliseconds."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def rfc3339(moment_ms: int) -> str:
    """A moment to the millisecond, as the API writes it: it ends in Z."""
    return at(moment_ms).isoformat("T", "milliseconds").replace("+00:00", "Z")


def moment(when: datetime) -> str:
    """A moment, to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def relative(when: datetime, now: datetime) -> str:
    """How far a moment lies from now: `3 min ago`, `in 2 h`, `now`."""
    ahead = span_ms(now, when)
    for unit, name, least in _UNITS:
        if abs(ahead) >= least:
            count = abs(ahead) // unit
            return f"in {count} {name}" if ahead > 0 else f"{count} {name} ago"
    return "now"


def both(when: datetime, now: datetime) -> str:
    """A moment, and how far it lies from now."""
    return f"{moment(when)} ({relative(when, now)})"


def span_ms(since: datetime, until: datetime) -> int:
    """Milliseconds from one moment to another."""
    return round((until - since).total_seconds() * 1000)


def span(milliseconds: int) -> str:
    """A span by its two largest units: `850 ms`, `1.2 s`, `3 min 5 s`, `2 d 4 h`."""
    if milliseconds < _SECOND:
        return f"{max(0, milliseconds)} ms"
    if milliseconds < _DIGITS_BELOW_MS:
        return f"{milliseconds // 100 / 10:g} s"
    for index, (unit, name, _) in enumerate(_UNITS[:-1]):
        if milliseconds >= unit:
            smaller, its_name, _ = _UNITS[index + 1]
            rest = milliseconds % unit // smaller
            return f"{milliseconds // unit} {name}" + (f" {rest} {its_name}" if rest else "")
    return f"{milliseconds // _SECOND} s"
