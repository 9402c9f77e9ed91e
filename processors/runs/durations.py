"""Durations as authors write them."""

import re
from datetime import timedelta
from functools import lru_cache
from typing import Final, TypeAlias

#: A number of milliseconds, text such as "10 seconds", or a timedelta.
Duration: TypeAlias = str | float | timedelta

#: A hundred years: nobody means more, and a time that is so far off is still a number of 64 bits.
LONGEST_MS: Final = 100 * 365 * 86_400_000

_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
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
    """Read a duration in whole milliseconds.

    Args:
        duration: A number is milliseconds; text is a number in digits and a unit (ms, s, sec,
            second, m, min, minute, h, hr, hour, d, day, plurals too). A fraction of a millisecond
            is rounded, but what is not 0 is at least 1 ms.

    Raises:
        ValueError: For anything else, and for what is negative or longer than LONGEST_MS.
    """
    if isinstance(duration, str):
        return _text_ms(duration)
    number = duration.total_seconds() * 1_000 if isinstance(duration, timedelta) else duration
    # True is a number to Python, and authors who pass it mean something else.
    if type(number) not in (int, float) or not 0 <= number <= LONGEST_MS:
        raise ValueError(_expected(duration))
    return _rounded(number)


def milliseconds_of(what: str, duration: Duration) -> int:
    """Read a duration in whole milliseconds, as `milliseconds` does.

    Args:
        what: Name of the duration, for the message of an error.
        duration: The duration.

    Raises:
        ValueError: As of `milliseconds`.
    """
    try:
        return milliseconds(duration)
    except ValueError as why:
        raise ValueError(f"{why}, as {what}") from None


def timeout_of(what: str, duration: Duration) -> int:
    """Read a timeout in whole milliseconds.

    A timeout of 0 would end everything before it begins. One that was computed, as `deadline -
    now`, is 0 when no time is left.

    Args:
        what: Name of the timeout, for the message of an error.
        duration: The timeout, as of `milliseconds`.

    Raises:
        ValueError: For less than 1 ms, and as of `milliseconds`.
    """
    timeout_ms = milliseconds_of(what, duration)
    if not timeout_ms or (isinstance(duration, int | float) and duration < 1):
        raise ValueError(
            f"expected {what} to be at least 1 ms, found {duration!r}: a number is milliseconds, "
            'text names its unit, as "30 seconds"'
        )
    return timeout_ms


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
    return _rounded(number)


def _rounded(number_ms: float) -> int:
    # What is not 0 stays so: a deadline that has not come is not over.
    return round(number_ms) or int(number_ms > 0)


def _expected(found: object) -> str:
    return (
        'expected a duration: milliseconds as a number that is not negative, or text such as "10 '
        f'seconds", at most 100 years, found {found!r}'
    )
