"""Durations as authors and operators write them, and how long ended instances are kept."""

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_problem

#: A number of milliseconds, text such as "10 seconds", or a timedelta.
Duration: TypeAlias = str | float | timedelta

#: A hundred years: longer durations are mistakes, and such a time still fits into 64 bits.
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
            is rounded, but a positive duration is at least 1 ms.

    Raises:
        ValueError: Anything else, and durations that are negative or longer than LONGEST_MS.
    """
    if isinstance(duration, str):
        return _text_ms(duration)
    number = duration.total_seconds() * 1_000 if isinstance(duration, timedelta) else duration
    # True is a number to Python, but not what an author means by it.
    if type(number) not in (int, float) or not 0 <= number <= LONGEST_MS:
        raise ValueError(_expected(duration))
    return _rounded(number)


def milliseconds_of(what: str, duration: Duration) -> int:
    """Read a duration in whole milliseconds, as `milliseconds` does.

    Args:
        what: Name of the duration, for the message of an error.
        duration: The duration.

    Raises:
        ValueError: As for `milliseconds`.
    """
    try:
        return milliseconds(duration)
    except ValueError as error:
        raise ValueError(f"{error}, as {what}") from None


def timeout_of(what: str, duration: Duration) -> int:
    """Read a timeout in whole milliseconds.

    A timeout of 0 would end everything before it starts. A computed one, such as `deadline - now`,
    is 0 when no time is left.

    Args:
        what: Name of the timeout, for the message of an error.
        duration: The timeout, as for `milliseconds`.

    Raises:
        ValueError: It is less than 1 ms, and as for `milliseconds`.
    """
    timeout_ms = milliseconds_of(what, duration)
    if not timeout_ms or (isinstance(duration, int | float) and duration < 1):
        raise ValueError(
            f"expected {what} to be at least 1 ms, found {duration!r}: a number is milliseconds, "
            'text names its unit, as "30 seconds"'
        )
    return timeout_ms


# Workflow code repeats a few constant durations.
@lru_cache(maxsize=1_000)
def _text_ms(duration: str) -> int:
    match = _TEXT.fullmatch(duration)
    if match is None:
        raise ValueError(_expected(duration))
    unit = match[2].lower()
    factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
    if factor is None or unit == "mss":
        raise ValueError(
            f"expected a unit such as ms, seconds, minutes, hours or days, found {match[2]!r} "
            f"in the duration {duration!r}"
        )
    number = float(match[1]) * factor
    if number > LONGEST_MS:
        raise ValueError(_expected(duration))
    return _rounded(number)


def _rounded(number_ms: float) -> int:
    # A positive duration stays positive: a deadline in the future has not passed.
    return round(number_ms) or int(number_ms > 0)


def _expected(duration: object) -> str:
    return (
        'expected a duration: milliseconds as a number that is not negative, or text such as "10 '
        f'seconds", at most 100 years, found {duration!r}'
    )


# -- retention

_NEVER: Final = "never"
_EXPECTED: Final = (
    'expected durations separated by commas, such as "order=90 days, 1 day" or "order=never, 30 '
    'days": one per workflow, and one for all others, found {0!r}{1}'
)


class Retention(msgspec.Struct, frozen=True):
    """How long instances are kept once they have ended, in ms; None is forever."""

    of_workflow: Mapping[str, int | None] = {}
    of_others: int | None = None

    def until_ms(self, workflow: str, ended_at_ms: int) -> int | None:
        """Return when an instance may be deleted, in ms since the epoch; None for never."""
        kept_ms = self.of_workflow.get(workflow, self.of_others)
        return None if kept_ms is None else ended_at_ms + kept_ms


KEEP_FOREVER: Final = Retention()


def read_retention(text: str) -> Retention:
    """Parse an operator's text; an empty one keeps everything.

    Raises:
        ValueError: The text is invalid.
    """
    of_workflow: dict[str, int | None] = {}
    of_others: list[int | None] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, duration = part.rpartition("=")
        name = name.strip()
        problem = separator and name_problem("the name of a workflow", name, WORKFLOW_NAME_MAX)
        if problem:
            raise ValueError(_EXPECTED.format(text, f": {problem}"))
        if name in of_workflow or (not separator and of_others):
            detail = f", which has {name or 'all others'} twice"
            raise ValueError(_EXPECTED.format(text, detail))
        kept_ms = _read(duration.strip(), text)
        if separator:
            of_workflow[name] = kept_ms
        else:
            of_others.append(kept_ms)
    return Retention(of_workflow, of_others[0] if of_others else None)


def _read(duration: str, text: str) -> int | None:
    if duration == _NEVER:
        return None
    try:
        return milliseconds(duration)
    except ValueError as error:
        raise ValueError(_EXPECTED.format(text, f": {error}")) from None
