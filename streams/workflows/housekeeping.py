"""Periodic work of a worker: evicting resting instances, checkpoints, and offset commits."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import NoReturn

from aiokafka.errors import IllegalStateError, KafkaError

from headwater.schemas.errors import HeadwaterError
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.workflows.checkpoints import Checkpoints, TakenStates
from headwater.streams.workflows.step_sql import StepSql
from headwater.streams.workflows.worker_settings import Pace

log = logging.getLogger(__name__)


class Housekeeping:
    """The periodic work of one worker.

    Args:
        driver: Drives the partitions.
        checkpoints: Writes states of instances.
        sql: Deletes rows of recorded steps.
        pace: Intervals.
        clock: Returns the time in Unix milliseconds.
        appended: Waits for appends of partitions that are in flight.
        commit: Commits offsets up to which commands have replies.
        warn_of: Called with the workflows whose instances wait for code.
    """

    def __init__(  # noqa: PLR0913, the dependencies of the work
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
        """Do the work periodically until it is cancelled."""
        while True:
            await asyncio.sleep(self._pace.housekeeping_s)
            try:
                await self._once()
            except HeadwaterError:
                raise  # For example a damaged store, which a restart rebuilds.
            except Exception:
                log.exception("housekeeping failed, and will be retried")

    async def _once(self) -> None:
        rested_ms, driven = self._clock() - self._pace.idle_ms, self._driver.partitions
        for partition in driven.values():
            partition.owner.evict(rested_ms, partition.acknowledged, partition.position)
        await self._write_checkpoints()
        self._warn_of(
            {name for partition in driven.values() for name in partition.owner.without_code}
        )
        self._driver.wake_up()
        with contextlib.suppress(KafkaError, IllegalStateError):
            await self._commit()

    async def _write_checkpoints(self) -> None:
        """Write the checkpoints that are due, and delete rows of recorded steps."""
        now_s, driven = asyncio.get_running_loop().time(), self._driver.partitions
        for partition in list(driven.values()):
            if self._checkpoints.is_due(partition, now_s):
                await self._write_checkpoint(partition, now_s)
        for partition in list(driven.values()):
            await self._sql.tidy(partition)

    async def _write_checkpoint(self, partition: Partition, now_s: float) -> None:
        """Write a checkpoint. The partition is only held while a portion of it is encoded."""
        taken: TakenStates | None = None
        while taken is None or taken.left:
            async with self._at_rest(partition) as durable:
                if not durable or partition.owner.has_damaged:
                    if taken is not None:
                        taken.put_back()
                    return
                taken = self._checkpoints.take_states(partition, taken)
            if not await self._checkpoints.write_checkpoint(taken, now_s):
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
