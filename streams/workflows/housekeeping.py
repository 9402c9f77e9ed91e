"""Periodic work of a worker: checkpoints, evictions, offset commits; and its settings."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final, NamedTuple, NoReturn

from aiokafka.errors import IllegalStateError, KafkaError

from headwater.monitoring.catalog import CHECKPOINTS
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.records import SnapshotTaken
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.instance_store import HistoryMark, StoredState
from headwater.streams.engine.restore import CHECKPOINT
from headwater.streams.engine.state_records import COMPRESSED_FROM, records_of, snapshot_of
from headwater.streams.engine.turns import Partition
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.step_sql import StepSql
from headwater.streams.workflows.worker_options import CHECKPOINT_RECORDS, CHECKPOINT_S, Pace

log = logging.getLogger(__name__)

#: Longest wait for replies to commands before a checkpoint, in seconds.
_REPLIES_S: Final = 10.0
#: Bytes of encoded states in memory at a time.
_STATES_BYTES: Final = 32 * 1024 * 1024


class _Latest(NamedTuple):
    """The latest checkpoint of a partition: its offset, and when it was written."""

    position: int
    at_s: float


class TakenStates(NamedTuple):
    """Encoded states of instances that have changed up to a mark.

    Attributes:
        mark: Mark of the whole checkpoint.
        at: Mark of these states, the same or later.
        left: Keys of the instances that are not encoded yet.
    """

    partition: Partition
    mark: HistoryMark
    at: HistoryMark
    states: dict[str, StoredState]
    left: list[str]

    def put_back(self) -> None:
        """Return the instances to the next checkpoint."""
        self.partition.owner.instances.changed.update(self.states, self.left)


class Checkpoints:
    """The checkpoints of a worker's partitions.

    A checkpoint of a partition states that everything in its history before a position is in
    snapshots. Snapshots cannot be fenced by epochs. A late snapshot of a superseded owner is
    detected when the partition is restored; the history is then read from the position of that
    snapshot (`streams.engine.restore`).

    Args:
        workflow_log: Writes the snapshots.
        replied: Waits until all replies of a partition so far were sent.
        commit: Commits offsets up to which commands have replies.
        records: Number of history records after which a checkpoint is due.
        seconds: Seconds after which a checkpoint is due.
    """

    def __init__(
        self,
        workflow_log: WorkflowLog,
        *,
        replied: Callable[[Partition], Awaitable[None]],
        commit: Callable[[], Awaitable[None]],
        records: int = CHECKPOINT_RECORDS,
        seconds: float = CHECKPOINT_S,
    ) -> None:
        self._log = workflow_log
        self._replied = replied
        self._commit = commit
        self._records = records
        self._seconds = seconds
        self._latest: dict[Partition, _Latest] = {}

    def forget(self, partition: Partition) -> None:
        """Forget a partition that was released."""
        self._latest.pop(partition, None)

    def age_s(self, partition: Partition) -> float:
        """Return the age of the latest checkpoint; 0 if nothing was appended since."""
        latest = self._latest.get(partition)
        if latest is None or partition.position <= latest.position:
            return 0
        return asyncio.get_running_loop().time() - latest.at_s

    def is_due(self, partition: Partition, now_s: float) -> bool:
        """Whether a checkpoint of a partition is due."""
        # On the first call, the partition was restored from its latest checkpoint.
        latest = self._latest.setdefault(partition, _Latest(partition.start, now_s))
        if partition.owner.has_staged():
            return False  # Staged records must be appended first.
        if partition.owner.instances.has_deleted():
            return True  # Their snapshots must be deleted.
        records = partition.position - latest.position
        return records >= self._records or (records > 0 and now_s - latest.at_s >= self._seconds)

    def take_states(self, partition: Partition, before: TakenStates | None = None) -> TakenStates:
        """Encode changed states. Everything that the owner has decided must be durable.

        Args:
            partition: The partition.
            before: Result of the previous call for the same checkpoint. Each call is limited in
                size.
        """
        instances, position = partition.owner.instances, partition.position
        claims = partition.owner.claims
        at = HistoryMark(position, partition.epoch, claims.cause, claims.leader_epoch)
        left = before.left if before else list(instances.take_keys())
        keys = list(left)
        try:
            states = instances.take_snapshots(left, position, _STATES_BYTES)
        except Exception:
            # The next checkpoint must include all of them.
            instances.changed.update(keys)
            raise
        return TakenStates(partition, before.mark if before else at, at, states, left)

    async def write_checkpoint(self, taken: TakenStates, now_s: float) -> bool:
        """Write states when the commands before them have replies. Return whether it was done.

        The checkpoint itself follows the last of them, so states may be newer than it.
        """
        partition, mark, at, states, left = taken
        try:
            async with asyncio.timeout(_REPLIES_S):
                await self._replied(partition)
            if partition.replied <= at.cause:
                # A new owner may read commands again, whose replies were not committed.
                taken.put_back()
                return False
            await self._commit()
            snapshots = await _snapshots(at, states)
            await self._log.write_snapshots({partition.number: snapshots})
            if left:
                return True
            checkpoint = snapshot_of(mark, StoredState("", 0, -1, mark.position, b""))
            await self._log.write_snapshots({partition.number: [(CHECKPOINT, checkpoint)]})
        except Exception as error:  # noqa: BLE001, the next checkpoint includes everything
            self._postpone(taken, now_s)
            CHECKPOINTS.add(("failed",))
            log.warning("states of partition %s cannot be written: %r", partition.number, error)
            return False
        if partition in self._latest:
            self._latest[partition] = _Latest(mark.position, now_s)
            CHECKPOINTS.add(("written",))
            # Only now: restoring from the store must read everything that is in no checkpoint.
            partition.owner.instances.store.set_mark(mark)
        return True

    def _postpone(self, taken: TakenStates, now_s: float) -> None:
        """Try again when a further checkpoint would be due."""
        taken.put_back()
        if taken.partition in self._latest:
            self._latest[taken.partition] = _Latest(taken.mark.position, now_s)


async def _snapshots(
    mark: HistoryMark, states: dict[str, StoredState]
) -> list[tuple[bytes, SnapshotTaken]]:
    """Return states at a mark as records. Large ones are compressed in another thread."""
    small: list[tuple[str, StoredState]] = []
    large: list[tuple[str, StoredState]] = []
    for key, stored in states.items():
        (large if len(stored.state) > COMPRESSED_FROM else small).append((key, stored))
    records = [record for key, stored in small for record in records_of(key, stored, mark)]
    for key, stored in large:
        records += await asyncio.to_thread(records_of, key, stored, mark)
    return records


# -- periodic work of a worker: evicting resting instances, checkpoints, and offset commits


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
