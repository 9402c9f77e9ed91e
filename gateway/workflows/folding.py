"""Folding runs: their records are read from the log, and folded beside the event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final, Protocol, TypeVar

from headwater.gateway.http.problems import Problem
from headwater.schemas.history import HistoryAppended

T = TypeVar("T")

#: Runs that are folded at a time: each has a reader of Kafka, and a run in memory.
FOLDS_MAX: Final = 8


class RunLog(Protocol):
    """Where the history of runs is read."""

    def read(self, partition: int, start: int, key: str) -> AsyncGenerator[list[HistoryAppended]]:
        """Yields the records of an instance that count, from one on."""


class Fold(Protocol):
    """What takes records, until it has what it is after."""

    def apply(self, record: HistoryAppended) -> None:
        """Takes the next record."""

    def is_done(self) -> bool:
        """Whether it needs no more of them."""


class Folds:
    """The folds that are under way, of which there may be so many."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._count = 0
        self._thread = asyncio.Lock()

    async def fold(
        self,
        key: str,
        partition: int,
        start: int,
        fold: Fold,
        say: Callable[[], T],
    ) -> T:
        """Folds the records of an instance, from one on; gives what is to be said of it.

        Errors: Problem; BrokerUnavailable.
        """
        with self._room():
            async with aclosing(self._log.read(partition, start, key)) as batches:
                async for records in batches:
                    await self._aside(partial(_apply, fold, records))
                    if fold.is_done():
                        break
            return await self._aside(say)

    async def _aside(self, work: Callable[[], T]) -> T:
        """Does work beside the event loop, which takes deliveries meanwhile; one at a time."""
        async with self._thread:
            return await asyncio.to_thread(work)

    @contextmanager
    def _room(self) -> Iterator[None]:
        if self._count >= FOLDS_MAX:
            message = f"expected at most {FOLDS_MAX} runs to be looked into at a time"
            raise Problem("overloaded", message)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


def _apply(fold: Fold, records: Sequence[HistoryAppended]) -> None:
    for record in records:
        fold.apply(record)
