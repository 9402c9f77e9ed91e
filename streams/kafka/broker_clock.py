"""Time of a process: its machine's clock, or Kafka's if the two differ too much.

A record gets the time of the broker that appends it, at a moment between its sending and its
acknowledgement. So every append bounds the difference between the brokers' clock and ours, however
slow the network is. Between appends a monotonic clock measures the time that has passed, because
setting the wall clock does not change it.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

#: By how much our clock may differ from the brokers'; those of one cluster differ by less.
SKEW_MAX_MS: Final = 10_000
#: Appends made to resolve a doubt: one is enough, unless the clock is set in that moment.
_APPENDS_MAX: Final = 3


class Moment(NamedTuple):
    """A moment by the wall clock (Unix milliseconds) and by the monotonic clock (seconds)."""

    ms: int
    at_s: float

    @property
    def gap_ms(self) -> int:
        """Return the difference of the two clocks, which changes only if the wall clock is set."""
        return self.ms - int(self.at_s * 1_000)


class BrokerClock:
    """The clock of this machine, corrected by that of the brokers.

    Args:
        clock: The wall clock, in Unix milliseconds.
        monotonic: A clock in seconds that is never set.
        skew_max_ms: By how much the wall clock may differ from the brokers' before theirs is used.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        skew_max_ms: int = SKEW_MAX_MS,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self.skew_max_ms = skew_max_ms
        #: Brokers' clock minus the monotonic one: lower and upper bound.
        self._bounds: tuple[int, int] | None = None
        #: The difference between our clocks when an append was last acknowledged.
        self._gap_ms = 0
        self._is_skewed = False

    def now(self) -> Moment:
        """Return this moment by the clocks of this machine."""
        return Moment(self._clock(), self._monotonic())

    def now_ms(self) -> int:
        """Return the time in Unix milliseconds: by our clock, or by the brokers' if ours is wrong.

        In the latter case it is never ahead of the brokers' clock, and lags it by no more than the
        duration of an acknowledgement.
        """
        now_ms = self._clock()
        if self._bounds is None:
            return now_ms
        return now_ms - self._excess_ms(now_ms - int(self._monotonic() * 1_000))

    def is_doubtful(self) -> bool:
        """Return whether our clocks disagree about the time since the latest append.

        Then either the wall clock was set, or the machine was paused and the monotonic clock with
        it. Another append shows which.
        """
        if self._bounds is None:
            return False
        gap_ms = self._clock() - int(self._monotonic() * 1_000)
        return abs(gap_ms - self._gap_ms) > self.skew_max_ms

    async def settle(self, append: Callable[[], Awaitable[object]]) -> None:
        """Resolve a doubt, if there is one, by calling `append`.

        If the append yields no broker time, because its topic keeps the times of producers, our
        clock is used.
        """
        for _ in range(_APPENDS_MAX):
            if not self.is_doubtful():
                return
            await append()
        if self.is_doubtful():
            self._bounds = None

    def record_append(self, sent: Moment, appended_ms: int) -> None:
        """Record an append that was just acknowledged: when we sent it, and the broker's time."""
        acknowledged = self.now()
        if abs(acknowledged.gap_ms - sent.gap_ms) > self.skew_max_ms:
            # The wall clock was set meanwhile, or the machine paused: then it is unknown how much
            # of the pause the monotonic clock has missed since the append.
            return
        low = appended_ms - int(acknowledged.at_s * 1_000) - 1
        high = appended_ms - int(sent.at_s * 1_000) + 1
        if self._bounds is not None:
            # Bounds of a slow append are wide: keep narrower ones unless they contradict these.
            narrow = max(low, self._bounds[0]), min(high, self._bounds[1])
            low, high = narrow if narrow[0] <= narrow[1] else (low, high)
        self._bounds, self._gap_ms = (low, high), acknowledged.gap_ms
        self._report(self._excess_ms(acknowledged.gap_ms))

    def _excess_ms(self, gap_ms: int) -> int:
        """Return by how much our clock is ahead of the brokers'; 0 while it may be right.

        Args:
            gap_ms: The difference between our clocks now.
        """
        if self._bounds is None:
            return 0
        (low, high), most = self._bounds, self.skew_max_ms
        return 0 if low - most <= gap_ms <= high + most else gap_ms - low

    def _report(self, excess_ms: int) -> None:
        """Log that our clock is wrong, and that it is right again."""
        was_skewed, self._is_skewed = self._is_skewed, excess_ms != 0
        if self._is_skewed and not was_skewed:
            log.error(
                "the clock of this machine is %.0f s %s Kafka's: using Kafka's time until it is "
                "right, or wrong by less than %.0f s",
                abs(excess_ms) / 1_000,
                "ahead of" if excess_ms > 0 else "behind",
                self.skew_max_ms / 1_000,
            )
        elif was_skewed and not self._is_skewed:
            log.info("the clock of this machine is right again")
