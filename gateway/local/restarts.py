"""Decides when a process that crashed is restarted. Pure functions of the times of its crashes."""

from collections import deque
from dataclasses import dataclass

__all__ = ["CrashHistory", "RestartPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Capped exponential backoff, in seconds.

    The first restart is quick because most crashes are accidents. The cap keeps a broken process
    from filling its log while a developer repairs it, and is short enough that the repair takes
    effect soon.

    Attributes:
        first_s: Delay of the first restart.
        slowest_s: Longest delay.
        calm_after_s: A process that has run this long is healthy; earlier crashes are forgotten.
        many: This many crashes within `within_s` are reported as a problem, not as accidents.
        within_s: See `many`.
    """

    first_s: float = 0.5
    slowest_s: float = 10.0
    calm_after_s: float = 30.0
    many: int = 5
    within_s: float = 60.0


class CrashHistory:
    """Crashes of one process that still count."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque(maxlen=policy.many)
        self._in_a_row = 0

    def delay_after(self, *, crashed_at: float, started_at: float) -> float:
        """Record a crash; return the seconds until the next start."""
        policy = self._policy
        if crashed_at - started_at >= policy.calm_after_s:
            self._times.clear()
            self._in_a_row = 0
        self._times.append(crashed_at)
        self._in_a_row += 1
        if self.are_many_at(crashed_at):
            return policy.slowest_s
        return min(policy.first_s * 2.0 ** (self._in_a_row - 1), policy.slowest_s)

    def are_many_at(self, now: float) -> bool:
        """Return whether recent crashes are so many that an operator should look."""
        many = len(self._times) == self._policy.many
        return many and now - self._times[0] <= self._policy.within_s
