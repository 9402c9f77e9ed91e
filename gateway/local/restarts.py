"""When a part that died is started again: a pure answer to (when it started, when it died)."""

from collections import deque
from dataclasses import dataclass

__all__ = ["Deaths", "RestartPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Capped exponential backoff, in seconds.

    The first restart is quick because most deaths are accidents; the cap keeps a broken part from
    filling its log while a developer mends it, and short enough that the mended one is seen soon.
    """

    first_s: float = 0.5
    slowest_s: float = 10.0
    #: Having run this long, a part is healthy again and its earlier deaths are forgotten.
    calm_after_s: float = 30.0
    #: This many deaths within that time are a fault to be told of, not a series of accidents.
    many: int = 5
    within_s: float = 60.0


class Deaths:
    """The deaths of one part that still count."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque(maxlen=policy.many)
        self._in_a_row = 0

    def delay_after(self, *, died_at: float, started_at: float) -> float:
        """Records a death and returns how long to wait before the next start."""
        policy = self._policy
        if died_at - started_at >= policy.calm_after_s:
            self._times.clear()
            self._in_a_row = 0
        self._times.append(died_at)
        self._in_a_row += 1
        if self.are_many_at(died_at):
            return policy.slowest_s
        return min(policy.first_s * 2.0 ** (self._in_a_row - 1), policy.slowest_s)

    def are_many_at(self, now: float) -> bool:
        """Says whether the part died so often lately that a person should look."""
        many = len(self._times) == self._policy.many
        return many and now - self._times[0] <= self._policy.within_s
