"""What a worker does now and then: evicting instances that rest, checkpoints, and commits."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import NoReturn

from aiokafka.errors import IllegalStateError, KafkaError

from headwater.schemas.errors import HeadwaterError
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.workflows.checkpoints import Checkpoints, Taken
from headwater.streams.workflows.step_sql import StepSql
from headwater.streams.workflows.worker_settings import Pace

log = logging.getLogger(__name__)


class Housekeeping:
    """The housekeeping of one worker.

    Args:
        driver: Has the partitions.
        checkpoints: Writes states of instances.
        sql: Has rows of steps that can be removed.
        pace: How often.
        clock: Unix milliseconds.
        appended: Waits for appends of partitions that are under way.
        commit: Commits how far commands have their replies.
        warn_of: Called with the workflows whose instances wait for code.
    """

    def __init__(  # noqa: PLR0913, what there is to do
        self,
        *,
        driver: Driver,
        checkpoints: Checkpoints,
        sql: StepSql,
        pace: Pace,
        clock: Callable[[], int],
        appended: Callable[[Collection[int]], Awaitable[None]],
        commit: Callable[[], Awaitable[None]],
        warn_of: Callable[[set[str]], None],
    ) -> None:
        self._driver = driver
        self._checkpoints, self._sql = checkpoints, sql
        self._pace, self._clock = pace, clock
        self._appended, self._commit, self._warn_of = appended, commit, warn_of

    async def run(self) -> NoReturn:
        """Do it again and again until it is cancelled."""
        while True:
            await asyncio.sleep(self._pace.housekeeping_s)
            try:
                await self._once()
            except HeadwaterError:
                raise  # Such as a store that is torn, which a restart fills again.
            except Exception:
                log.exception("housekeeping failed, and is tried again")

    async def _once(self) -> None:
        rested_ms, driven = self._clock() - self._pace.idle_ms, self._driver.partitions
        for partition in driven.values():
            partition.owner.evict(rested_ms, partition.acknowledged, partition.position)
        await self._write_down()
        self._warn_of({name for each in driven.values() for name in each.owner.without_code})
        self._driver.wake_up()
        with contextlib.suppress(KafkaError, IllegalStateError):
            await self._commit()

    async def _write_down(self) -> None:
        """Write the checkpoints that are due, and remove rows of steps that are recorded."""
        now_s, driven = asyncio.get_running_loop().time(), self._driver.partitions
        for partition in list(driven.values()):
            if self._checkpoints.is_due(partition, now_s):
                await self._write_checkpoint(partition, now_s)
        for partition in list(driven.values()):
            await self._sql.tidy(partition)

    async def _write_checkpoint(self, partition: Partition, now_s: float) -> None:
        """Write a checkpoint; the partition rests only while each of its portions is taken."""
        taken: Taken | None = None
        while taken is None or taken.left:
            async with self._at_rest(partition) as durable:
                if not durable or partition.owner.has_damaged:
                    if taken is not None:
                        taken.put_back()
                    return
                taken = self._checkpoints.take(partition, taken)
            if not await self._checkpoints.write(taken, now_s):
                return

    @contextlib.asynccontextmanager
    async def _at_rest(self, partition: Partition) -> AsyncIterator[bool]:
        """Hold a partition until what its owner has decided is durable; yield whether it is."""
        partition.held = True
        try:
            await self._appended([partition.number])
            yield self._driver.drives(partition) and not (
                partition.in_flight or partition.owner.has_staged()
            )
        finally:
            partition.held = False
            self._driver.wake_up()
