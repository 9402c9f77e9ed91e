"""Writes down the states of instances, so that a takeover need not read the whole history.

A checkpoint of a partition says: all that its history holds before this position is in snapshots.
Snapshots have no epoch that makes them void; a late one, of a superseded owner, is noticed by the
next takeover, which then reads the history from where that snapshot is true (`restore.py`).
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from aiokafka.errors import IllegalStateError, KafkaError

from headwater.schemas.errors import HeadwaterError
from headwater.schemas.snapshots import SnapshotTaken
from headwater.schemas.topics import MAX_VALUE_BYTES
from headwater.streams.engine.instance_store import Mark, StoredState
from headwater.streams.engine.restore import CHECKPOINT
from headwater.streams.engine.turns import Partition
from headwater.streams.workflows.log import WorkflowLog

log = logging.getLogger(__name__)

#: History records after which states are written down: a takeover reads no more than these.
CHECKPOINT_RECORDS: Final = 20_000
#: Seconds after which they are, if anything has changed.
CHECKPOINT_S: Final = 60.0
#: How long a checkpoint waits for the replies before it.
_REPLIES_S: Final = 10.0
#: States from this size on are compressed.
_COMPRESSED_FROM: Final = 256 * 1024


class _Latest(NamedTuple):
    """The latest checkpoint of a partition: up to which offset it goes, and when it was written."""

    position: int
    at_s: float


class Taken(NamedTuple):
    """What has changed in a partition up to a mark: states, as snapshots with their keys."""

    partition: Partition
    mark: Mark
    snapshots: list[tuple[bytes, SnapshotTaken]]

    def put_back(self) -> None:
        """Has them taken again by the next checkpoint."""
        self.partition.owner.instances.changed.update(key.decode() for key, _ in self.snapshots)


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

    def take(self, partition: Partition) -> Taken:
        """Takes the states as of now, when all that the owner has decided is durable."""
        instances, position = partition.owner.instances, partition.position
        mark = Mark(position, partition.epoch, partition.owner.claims.cause)
        changed = instances.take_changed(position)
        snapshots = [(key.encode(), _snapshot(mark, each)) for key, each in changed.items()]
        return Taken(partition, mark, snapshots)

    async def write(self, taken: Taken, now_s: float) -> None:
        """Writes a checkpoint, when the commands before it have their replies."""
        partition, mark, snapshots = taken
        large = [key.decode() for key, each in snapshots if len(each.state) > MAX_VALUE_BYTES]
        if large:
            self._put_off(taken, now_s)
            log.warning(
                "no checkpoint of partition %s: the states of %s are larger than %s bytes, so a "
                "takeover reads the history from the checkpoint before; keep results small",
                *(partition.number, ", ".join(large), MAX_VALUE_BYTES),
            )
            return
        try:
            async with asyncio.timeout(_REPLIES_S):
                await self._replied(partition)
            if partition.replied <= mark.cause:
                # After a takeover some commands are read again, and answered once more.
                taken.put_back()
                return
            await self._commit()
            await self._log.write_snapshots({partition.number: snapshots})
            checkpoint = _snapshot(mark, StoredState("", 0, -1, mark.position, b""))
            await self._log.write_snapshots({partition.number: [(CHECKPOINT, checkpoint)]})
        except (HeadwaterError, KafkaError, IllegalStateError, TimeoutError) as error:
            self._put_off(taken, now_s)
            log.warning("states of partition %s are not written down: %r", partition.number, error)
            return
        if partition in self._latest:
            self._latest[partition] = _Latest(mark.position, now_s)
            # Not before: a takeover from the store has to read what is in no checkpoint.
            partition.owner.instances.store.set_mark(mark)

    def _put_off(self, taken: Taken, now_s: float) -> None:
        """Has it tried again when as much more has happened."""
        taken.put_back()
        if taken.partition in self._latest:
            self._latest[taken.partition] = _Latest(taken.mark.position, now_s)


def _snapshot(mark: Mark, stored: StoredState) -> SnapshotTaken:
    """A state as of a mark."""
    compressed = len(stored.state) > _COMPRESSED_FROM
    return SnapshotTaken(
        kind=stored.kind,
        format=stored.format,
        compressed=compressed,
        epoch=mark.epoch,
        position=mark.position,
        cause=mark.cause,
        wake_at_ms=stored.wake_at_ms,
        state=zlib.compress(stored.state, level=1) if compressed else stored.state,
    )
