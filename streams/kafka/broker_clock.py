"""The clock of Kafka's brokers, as our appends show it: whether our own is ahead of it.

A record gets the time of the broker that takes it. So a clock that was later than that before the
record was sent is ahead, however slow the network is. Between appends a monotonic clock tells how
much time has passed since: no jump of the clock of the day moves it.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

#: By how much our clock is ahead before an error is logged.
_TOLD_MS: Final = 10_000
#: An append that is younger needs no second one to confirm it: a broker answers within a second.
_FRESH_S: Final = 5.0


class Moment(NamedTuple):
    """A time, by the clock of the day and by the monotonic one.

    Units:  milliseconds, seconds.
    """

    ms: int
    at_s: float


class BrokerClock:
    """What is known of the brokers' clock."""

    def __init__(self, clock: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._seen: tuple[float, int] | None = None
        self._is_told = False

    def now(self) -> Moment:
        """Now, by our clocks."""
        return Moment(self._clock(), self._monotonic())

    def seen(self, sent: Moment, appended_ms: int) -> None:
        """Record when we sent a batch and when the broker appended that same batch."""
        self._seen = sent.at_s, appended_ms

    def age_s(self) -> float | None:
        """How old what was seen last is; None before anything was."""
        return None if self._seen is None else self._monotonic() - self._seen[0]

    def is_doubtful(self, limit_ms: int = _TOLD_MS) -> bool:
        """Whether our clock seems ahead by more than `limit_ms`, by an append some time ago.

        After the machine has slept it seems so, too: then a new append shows that it is right.
        """
        return self.ahead_ms() > limit_ms and (self.age_s() or 0) > _FRESH_S

    def ahead_ms(self) -> int:
        """By how much our clock is ahead, at least; 0 where nothing is known."""
        if self._seen is None:
            return 0
        at_s, ms = self._seen
        now = self.now()
        return max(0, now.ms - ms - round((now.at_s - at_s) * 1_000))

    def due_ms(self) -> int:
        """Up to when something may come due: now, by the brokers' clock where ours is ahead.

        After this machine has slept, that is a time before its sleep until something is appended
        (see `is_doubtful`).
        """
        ahead_ms = self.ahead_ms()
        was_told, self._is_told = self._is_told, ahead_ms > _TOLD_MS
        if self._is_told and not was_told:
            log.error(
                "the clock of this machine seems to be %.0f s ahead of Kafka's, by which waits end",
                ahead_ms / 1_000,
            )
        return self._clock() - ahead_ms
