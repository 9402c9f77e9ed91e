"""RFC 3339 dates, as producers and callers write them.

Of a producer, a date without an offset is taken as UTC; anything else that RFC 3339 does not allow
is no date. A leap second is none either: Python's calendar, and Postgres's, have no place for it.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

# datetime.fromisoformat alone also takes dates without a time, week dates and bare digits.
_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d+)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def read_date(text: str) -> datetime | None:
    """Reads a producer's date with its own offset; None if it is none."""
    match = _RFC_3339.fullmatch(text)
    if match is None:
        return None
    offset = match[1]
    try:
        if offset is None:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        return datetime.fromisoformat(text.upper() if offset == "z" else text)
    except ValueError:  # a thirteenth month, a leap second
        return None


def read_moment(text: str) -> datetime | None:
    """Reads a caller's date; None if it is none, or has no offset: it could mean any time zone."""
    match = _RFC_3339.fullmatch(text)
    return None if match is None or match[1] is None else read_date(text)


def rfc3339(ms: int) -> str:
    """Unix milliseconds as a moment in UTC."""
    return (_EPOCH + ms * _MILLISECOND).isoformat(timespec="milliseconds")[:-6] + "Z"


def unix_ms(moment: datetime) -> int:
    """Unix milliseconds of an aware moment, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND
