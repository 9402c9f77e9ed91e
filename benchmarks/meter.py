"""Processor time of the processes under test, and of everything else on the machine."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReading:
    """Processor seconds used so far, by process and by the whole machine, at a moment."""

    parts: Mapping[str, float]
    machine: float
    at: float

    @classmethod
    def of(cls, pids: Mapping[str, int | None]) -> Self:
        """Read the processor time of some processes, including their children."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Guests are counted within user and nice already.
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return cls(
            parts={name: _seconds(pid) for name, pid in pids.items()},
            machine=sum(times) - idle - guests,
            at=time.perf_counter(),
        )

    def us_per_event(self, later: "CpuReading", count: int) -> dict[str, float]:
        """Return microseconds per event up to a later reading, by process and in `all`."""
        used = {name: (later.parts[name] - self.parts[name]) / count for name in self.parts}
        used["all"] = sum(used.values())
        return {name: round(seconds * 1e6, 1) for name, seconds in used.items()}

    def others(self, later: "CpuReading", also_ours: float = 0.0) -> float:
        """Return how many cores other processes kept busy; `also_ours` adds seconds to ours."""
        ours = sum(later.parts.values()) - sum(self.parts.values()) + also_ours
        cores = (later.machine - self.machine - ours) / (later.at - self.at)
        return round(max(0.0, cores), 2)


def _seconds(pid: int | None) -> float:
    """Return the processor time of a process and its children, running or exited."""
    if pid is None:
        return 0.0
    process = psutil.Process(pid)
    used = 0.0
    for child in (process, *process.children(recursive=True)):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    times = process.cpu_times()
    # macOS does not report children that have exited.
    return used + float(getattr(times, "children_user", 0) + getattr(times, "children_system", 0))
