"""What a process reports to monitors: whether it lives, whether it is ready, and its gauges."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headwater.monitoring.catalog import READY

if TYPE_CHECKING:
    from headwater.monitoring.address import Address

#: Seconds between two signs of life of the event loop, and without one after which the process
#: counts as dead: longer than any decision of a worker that has only much to do.
_BEAT_S: Final = 5.0
_DEAD_S: Final = 120.0
#: Seconds that a monitor waits for the gauges of a busy event loop.
_MEASURED_S: Final = 2.0
#: State of a part that is ready.
OK: Final = "ok"


class Monitor:
    """What a process reports to monitors.

    A check of readiness returns the state of every part by its name: `ok`, or what it waits for. It
    runs in any thread, so it may only read. Gauges are set on the event loop. A process without a
    check is still starting.
    """

    def __init__(self) -> None:
        self._checks: list[Callable[[], Mapping[str, str]]] = []
        self._measures: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat_at_s: float | None = None
        #: Where it listens, if it does.
        self.address: Address | None = None

    def ready_when(self, check: Callable[[], Mapping[str, str]]) -> None:
        """Add a check: the process is ready when all parts of all checks are `ok`."""
        self._checks.append(check)

    def measure(self, measure: Callable[[], None]) -> None:
        """Have a function set gauges whenever a monitor requests the metrics."""
        self._measures.append(measure)

    def follow_loop(self) -> None:
        """Report the process as dead when the running loop stops. Further calls change nothing."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._beat(self._loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_at_s = time.monotonic()
        loop.call_later(_BEAT_S, self._beat, loop)

    def is_alive(self) -> bool:
        """Return whether the event loop runs, or has not started yet."""
        beat_at_s = self._beat_at_s
        return beat_at_s is None or time.monotonic() - beat_at_s < _DEAD_S

    def parts(self) -> dict[str, str]:
        """Return the state of every part: `ok`, or what it waits for."""
        parts: dict[str, str] = {}
        for check in self._checks.copy():
            parts.update(check())
        return parts or {"process": "starting"}

    def take_measures(self) -> None:
        """Set the gauges, on the event loop if it runs; a busy loop leaves the previous values."""
        if self._loop is None:
            self._measure()
            return
        done = threading.Event()

        def measure() -> None:
            try:
                self._measure()
            finally:
                done.set()

        with contextlib.suppress(RuntimeError):  # The loop is closed: the process ends.
            self._loop.call_soon_threadsafe(measure)
            done.wait(_MEASURED_S)

    def _measure(self) -> None:
        for measure in self._measures:
            measure()
        READY.set(is_ready(self.parts()))


def is_ready(parts: Mapping[str, str]) -> bool:
    """Return whether all parts are `ok`."""
    return all(state == OK for state in parts.values())
