"""Writes down the states of instances, so that a takeover need not read the whole history.

A checkpoint of a partition says: all that its history holds before this position is in snapshots.
Snapshots have no epoch that makes them void; a late one, of a superseded owner, is noticed by the
next takeover, which then reads the history from where that snapshot is true (`restore.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from headwater.schemas.snapshots import SnapshotTaken
from headwater.streams.engine.instance_store import HistoryMark, StoredState
from headwater.streams.engine.restore import CHECKPOINT
from headwater.streams.engine.state_records import COMPRESSED_FROM, records_of, snapshot_of
from headwater.streams.engine.turns import Partition
from headwater.streams.workflows.log import WorkflowLog

log = logging.getLogger(__name__)

#: History records after which states are written down: a takeover reads no more than these.
CHECKPOINT_RECORDS: Final = 20_000
#: Seconds after which they are, if anything has changed.
CHECKPOINT_S: Final = 60.0
#: How long a checkpoint waits for the replies before it.
_REPLIES_S: Final = 10.0
#: Bytes of states that are in memory at a time, on their way.
_TAKEN_BYTES: Final = 32 * 1024 * 1024


class _Latest(NamedTuple):
    """The latest checkpoint of a partition: up to which offset it goes, and when it was written."""

    position: int
    at_s: float


class Taken(NamedTuple):
    """States of a partition, of those that have changed up to a mark.

    Shape:  states are as of `at`, the mark or later; the keys that are left are still to be taken.
    """

    partition: Partition
    mark: HistoryMark
    at: HistoryMark
    states: dict[str, StoredState]
    left: list[str]

    def put_back(self) -> None:
        """Has them taken again by the next checkpoint."""
        self.partition.owner.instances.changed.update(self.states, self.left)


class Checkpoints:
    """The checkpoints of a worker's partitions.

    Shape:  `replied` is awaited until the outcomes that a partition has given out were sent.
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
        """Forgets a partition that was given up."""
        self._latest.pop(partition, None)

    def is_due(self, partition: Partition, now_s: float) -> bool:
        """Whether enough happened in a partition."""
        # The first time it is asked of a partition that was read from its latest checkpoint on.
        latest = self._latest.setdefault(partition, _Latest(partition.start, now_s))
        if partition.owner.has_staged():
            return False  # What a takeover has decided waits for a turn.
        if partition.owner.instances.has_deleted():
            return True  # Their bytes are not to stay.
        records = partition.position - latest.position
        return records >= self._records or (records > 0 and now_s - latest.at_s >= self._seconds)

    def take(self, partition: Partition, before: Taken | None = None) -> Taken:
        """Takes states as of now, when all that the owner has decided is durable.

        Shape:  before is what was taken first, and left others; each time so many bytes.
        """
        instances, position = partition.owner.instances, partition.position
        claims = partition.owner.claims
        at = HistoryMark(position, partition.epoch, claims.cause, claims.leader_epoch)
        left = before.left if before else list(instances.take_keys())
        wanted = list(left)
        try:
            states = instances.take_snapshots(left, position, _TAKEN_BYTES)
        except Exception:
            # The next checkpoint has to have all of them.
            instances.changed.update(wanted)
            raise
        return Taken(partition, before.mark if before else at, at, states, left)

    async def write(self, taken: Taken, now_s: float) -> bool:
        """Writes states, when the commands before them have their replies; gives whether it did.

        The checkpoint follows the last of them: a state may be newer than that says.
        """
        partition, mark, at, states, left = taken
        try:
            async with asyncio.timeout(_REPLIES_S):
                await self._replied(partition)
            if partition.replied <= at.cause:
                # After a takeover some commands are read again, and answered once more.
                taken.put_back()
                return False
            await self._commit()
            snapshots = await _snapshots(at, states)
            await self._log.write_snapshots({partition.number: snapshots})
            if left:
                return True
            checkpoint = snapshot_of(mark, StoredState("", 0, -1, mark.position, b""))
            await self._log.write_snapshots({partition.number: [(CHECKPOINT, checkpoint)]})
        except Exception as error:  # noqa: BLE001, the next one has all that this one has
            self._put_off(taken, now_s)
            log.warning("states of partition %s are not written down: %r", partition.number, error)
            return False
        if partition in self._latest:
            self._latest[partition] = _Latest(mark.position, now_s)
            # Not before: a takeover from the store has to read what is in no checkpoint.
            partition.owner.instances.store.set_mark(mark)
        return True

    def _put_off(self, taken: Taken, now_s: float) -> None:
        """Has it tried again when as much more has happened."""
        taken.put_back()
        if taken.partition in self._latest:
            self._latest[taken.partition] = _Latest(taken.mark.position, now_s)


async def _snapshots(
    mark: HistoryMark, states: dict[str, StoredState]
) -> list[tuple[bytes, SnapshotTaken]]:
    """States as of a mark, as records; large ones are compressed beside the event loop."""
    small: list[tuple[str, StoredState]] = []
    large: list[tuple[str, StoredState]] = []
    for key, stored in states.items():
        (large if len(stored.state) > COMPRESSED_FROM else small).append((key, stored))
    records = [record for key, stored in small for record in records_of(key, stored, mark)]
    for key, stored in large:
        records += await asyncio.to_thread(records_of, key, stored, mark)
    return records
