"""When a request to Terra is sent again: decisions without a clock."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

#: What says "later": too early, too much, and what a server or a proxy says in bad moments.
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_BASE_S: Final = 0.5
_LONGEST_S: Final = 20.0


def is_passing(status: int) -> bool:
    """Whether the same request may be answered otherwise later."""
    return status in _LATER or status > 504


def backoff_s(repeats: int, drawn: float) -> float:
    """Seconds before repeat 0, 1, …: at least half of 0.5·2^repeats (at most 20), the rest drawn.

    Shape:  0 <= drawn < 1.
    """
    longest = min(_LONGEST_S, _BASE_S * 2.0**repeats)
    return longest * (0.5 + 0.5 * drawn)


def retry_after_s(header: str, now_s: float) -> float | None:
    """What Retry-After asks for, as seconds or as a date (RFC 9110); None if that is neither."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now_s, UTC)).total_seconds())
