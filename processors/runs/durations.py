"""Durations as authors write them."""

import re
from datetime import timedelta
from functools import lru_cache
from typing import Final, TypeAlias

#: A number of milliseconds, text such as "10 seconds", or a timedelta.
Duration: TypeAlias = str | float | timedelta

#: A hundred years: nobody means more, and a time that is so far off is still a number of 64 bits.
LONGEST_MS: Final = 100 * 365 * 86_400_000

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
    Errors: ValueError for anything else, and for what is negative or longer than LONGEST_MS.
    """
    if isinstance(duration, str):
        return _text_ms(duration)
    number = duration.total_seconds() * 1_000 if isinstance(duration, timedelta) else duration
    # True is a number to Python, and authors who pass it mean something else.
    if type(number) not in (int, float) or not 0 <= number <= LONGEST_MS:
        raise ValueError(_expected(duration))
    return round(number)


def milliseconds_of(what: str, duration: Duration) -> int:
    """Reads a duration whose fault is told with what it was to be.

    Errors: ValueError, as `milliseconds`.
    """
    try:
        return milliseconds(duration)
    except ValueError as why:
        raise ValueError(f"{why}, as {what}") from None


# Code is full of a few durations that never change.
@lru_cache(maxsize=1_000)
def _text_ms(duration: str) -> int:
    found = _TEXT.fullmatch(duration)
    if found is None:
        raise ValueError(_expected(duration))
    unit = found[2].lower()
    factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
    if factor is None or unit == "mss":
        raise ValueError(
            f"expected a unit such as ms, seconds, minutes, hours or days, found {found[2]!r} "
            f"in the duration {duration!r}"
        )
    number = float(found[1]) * factor
    if number > LONGEST_MS:
        raise ValueError(_expected(duration))
    return round(number)


def _expected(found: object) -> str:
    return (
        'expected a duration: milliseconds as a number that is not negative, or text such as "10 '
        f'seconds", at most 100 years, found {found!r}'
    )
