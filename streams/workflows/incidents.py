"""Errors that cost one command or run: log and count them, and restore damaged states."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, Final

from headwater.monitoring.catalog import ERRORS_CONTAINED
from headwater.processors.log_fields import set_log_fields
from headwater.schemas.history import HistoryAppended
from headwater.streams.clock import monotonic
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.quarantine import Incident
from headwater.streams.engine.restore import restore_instance
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.log import WorkflowLog, unwritable

log = logging.getLogger(__name__)

#: Tracebacks logged per minute, so that repeated failing commands do not fill the disk.
_LOGGED_MAX: Final = 20
_WINDOW_S: Final = 60.0


class Incidents:
    """The errors that a worker has contained."""

    def __init__(self) -> None:
        self._window_s = monotonic()
        self._logged = self._not_logged = 0
        #: Why decisions of instances cannot be stored in a record, by partition and key.
        self._unwritable: dict[int, dict[str, str]] = {}

    def cannot_write(
        self, partition: int, records: Iterable[tuple[bytes, HistoryAppended]]
    ) -> bool:
        """Record instances whose decision does not fit into a record. Return whether any has one.

        The next owner would make the same decision, so it must quarantine them.
        """
        problems = unwritable(records)
        self._unwritable.setdefault(partition, {}).update(problems)
        return bool(problems)

    def take_unwritable(self, partition: int) -> dict[str, str]:
        """Remove and return the instances of a partition whose decision does not fit a record."""
        return self._unwritable.pop(partition, {})

    def note(self, incidents: Iterable[Incident]) -> None:
        """Count errors, and log a limited number per minute."""
        for incident in incidents:
            ERRORS_CONTAINED.add((incident.kind,))
            if not self._may_log():
                continue
            if incident.quarantined:
                log.error("an instance is quarantined: %s", incident.what, exc_info=incident.error)
            else:
                log.error(
                    "%s failed; everything else continues", incident.what, exc_info=incident.error
                )

    def _may_log(self) -> bool:
        now_s = monotonic()
        if now_s - self._window_s >= _WINDOW_S:
            if self._not_logged:
                log.error("%d further errors were not logged", self._not_logged)
            self._window_s, self._logged, self._not_logged = now_s, 0, 0
        if self._logged >= _LOGGED_MAX:
            self._not_logged += 1
            return False
        self._logged += 1
        return True


# -- restoring

#: Poll interval until staged records are appended.
_STAGED_S: Final = 0.02
#: Pause before a partition is acquired again because a state cannot be restored.
_PAUSE_S: Final = 30.0


class Restoring:
    """Restores the damaged states of one worker.

    Args:
        workflow_log: Log that is read.
        driver: Drives the partitions.
        appended: Waits for appends of partitions that are in flight.
        clock: Returns the time in Unix milliseconds.
        reacquire: Acquires a partition again, for a reason, after some seconds.
    """

    def __init__(
        self,
        workflow_log: WorkflowLog,
        driver: Driver,
        appended: Callable[[Collection[int]], Awaitable[None]],
        clock: Callable[[], int],
        reacquire: Callable[[Partition, str, float], None],
    ) -> None:
        self._log = workflow_log
        self._driver = driver
        self._appended = appended
        self._clock = clock
        self._reacquire = reacquire
        self._in_progress: set[Partition] = set()

    def begin(self, partitions: Iterable[Partition]) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield a coroutine for every partition with damaged states that is not being restored."""
        for partition in list(partitions):
            if partition.owner.has_damaged and partition not in self._in_progress:
                self._in_progress.add(partition)
                yield self._restore(partition)

    async def _restore(self, partition: Partition) -> None:
        number = partition.number
        set_log_fields(partition=number)
        retrying = Retrying(log, f"partition {number}: a state has to be restored")
        try:
            while self._driver.drives(partition) and partition.owner.has_damaged:
                await self._appended([number])
                if partition.in_flight or partition.owner.has_staged():
                    self._driver.wake_up()
                    await asyncio.sleep(_STAGED_S)
                    continue
                await retrying.until_done(lambda: self._read(partition))
        except Exception as error:
            log.exception("a state cannot be restored")
            self._reacquire(partition, repr(error), _PAUSE_S)
        finally:
            self._in_progress.discard(partition)
            self._driver.wake_up()

    async def _read(self, partition: Partition) -> None:
        owner, end = partition.owner, partition.position
        for key in owner.damaged():
            restored = await restore_instance(
                self._log, owner.instances, partition.number, key, end
            )
            if self._driver.drives(partition):
                partition.move_to(self._clock())
                owner.restore_damaged(key, restored, partition.now_ms)
