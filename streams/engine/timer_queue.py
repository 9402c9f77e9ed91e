"""Timers of an owner: wake-up times, timeouts of attempts, and since when instances rest."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from headwater.processors.runs.host_messages import AttemptStarted
from headwater.processors.runs.requests import Request
from headwater.streams.engine.attempts import report_running, timed_out
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.timers import Timers

#: A running attempt: its activation, the key of its step, its number.
AttemptId: TypeAlias = tuple[int, str, int]
#: A first attempt is recorded when it has been running this long, so that users can see it.
SEEN_AFTER_MS: Final = 500


class TimerQueue:
    """The timers of one owner.

    Args:
        wakes: Times in Unix milliseconds and keys of instances that are not in memory.
    """

    def __init__(self, wakes: Iterable[tuple[int, str]]) -> None:
        self._wakes: Timers[str] = Timers((key, at_ms) for at_ms, key in wakes)
        self._deadlines: Timers[AttemptId] = Timers()
        #: All have the same delay, so they are ordered by time.
        self._unseen: OrderedDict[AttemptId, int] = OrderedDict()
        self._rests: deque[tuple[int, str]] = deque()

    # -- time

    def next_due_ms(self) -> int | None:
        """Return the time of the next timer, or None."""
        unseen_ms = next(iter(self._unseen.values())) if self._unseen else None
        times = (self._wakes.next_ms(), self._deadlines.next_ms(), unseen_ms)
        return min([at_ms for at_ms in times if at_ms is not None], default=None)

    def reschedule(self, live: LiveInstance, after_ms: int = 0) -> None:
        """Set or drop the wake-up time of an instance."""
        wake_at_ms = live.engine.next_wake_ms(live.run, after_ms)
        if wake_at_ms is None:
            self._wakes.drop(live.key)
        else:
            self._wakes.put(live.key, wake_at_ms)

    def woken(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the keys of instances whose wake-up time has come."""
        return self._wakes.due(now_ms)

    def wake_soon(self, keys: Iterable[str], at_ms: int) -> None:
        """Put back keys that `woken` yielded but that could not be handled in time."""
        for key in keys:
            self._wakes.put(key, at_ms)

    def watch(self, started: AttemptStarted, now_ms: int) -> None:
        """Set the timeout of an attempt, and the time at which a first attempt is recorded."""
        if started.step.timeout_ms:
            self._deadlines.put(_attempt_id(started), now_ms + started.step.timeout_ms)
        if started.attempt == 1 and not started.rollback:
            self._unseen[_attempt_id(started)] = now_ms + SEEN_AFTER_MS

    def unwatch(self, started: AttemptStarted) -> None:
        """Drop the timers of an attempt that has ended."""
        attempt_id = _attempt_id(started)
        self._deadlines.drop(attempt_id)
        self._unseen.pop(attempt_id, None)

    def attempts_due(
        self, now_ms: int
    ) -> Iterator[tuple[AttemptId, Callable[[AttemptStarted], Request]]]:
        """Remove and yield due attempts, with a function that returns the request for each."""
        for attempt_id in self._deadlines.due(now_ms):
            yield attempt_id, timed_out
        while self._unseen and next(iter(self._unseen.values())) <= now_ms:
            yield self._unseen.popitem(last=False)[0], report_running

    # -- resting instances

    def rest(self, live: LiveInstance) -> None:
        """Record that an instance rests."""
        # Its posts may be acknowledged later than the last event of its run.
        since_ms = max(live.run.updated_at_ms, live.since_ms)
        self._rests.append((since_ms, live.key))

    def rested(self, before_ms: int) -> Iterator[tuple[int, str]]:
        """Remove and yield instances that have rested since before a time, with that time."""
        # Instances that are put back meanwhile wait for the next call.
        for _ in range(len(self._rests)):
            if self._rests[0][0] > before_ms:
                return
            yield self._rests.popleft()


def _attempt_id(started: AttemptStarted) -> AttemptId:
    return (started.activation, started.step.key, started.attempt)
