"""Processor time: what the parts under test use, and what everything else on the machine does."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Seconds used so far: of each part, and of all processors together, at a moment."""

    parts: Mapping[str, float]
    machine: float
    at: float

    @classmethod
    def of(cls, pids: Mapping[str, int | None]) -> Self:
        """Reads the meter for some processes, their children included."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Guests are counted within user and nice already.
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return cls(
            parts={name: _seconds(pid) for name, pid in pids.items()},
            machine=sum(times) - idle - guests,
            at=time.perf_counter(),
        )

    def each(self, later: "Reading", count: int) -> dict[str, float]:
        """Microseconds an event up to a later reading, by part and in `all`."""
        used = {name: (later.parts[name] - self.parts[name]) / count for name in self.parts}
        used["all"] = sum(used.values())
        return {name: round(seconds * 1e6, 1) for name, seconds in used.items()}

    def others(self, later: "Reading", also_ours: float = 0.0) -> float:
        """Cores that were busy with anything but the parts (and `also_ours` seconds) meanwhile."""
        ours = sum(later.parts.values()) - sum(self.parts.values()) + also_ours
        cores = (later.machine - self.machine - ours) / (later.at - self.at)
        return round(max(0.0, cores), 2)


def _seconds(pid: int | None) -> float:
    """Processor time of a process and its children, live or gone."""
    if pid is None:
        return 0.0
    process = psutil.Process(pid)
    used = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    times = process.cpu_times()
    # macOS does not tell of children that are gone.
    return used + float(getattr(times, "children_user", 0) + getattr(times, "children_system", 0))
