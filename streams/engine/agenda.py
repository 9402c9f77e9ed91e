"""What an owner has before it: times to come, and who rests since when."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from headwater.processors.runs.host_messages import AttemptStarted
from headwater.processors.runs.requests import Request
from headwater.streams.engine.attempts import timed_out, under_way
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.timers import Timers

#: An attempt under way: its activation, the key of its step, its number.
Place: TypeAlias = tuple[int, str, int]
#: A first attempt that is under way for so long is recorded, so that people can see it.
SEEN_AFTER_MS: Final = 500


class Agenda:
    """The agenda of one owner.

    Shape:  wakes are times and keys of instances that are bytes.
    """

    def __init__(self, wakes: Iterable[tuple[int, str]]) -> None:
        self._wakes: Timers[str] = Timers((key, at_ms) for at_ms, key in wakes)
        self._deadlines: Timers[Place] = Timers()
        #: All wait equally long, so they are in the order of their times.
        self._unseen: OrderedDict[Place, int] = OrderedDict()
        self._rests: deque[tuple[int, str]] = deque()

    # -- time

    def next_due_ms(self) -> int | None:
        """When time next moves something, or None."""
        unseen_ms = next(iter(self._unseen.values())) if self._unseen else None
        times = (self._wakes.next_ms(), self._deadlines.next_ms(), unseen_ms)
        return min([at_ms for at_ms in times if at_ms is not None], default=None)

    def reschedule(self, live: LiveInstance, after_ms: int = 0) -> None:
        """Notes when time next moves an instance, if it does."""
        wake_at_ms = live.engine.next_wake_ms(live.run, after_ms)
        if wake_at_ms is None:
            self._wakes.drop(live.key)
        else:
            self._wakes.put(live.key, wake_at_ms)

    def woken(self, now_ms: int) -> Iterator[str]:
        """Takes out the keys of the instances whose time has come."""
        return self._wakes.due(now_ms)

    def wake_soon(self, keys: Iterable[str], at_ms: int) -> None:
        """Put back keys that were taken out as woken and for which there was no time."""
        for key in keys:
            self._wakes.put(key, at_ms)

    def watch(self, started: AttemptStarted, now_ms: int) -> None:
        """Notes when an attempt takes too long, and when the first of a step is to be seen."""
        if started.step.timeout_ms:
            self._deadlines.put(_place(started), now_ms + started.step.timeout_ms)
        if started.attempt == 1 and not started.rollback:
            self._unseen[_place(started)] = now_ms + SEEN_AFTER_MS

    def unwatch(self, started: AttemptStarted) -> None:
        """Forgets an attempt that has ended."""
        place = _place(started)
        self._deadlines.drop(place)
        self._unseen.pop(place, None)

    def attempts_due(
        self, now_ms: int
    ) -> Iterator[tuple[Place, Callable[[AttemptStarted], Request]]]:
        """Takes out the attempts whose time has come, each with what is then asked of its run."""
        for place in self._deadlines.due(now_ms):
            yield place, timed_out
        while self._unseen and next(iter(self._unseen.values())) <= now_ms:
            yield self._unseen.popitem(last=False)[0], under_way

    # -- who rests

    def rest(self, live: LiveInstance) -> None:
        """Notes that nothing happens to an instance for now."""
        # What it sent may be acknowledged later than anything happened to its run.
        since_ms = max(live.run.updated_at_ms, live.since_ms)
        self._rests.append((since_ms, live.key))

    def rested(self, before_ms: int) -> Iterator[tuple[int, str]]:
        """Takes out the instances that have begun to rest before a time, with that time."""
        # Those that are put back while this runs wait for the next time.
        for _ in range(len(self._rests)):
            if self._rests[0][0] > before_ms:
                return
            yield self._rests.popleft()


def _place(started: AttemptStarted) -> Place:
    return (started.activation, started.step.key, started.attempt)
