"""Folds the history of a run, read from the log, in a thread."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final, Protocol, TypeVar

from headwater.gateway.api.problems import Problem
from headwater.schemas.history import HistoryAppended
from headwater.streams.workflows.history_topic import RunReader

T = TypeVar("T")

#: Runs that are folded at a time: a run has a Kafka reader, and its state in memory.
FOLDS_MAX: Final = 8


class RunFold(Protocol):
    """Consumes records of a run until it is done."""

    def apply(self, record: HistoryAppended) -> None:
        """Apply the next record."""

    def is_done(self) -> bool:
        """Whether it needs no further records."""


class RunFolds:
    """Runs folds, at most `FOLDS_MAX` at a time."""

    def __init__(self, log: RunReader) -> None:
        self._log = log
        self._count = 0
        self._thread_lock = asyncio.Lock()

    async def fold(
        self,
        key: str,
        partition: int,
        start: int,
        fold: RunFold,
        render: Callable[[], T],
    ) -> T:
        """Fold the records of an instance from an offset on, then render the result.

        Args:
            key: Key of the instance in the history.
            partition: Its partition.
            start: First offset to read.
            fold: Consumes the records.
            render: Computes the result in the thread, after the fold.

        Raises:
            Problem: As many runs as allowed are being folded.
            BrokerUnavailable: No broker answered in time.
        """
        with self._slot():
            async with aclosing(self._log.read(partition, start, key)) as batches:
                async for records in batches:
                    await self._in_thread(partial(_apply, fold, records))
                    if fold.is_done():
                        break
            return await self._in_thread(render)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run work in a thread, one at a time; the event loop stays free for deliveries."""
        async with self._thread_lock:
            return await asyncio.to_thread(work)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self._count >= FOLDS_MAX:
            message = f"expected at most {FOLDS_MAX} runs to be inspected at a time"
            raise Problem("overloaded", message)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


def _apply(fold: RunFold, records: Sequence[HistoryAppended]) -> None:
    for record in records:
        fold.apply(record)
