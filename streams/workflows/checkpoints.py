"""Writes down the states of instances, so that a takeover need not read the whole history.

A checkpoint of a partition says: all that its history holds before this position is in snapshots.
Snapshots have no epoch that makes them void; a late one, of a superseded owner, is noticed by the
next takeover, which then reads the history from where that snapshot is true (`restore.py`).
"""

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
#: States from this size on are compressed.
_COMPRESSED_FROM: Final = 256 * 1024


class _Latest(NamedTuple):
    """The latest checkpoint of a partition: up to which offset it goes, and when it was written."""

    position: int
    at_s: float


class Checkpoints:
    """The checkpoints of a worker's partitions."""

    def __init__(
        self,
        workflow_log: WorkflowLog,
        *,
        commit: Callable[[], Awaitable[None]],
        records: int = CHECKPOINT_RECORDS,
        seconds: float = CHECKPOINT_S,
    ) -> None:
        self._log = workflow_log
        self._commit = commit
        self._records = records
        self._seconds = seconds
        self._latest: dict[Partition, _Latest] = {}

    def forget(self, partition: Partition) -> None:
        """Forgets a partition that was given up."""
        self._latest.pop(partition, None)

    def is_due(self, partition: Partition, now_s: float) -> bool:
        """Whether enough happened in a partition, and all its commands have their replies."""
        # The first time it is asked of a partition that was read from its latest checkpoint on.
        latest = self._latest.setdefault(partition, _Latest(partition.start, now_s))
        owner = partition.owner
        records = partition.position - latest.position
        if partition.replied <= owner.claims.cause or owner.has_staged() or not records:
            return False
        return records >= self._records or now_s - latest.at_s >= self._seconds

    async def write(self, partition: Partition, now_s: float) -> None:
        """Writes a checkpoint as of now, when all that the owner has given out is durable."""
        self._latest[partition] = _Latest(partition.position, now_s)
        # All states are of one moment: nothing is awaited before the last is taken.
        instances, position = partition.owner.instances, partition.position
        mark = Mark(position, partition.epoch, partition.owner.claims.cause)
        changed = instances.take_changed(position)
        snapshots = [(key.encode(), _snapshot(mark, each)) for key, each in changed.items()]
        large = [key.decode() for key, each in snapshots if len(each.state) > MAX_VALUE_BYTES]
        if large:
            instances.changed |= changed.keys()
            log.warning(
                "no checkpoint of partition %s: the states of %s are larger than %s bytes, so a "
                "takeover reads the history from the checkpoint before; keep results small",
                *(partition.number, ", ".join(large), MAX_VALUE_BYTES),
            )
            return
        try:
            await self._commit()
            await self._log.write_snapshots({partition.number: snapshots})
            checkpoint = _snapshot(mark, StoredState("", 0, -1, position, b""))
            await self._log.write_snapshots({partition.number: [(CHECKPOINT, checkpoint)]})
        except (HeadwaterError, KafkaError, IllegalStateError) as error:
            instances.changed |= changed.keys()
            log.warning("states of partition %s are not written down: %s", partition.number, error)
            return
        if partition in self._latest:
            # Not before: a takeover from the store has to read what is in no checkpoint.
            instances.store.set_mark(mark)


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
