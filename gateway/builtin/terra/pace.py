"""Decide whether and when to repeat a request to Terra; pure functions."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

#: Retryable statuses: timeouts, rate limits, and temporary errors of a server or a proxy.
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_BASE_S: Final = 0.5
_LONGEST_S: Final = 20.0


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in _RETRYABLE or status > 504


def backoff_s(repeats: int, drawn: float) -> float:
    """Return the pause before a repeat: 50 to 100 percent of 0.5·2^repeats seconds, at most 20.

    Args:
        repeats: Number of the repeat, from 0.
        drawn: Random number, 0 <= drawn < 1.
    """
    longest = min(_LONGEST_S, _BASE_S * 2.0**repeats)
    return longest * (0.5 + 0.5 * drawn)


def retry_after_s(header: str, now_s: float) -> float | None:
    """Parse Retry-After, seconds or a date (RFC 9110), into seconds; None if it is invalid."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now_s, UTC)).total_seconds())
