"""Ends what a supervisor started when the supervisor itself is killed and cannot.

Run as a program of its own, with a pipe from the supervisor as its standard input. The kernel
closes that pipe whenever the supervisor ends, also by kill -9, and the end of the input is the
signal to act. Chosen over Linux's "parent death signal" because that one is bound to the thread
that forked, does not exist on macOS, and signals all at once: a broker would go before the workers
that still have to commit to it. Chosen over a pipe to each child because parts then need no code.

Protocol, one line each: ``+ PID SIGNAL`` (end this one too, by this signal), ``- PID`` (it ended).
Imports the standard library only, so that it stays small: it lives as long as the supervisor.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

#: The supervisor's own patience with a part.
_GRACE_S = 15.0
_POLL_S = 0.05


def main() -> None:
    """Keeps the list until the input ends, then ends what is left, last started first."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    for pid, number in reversed(_read(sys.stdin)):
        _end(pid, number)


def _read(lines: Iterable[str]) -> list[tuple[int, int]]:
    wards: dict[int, int] = {}
    for line in lines:
        match line.split():
            case ["+", pid, number]:
                wards[int(pid)] = int(number)
            case ["-", pid]:
                wards.pop(int(pid), None)
            case _:
                raise ValueError(f"expected '+ PID SIGNAL' or '- PID', found {line!r}")
    return list(wards.items())


def _end(pid: int, number: int) -> None:
    """Ends one process in order, and by force what is left of its group after a while."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
