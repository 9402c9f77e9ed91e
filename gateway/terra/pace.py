"""How fast Terra is asked, and when again: decisions without a clock."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

#: What says "later": too early, too much, and what a server or a proxy says in bad moments.
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_BASE_S: Final = 0.5
_LONGEST_S: Final = 20.0
#: Requests that may be sent at once after a rest, in seconds of the rate.
_BURST_S: Final = 1.0


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


class Pace:
    """When the next request may be sent: at most `rate` a second, none before `hold` has passed.

    Units:  seconds of any steady clock.
    """

    def __init__(self, rate: float) -> None:
        self._gap_s = 1.0 / rate
        self._burst_s = max(_BURST_S, self._gap_s)
        #: When the request after all that were sent is due.
        self._due_s = float("-inf")

    def turn_s(self, now_s: float) -> float:
        """Takes the next turn; gives the seconds until it."""
        due_s = max(self._due_s, now_s - self._burst_s + self._gap_s)
        self._due_s = due_s + self._gap_s
        return max(0.0, due_s - now_s)

    def hold(self, until_s: float) -> None:
        """Lets nothing be sent before a moment: the server has asked for it."""
        self._due_s = max(self._due_s, until_s)
