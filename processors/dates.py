"""RFC 3339 dates of producers and clients.

A producer's date without an offset is UTC; anything else that RFC 3339 does not allow is not a
date. Neither is a leap second, which neither Python's calendar nor Postgres's can represent.
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
    """Parse a producer's date, with its own offset; None if it is not a date."""
    match = _RFC_3339.fullmatch(text)
    if match is None:
        return None
    offset = match[1]
    try:
        if offset is None:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        return datetime.fromisoformat(text.upper() if offset == "z" else text)
    except ValueError:  # For example a thirteenth month or a leap second.
        return None


def read_moment(text: str) -> datetime | None:
    """Parse a client's date; None if it is not a date or has no offset, and so no time zone."""
    match = _RFC_3339.fullmatch(text)
    return None if match is None or match[1] is None else read_date(text)


def rfc3339(ms: int) -> str:
    """Format Unix milliseconds as a timestamp in UTC."""
    return (_EPOCH + ms * _MILLISECOND).isoformat(timespec="milliseconds")[:-6] + "Z"


def unix_ms(moment: datetime) -> int:
    """Return the Unix milliseconds of a timezone-aware datetime, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND
