"""Ends the processes of a supervisor that was killed.

It runs as a program of its own, with a pipe from the supervisor as its standard input. The kernel
closes the pipe when the supervisor ends, also by kill -9, and the end of the input is the signal to
act. Linux's "parent death signal" was not used because it is bound to the thread that forked, does
not exist on macOS, and signals all processes at once: a broker would end before the workers that
still have to commit to it. A pipe to every child was not used because every child would need code
for it.

Protocol, one message per line: ``+ PID SIGNAL GROUP`` (end this process, by this signal, together
with the others of its group), ``- PID`` (it ended). Only the standard library is imported, so that
the program stays small: it lives as long as the supervisor.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

#: The supervisor's own timeout for stopping a process.
_GRACE_S = 15.0
_POLL_S = 0.05


class _Orphan(NamedTuple):
    """A process to be ended."""

    pid: int
    signal: int
    group: int


def main() -> None:
    """Keep the list until the input ends, then end its processes, last started first."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    for _, orphans in groupby(reversed(_read(sys.stdin)), lambda orphan: orphan.group):
        _end(list(orphans))


def is_running(pid: int) -> bool:
    """Return whether a process is running; zombies are not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:  # not Linux, or it ended just now
        command = ("ps", "-o", "stat=", "-p", str(pid))
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        state = result.stdout.strip() or "Z"
    return not state.startswith("Z")


def _read(lines: Iterable[str]) -> list[_Orphan]:
    orphans: dict[int, _Orphan] = {}
    for line in lines:
        match line.split():
            case ["+", pid, number, group]:
                orphans[int(pid)] = _Orphan(int(pid), int(number), int(group))
            case ["-", pid]:
                orphans.pop(int(pid), None)
            case _:
                raise ValueError(f"expected '+ PID SIGNAL GROUP' or '- PID', found {line!r}")
    return list(orphans.values())


def _end(orphans: list[_Orphan]) -> None:
    """End processes in order, and kill what is left of their process groups after a timeout."""
    for orphan in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan.pid, orphan.signal)
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(is_running(orphan.pid) for orphan in orphans):
        time.sleep(_POLL_S)
    for orphan in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(orphan.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
