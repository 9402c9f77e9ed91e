"""Durations as authors write them."""

import re
from datetime import timedelta
from typing import Final, TypeAlias

#: A number of milliseconds, text such as "10 seconds", or a timedelta.
Duration: TypeAlias = str | int | float | timedelta

_TEXT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hr": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


def milliseconds(duration: Duration) -> int:
    """Reads a duration.

    Shape:  a number is milliseconds; text is a number and a unit (ms, s, sec, second, m, min,
            minute, h, hr, hour, d, day, plurals too).
    Errors: ValueError for anything else, and for what is negative or endless.
    """
    if isinstance(duration, timedelta):
        duration = duration.total_seconds() * 1_000
    if isinstance(duration, bool):
        raise ValueError(_expected(duration))
    if isinstance(duration, int | float):
        if not 0 <= duration < float("inf"):
            raise ValueError(_expected(duration))
        return round(duration)
    found = _TEXT.fullmatch(duration) if isinstance(duration, str) else None
    if found is None:
        raise ValueError(_expected(duration))
    unit = found[2].lower()
    factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
    if factor is None or unit == "mss":
        raise ValueError(
            f"expected a unit such as ms, seconds, minutes, hours or days, found {found[2]!r} "
            f"in the duration {duration!r}"
        )
    return round(float(found[1]) * factor)


def _expected(found: object) -> str:
    return (
        'expected a duration: milliseconds as a number that is not negative, or text such as "10 '
        f'seconds", found {found!r}'
    )
