"""Profiles: py-spy samples the processes of Headwater while they are measured.

py-spy sees Python functions; time in C code counts for the function that called it. It pauses the
process for every sample, so figures of a profiled run are a little lower than others.
"""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.system import log_progress

_SAMPLES_A_SECOND: Final = "200"
_STOP_WITHIN_S: Final = 15.0


class Profiler:
    """Records profiles into a directory, a file per process and round."""

    def __init__(self, directory: Path, program: str) -> None:
        self._directory = directory
        self._program = program
        self._round = 0
        self._files: dict[str, list[Path]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def watching(self, pids: Mapping[str, int]) -> Iterator[None]:
        """Record processes while the block runs."""
        self._round += 1
        recorders = [self._record(name, pid) for name, pid in pids.items()]
        try:
            yield
        finally:
            for recorder in recorders:
                recorder.send_signal(signal.SIGINT)
            for recorder in recorders:
                recorder.wait(_STOP_WITHIN_S)

    def _record(self, name: str, pid: int) -> subprocess.Popen[bytes]:
        file = self._directory / f"{name}-{self._round}.txt"
        self._files.setdefault(name, []).append(file)
        shape = ("--format", "raw", "--rate", _SAMPLES_A_SECOND, "--duration", "unlimited")
        return subprocess.Popen(
            (self._program, "record", *shape, "--output", str(file), "--pid", str(pid)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def top(self, count: int) -> dict[str, list[tuple[str, float]]]:
        """Return the functions with the most time of their own, and its share, by process."""
        return {name: _top(files, count) for name, files in self._files.items()}


def profiler(directory: Path) -> Profiler | None:
    """Return a profiler; None, with a log line, if py-spy is not installed."""
    installed = Path(sys.executable).with_name("py-spy")
    program = str(installed) if installed.exists() else shutil.which("py-spy")
    if program is None:
        log_progress("No profile: py-spy is not installed (.venv/bin/pip install py-spy).")
        return None
    return Profiler(directory, program)


def _top(files: list[Path], count: int) -> list[tuple[str, float]]:
    """Count samples by innermost frame; a line is `outer;…;inner SAMPLES`."""
    own: Counter[str] = Counter()
    for file in files:
        if not file.exists():
            continue
        for line in file.read_text("utf-8").splitlines():
            stack, _, samples = line.rpartition(" ")
            innermost = stack.rpartition(";")[2]
            own[_without_line(innermost)] += int(samples)
    total = own.total() or 1
    return [(name, round(samples / total, 4)) for name, samples in own.most_common(count)]


def _without_line(frame: str) -> str:
    function, _, location = frame.partition(" (")
    return f"{function} ({location.partition(':')[0].rstrip(')')})"
