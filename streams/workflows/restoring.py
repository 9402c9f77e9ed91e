"""Reads states of instances again that an error has damaged, while their partitions wait."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, Final

from headwater.streams.engine.driver import Driver
from headwater.streams.engine.restore import restore_instance
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.log import WorkflowLog

log = logging.getLogger(__name__)

#: How long to wait for what a partition has staged.
_STAGED_S: Final = 0.02
#: How long a partition rests that has to be taken over because a state cannot be read.
_PAUSE_S: Final = 30.0


class Restoring:
    """The damaged states of one worker.

    Args:
        workflow_log: Where they are read.
        driver: Drives the partitions.
        appended: Waits for appends of partitions that are under way.
        clock: The time in Unix milliseconds.
        lose: Has a partition taken over again, because of a reason, after seconds.
    """

    def __init__(
        self,
        workflow_log: WorkflowLog,
        driver: Driver,
        appended: Callable[[Collection[int]], Awaitable[None]],
        clock: Callable[[], int],
        lose: Callable[[Partition, str, float], None],
    ) -> None:
        self._log = workflow_log
        self._driver = driver
        self._appended = appended
        self._clock = clock
        self._lose = lose
        self._under_way: set[Partition] = set()

    def begin(self, partitions: Iterable[Partition]) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the work for each partition with damaged states that nothing restores yet."""
        for partition in list(partitions):
            if partition.owner.has_damaged and partition not in self._under_way:
                self._under_way.add(partition)
                yield self._restore(partition)

    async def _restore(self, partition: Partition) -> None:
        number = partition.number
        retrying = Retrying(log, f"partition {number}: a state has to be read again")
        try:
            while self._driver.drives(partition) and partition.owner.has_damaged:
                await self._appended([number])
                if partition.in_flight or partition.owner.has_staged():
                    self._driver.wake_up()
                    await asyncio.sleep(_STAGED_S)
                    continue
                await retrying.until_done(lambda: self._read(partition))
        except Exception as error:
            log.exception("a state cannot be read again")
            self._lose(partition, repr(error), _PAUSE_S)
        finally:
            self._under_way.discard(partition)
            self._driver.wake_up()

    async def _read(self, partition: Partition) -> None:
        owner, end = partition.owner, partition.position
        for key in owner.damaged():
            found = await restore_instance(self._log, owner.instances, partition.number, key, end)
            if self._driver.drives(partition):
                partition.move_to(self._clock())
                owner.restored(key, found, partition.now_ms)
