"""Ends what a supervisor started when the supervisor itself is killed and cannot.

Run as a program of its own, with a pipe from the supervisor as its standard input. The kernel
closes that pipe whenever the supervisor ends, also by kill -9, and the end of the input is the
signal to act. Chosen over Linux's "parent death signal" because that one is bound to the thread
that forked, does not exist on macOS, and signals all at once: a broker would go before the workers
that still have to commit to it. Chosen over a pipe to each child because parts then need no code.

Protocol, one line each: ``+ PID SIGNAL GROUP`` (end this one too, by this signal, together with
the others of its group), ``- PID`` (it ended). Imports the standard library only, so that it stays
small: it lives as long as the supervisor.
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

#: The supervisor's own patience with a part.
_GRACE_S = 15.0
_POLL_S = 0.05


class _Ward(NamedTuple):
    """A process to be ended."""

    pid: int
    signal: int
    group: int


def main() -> None:
    """Keeps the list until the input ends, then ends what is left, last started first."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    for _, wards in groupby(reversed(_read(sys.stdin)), lambda ward: ward.group):
        _end(list(wards))


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and that its parent has not looked at does not."""
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
        asked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        state = asked.stdout.strip() or "Z"
    return not state.startswith("Z")


def _read(lines: Iterable[str]) -> list[_Ward]:
    wards: dict[int, _Ward] = {}
    for line in lines:
        match line.split():
            case ["+", pid, number, group]:
                wards[int(pid)] = _Ward(int(pid), int(number), int(group))
            case ["-", pid]:
                wards.pop(int(pid), None)
            case _:
                raise ValueError(f"expected '+ PID SIGNAL GROUP' or '- PID', found {line!r}")
    return list(wards.values())


def _end(wards: list[_Ward]) -> None:
    """Ends processes in order, and by force what is left of their groups after a while."""
    for ward in wards:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ward.pid, ward.signal)
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(runs(ward.pid) for ward in wards):
        time.sleep(_POLL_S)
    for ward in wards:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(ward.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
