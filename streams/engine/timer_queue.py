"""Timers of an owner: wake-up times, timeouts of attempts, and since when instances are idle."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, Generic, TypeAlias, TypeVar

from headwater.processors.runs.decisions import Request, RollbackRaised, StepRaised, StepUnderWay
from headwater.processors.runs.host_messages import AttemptStarted
from headwater.schemas.failures import HOST_LOST, STEP_TIMEOUT
from headwater.schemas.history import Failure
from headwater.streams.engine.live_instances import LiveInstance

K = TypeVar("K", bound=Hashable)

#: Outdated times stay in the heap until they are more than half of it, and this many.
_STALE_MIN: Final = 1_000


class Timers(Generic[K]):
    """A heap of times in milliseconds, in which the time of a key can be changed or dropped.

    The caller chooses the clock.
    """

    def __init__(self, times: Iterable[tuple[K, int]] = ()) -> None:
        self._time_of: dict[K, int] = dict(times)
        self._heap: list[tuple[int, Any]] = []
        self._rebuild()

    def __len__(self) -> int:
        return len(self._time_of)

    def put(self, key: K, at_ms: int) -> None:
        """Set the time of a key."""
        if self._time_of.get(key) == at_ms:
            return
        self._time_of[key] = at_ms
        heapq.heappush(self._heap, (at_ms, key))
        if len(self._heap) > 2 * len(self._time_of) + _STALE_MIN:
            self._rebuild()

    def drop(self, key: K) -> None:
        """Drop the time of a key, if it has one."""
        self._time_of.pop(key, None)

    def next_ms(self) -> int | None:
        """Return the earliest time, or None."""
        heap = self._heap
        while heap and self._time_of.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Remove and yield the due keys, in the order of their times.

        This includes keys that get a time during the iteration.
        """
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            key: K = heapq.heappop(self._heap)[1]
            del self._time_of[key]
            yield key

    def _rebuild(self) -> None:
        self._heap = [(at_ms, key) for key, at_ms in self._time_of.items()]
        heapq.heapify(self._heap)


# -- attempts


def report_running(started: AttemptStarted) -> StepUnderWay:
    """Return the request that records a long attempt, so that users can see it."""
    return StepUnderWay(started.step, started.attempt)


def timed_out(started: AttemptStarted) -> StepRaised | RollbackRaised:
    """Return the failure of an attempt that took too long."""
    step = started.step
    what = f'the rollback of step "{step.key}"' if started.rollback else f'step "{step.name}"'
    failure = Failure(
        STEP_TIMEOUT,
        f"expected {what} to end within {step.timeout_ms} ms, found it still "
        f"running in attempt {started.attempt}",
    )
    if started.rollback:
        return RollbackRaised(step.key, started.attempt, failure)
    return StepRaised(step, started.attempt, failure, started.policy)


def lost(started: AttemptStarted, reason: str) -> StepRaised | RollbackRaised:
    """Return the failure of an attempt with a lost host. Any of them may be the cause."""
    failure = Failure(
        HOST_LOST,
        f"{reason} while the step was running. All steps that run in a host fail with it, because "
        "the cause is not known",
    )
    if started.rollback:
        return RollbackRaised(started.step.key, started.attempt, failure)
    return StepRaised(started.step, started.attempt, failure, started.policy)


# -- timers of an owner

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
        """Remove and yield the keys of instances that are due to wake up."""
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
        """Remove and yield due attempts, with a function that returns their requests."""
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
