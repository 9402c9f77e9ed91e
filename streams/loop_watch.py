"""Monitor an event loop: how late it runs callbacks, and what blocked it.

A timer on the loop fires ten times a second and measures how late it is. A thread checks the timer.
If it is overdue, the thread takes the stack of the loop's thread, so that the log can name the
callback that blocks. While a C call holds the GIL the thread cannot run, either: it gets the stack
when the call returns, which is nearly always still the same callback. Requests cost nothing.
"""

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from headwater.monitoring.catalog import EVENT_LOOP_BLOCKED, EVENT_LOOP_LATE
from headwater.streams.clock import cpu_of_thread, monotonic

_LOG: Final = logging.getLogger("headwater.loop")

#: Seconds of a block that is logged: a client notices a quarter of a second.
BLOCKED_S: Final = 0.25
#: Seconds between two beats, and between two checks of the thread.
_BEAT_S: Final = 0.1
#: Lateness of a beat, in seconds, at which the thread takes a stack: before the block is logged.
_SUSPECT_S: Final = BLOCKED_S / 2
#: Frames of a stack that are logged, the innermost ones.
_FRAMES_MAX: Final = 12
_PATH_SHOWN: Final = 100
#: Segments of a path that are logged.
_SEGMENTS_SHOWN: Final = 2


class Blocked(NamedTuple):
    """A block of the loop.

    Attributes:
        seconds: How long no callback could run.
        cpu_seconds: How much of that the loop's thread was on a processor. Much less than
            `seconds` if a call waited, or if the machine ran other processes.
        where: The request and the stack, if they were captured.
    """

    seconds: float
    cpu_seconds: float
    where: str


class LoopWatch:
    """Monitors one event loop.

    Args:
        late: Called on the loop with the lateness of every beat, in seconds.
        blocked: Called on the loop after every block of at least `BLOCKED_S`, by default to log it.
    """

    def __init__(
        self,
        late: Callable[[float], None] | None = None,
        blocked: Callable[[Blocked], None] | None = None,
    ) -> None:
        self._late = late
        self._blocked = blocked or log_blocked
        #: The longest block, whether logged or not.
        self.longest = Blocked(0.0, 0.0, "")
        #: The longest time that the loop's thread computed without a beat, in seconds.
        self.longest_cpu = Blocked(0.0, 0.0, "")
        self._beat_at = self._cpu_at = 0.0
        self._captured = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread_of_loop = 0
        self._thread = threading.Thread(
            target=self._check, name="headwater-loop-watch", daemon=True
        )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Monitor the running loop."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Start monitoring the running loop."""
        self._thread_of_loop = threading.get_ident()
        self._beat_at, self._cpu_at = monotonic(), cpu_of_thread()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_BEAT_S, self._beat, loop)
        self._thread.start()

    def stop(self) -> None:
        """Stop monitoring."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu = monotonic(), cpu_of_thread()
        late = max(0.0, now - self._beat_at - _BEAT_S)
        # A busy loop computes for the whole time between two beats that are on time.
        block = Blocked(late, max(0.0, cpu - self._cpu_at - _BEAT_S), self._captured)
        self._beat_at, self._cpu_at, self._captured = now, cpu, ""
        self._timer = loop.call_later(_BEAT_S, self._beat, loop)
        self.longest = max(self.longest, block)
        if block.cpu_seconds > self.longest_cpu.cpu_seconds:
            self.longest_cpu = block
        if self._late is not None:
            self._late(late)
        if late >= BLOCKED_S:
            self._blocked(block)

    def _check(self) -> None:
        while not self._stopped.wait(_BEAT_S):
            if not self._captured and monotonic() - self._beat_at >= _BEAT_S + _SUSPECT_S:
                # The only way to get another thread's stack; faulthandler and debuggers use it.
                frame = sys._current_frames().get(self._thread_of_loop)  # noqa: SLF001
                self._captured = "" if frame is None else _described(frame)


def measured_loop_watch() -> LoopWatch:
    """Return a watch that logs blocks, and counts them in the metrics of the process."""

    def blocked(block: Blocked) -> None:
        EVENT_LOOP_BLOCKED.add()
        log_blocked(block)

    return LoopWatch(EVENT_LOOP_LATE.observe, blocked)


def log_blocked(block: Blocked) -> None:
    """Log a block, with the callback that ran meanwhile."""
    _LOG.warning(
        "the event loop was blocked for %.2f s (%.2f s of CPU) by %s",
        *(block.seconds, block.cpu_seconds, block.where or "a callback that was not captured"),
    )


def _described(innermost: FrameType) -> str:
    """Describe what a thread runs: its request, if there is one, and its innermost frames."""
    frames: list[FrameType] = []
    request = ""
    frame: FrameType | None = innermost
    while frame is not None:
        frames.append(frame)
        request = _request_of(frame) or request
        frame = frame.f_back
    lines = [
        f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
        for frame in frames[:_FRAMES_MAX]
    ]
    return f"{request or 'a callback'}: {' < '.join(lines)}"


def _request_of(frame: FrameType) -> str:
    """Return the HTTP request that a frame handles, from the `scope` of ASGI functions."""
    if "scope" not in frame.f_code.co_varnames:
        return ""
    scope = frame.f_locals.get("scope")
    if not isinstance(scope, dict) or scope.get("type") != "http":
        return ""
    # Further segments may name a person.
    _, *segments = str(scope.get("path", "")).split("/", _SEGMENTS_SHOWN + 1)
    more = ["..."] if len(segments) > _SEGMENTS_SHOWN else []
    shown = "/".join(["", *segments[:_SEGMENTS_SHOWN], *more])
    return f"{scope.get('method', '')} {shown[:_PATH_SHOWN]!a}"
