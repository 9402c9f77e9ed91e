"""Peak resident memory of a process and its children, sampled ten times a second."""

import threading
from types import TracebackType
from typing import Final, Self

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages

_SAMPLE_EVERY_S: Final = 0.1
MIB: Final = 1024 * 1024


class Resident:
    """Samples the memory of a process tree while the block runs; `peak` is in MiB."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_EVERY_S):
            self.peak = max(self.peak, resident(self._pid))


def resident(pid: int) -> float:
    """Return the MiB that a process and its children have resident now."""
    total = 0
    try:
        process = psutil.Process(pid)
        for child in (process, *process.children(recursive=True)):
            total += child.memory_info().rss
    except psutil.NoSuchProcess:
        pass  # It has just ended.
    return total / MIB
