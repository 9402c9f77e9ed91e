"""Metrics of a gateway of several processes: each publishes its own, and answers for all of them.

A monitor reaches one of the processes by their shared port, and keeps its connection. Without this,
it would see the counts of that process only. Counts of processes that ended are kept together in
one file, so a total never decreases, and the number of files does not grow with restarts.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from typing_extensions import override

#: Seconds between publications: the greatest age of the counts of the other processes.
PUBLISHED_EVERY_S: Final = 5.0
_SUFFIX: Final = ".metrics"
#: The first line of the file of ended processes: names of the files that were added last.
_ADDED: Final = "# Counts of ended processes. Added last: "
#: Types that are added up; a gauge is the value of the process that answers.
_COUNTED: Final = frozenset({"counter", "histogram"})

#: Counts of other processes, by family.
Counts: TypeAlias = Mapping[str, Metric]


class MetricsFolder:
    """The folder that the processes of a gateway share; this process has one file there.

    The files of ended processes are added to one file before they are deleted. It names them, so
    that they are not counted twice: by a reader meanwhile, or if that process is killed.
    """

    def __init__(self, folder: Path, process_id: int, started_ns: int) -> None:
        self._folder = folder
        self._process_id = process_id
        # Process ids are used again.
        self._own = folder / f"{process_id}-{started_ns}{_SUFFIX}"
        self._ended = folder / f"ended{_SUFFIX}"

    def publish(self, text: bytes) -> None:
        """Replace the published metrics of this process. A full disk makes them old.

        The time of the file is a heartbeat, also then: our parent ends a process without one.
        """
        if not _replace(self._own, text):
            with contextlib.suppress(OSError):
                os.utime(self._own)

    def others(self) -> Counts:
        """Return the counts of all other processes together, also of those that ended."""
        while True:
            before = self._ended_text()
            with contextlib.suppress(FileNotFoundError):  # It was added to the ended ones just now.
                texts = [before, *(file.read_text("utf-8") for file in self._files(before))]
                if self._ended_text() == before:
                    return total(texts)

    def add_up_ended(self) -> None:
        """Move the counts of ended processes to their common file, unless another process does."""
        with contextlib.suppress(OSError), (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = self._ended_text()
            for name in _added(before):
                (self._folder / name).unlink(missing_ok=True)
            files = [file for file in self._files(before) if self._has_ended(file)]
            if files:
                counts = total([before, *(file.read_text("utf-8") for file in files)])
                names = " ".join(file.name for file in files)
                text = f"{_ADDED}{names}\n".encode() + generate_latest(_Known(counts))
                if _replace(self._ended, text):
                    for file in files:
                        file.unlink()

    @contextlib.asynccontextmanager
    async def publishing(self, render: Callable[[], bytes]) -> AsyncIterator[None]:
        """Publish every few seconds while the context is open, and at its end."""

        async def repeat() -> None:
            while True:
                self.publish(render())
                await asyncio.sleep(PUBLISHED_EVERY_S)

        self.add_up_ended()
        task = asyncio.create_task(repeat(), name="publish metrics")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self.publish(render())

    def _ended_text(self) -> str:
        try:
            return self._ended.read_text("utf-8")
        except FileNotFoundError:
            return ""

    def _files(self, ended_text: str) -> list[Path]:
        """Return the files of other processes that are not in the file of the ended ones."""
        known = {self._own.name, self._ended.name, *_added(ended_text)}
        return sorted(file for file in self._folder.glob(f"*{_SUFFIX}") if file.name not in known)

    def _has_ended(self, file: Path) -> bool:
        process_id = int(file.name.partition("-")[0])
        if process_id == self._process_id:
            return True
        try:
            os.kill(process_id, 0)
        except (ProcessLookupError, PermissionError):  # None, or one of another user.
            return True
        return False


def total(texts: Iterable[str]) -> Counts:
    """Add up counters and histograms in Prometheus' text format."""
    counts: dict[str, Metric] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            if family.type in _COUNTED:
                known = counts.setdefault(family.name, family)
                if known is not family:
                    known.samples = _sum(known.samples, family.samples)
    return counts


class WithOthers(Collector):
    """Metrics of this process, to which counts of other processes are added.

    Other processes may have counted what this one has not.
    """

    def __init__(self, own: Collector, others: Counts) -> None:
        self._own = own
        self._others = others

    @override
    def collect(self) -> Iterator[Metric]:
        known = set()
        for family in self._own.collect():
            known.add(family.name)
            if others := self._others.get(family.name):
                family.samples = _sum(family.samples, others.samples)
            yield family
        yield from (family for name, family in self._others.items() if name not in known)


class _Known(Collector):
    """Counts, as metrics to render."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    @override
    def collect(self) -> Iterator[Metric]:
        yield from self._counts.values()


def _sum(*parts: Iterable[Sample]) -> list[Sample]:
    """Add up samples of one family by name and labels."""
    totals: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for sample in (sample for part in parts for sample in part):
        key = sample.name, frozenset(sample.labels.items())
        known = totals.get(key)
        value = sample.value + (known.value if known else 0)
        totals[key] = sample._replace(value=value)
    return list(totals.values())


def _added(ended_text: str) -> list[str]:
    first, _, _ = ended_text.partition("\n")
    return first.removeprefix(_ADDED).split() if first.startswith(_ADDED) else []


def _replace(file: Path, text: bytes) -> bool:
    """Replace the content of a file at once; return whether that was possible."""
    new = file.with_suffix(".new")
    try:
        new.write_bytes(text)
        new.replace(file)
    except OSError:
        return False
    return True
