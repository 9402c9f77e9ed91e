"""Writes down the states of instances, so that a takeover need not read the whole history.

A checkpoint of a partition says: all that its history holds before this position is in snapshots.
Snapshots have no epoch that makes them void; a late one, of a superseded owner, is noticed by the
next takeover, which then reads the history from where that snapshot is true (`takeover.py`).
"""

import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from aiokafka.errors import IllegalStateError, KafkaError

from headwater.schemas.errors import HeadwaterError
from headwater.schemas.snapshots import SnapshotTaken
from headwater.schemas.topics import MAX_VALUE_BYTES
from headwater.streams.engine.live_instances import COMPRESSED, FORMAT, wake_at_ms
from headwater.streams.engine.restore import CHECKPOINT
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.ownership import OwnedPartition

log = logging.getLogger(__name__)

#: History records after which states are written down: a takeover reads no more than these.
CHECKPOINT_RECORDS: Final = 20_000
#: Seconds after which they are, if anything has changed.
CHECKPOINT_S: Final = 60.0
#: States from this size on are compressed.
_COMPRESSED_FROM: Final = 256 * 1024


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

    def is_due(self, owned: OwnedPartition, now_s: float) -> bool:
        """Whether a partition has enough news, and all its commands have their replies."""
        owner = owned.owner
        if owned.replied <= owner.claims.cause or owner.has_staged() or not owned.records:
            return False
        return owned.records >= self._records or now_s - owned.checkpoint_at_s >= self._seconds

    async def write(self, owned: OwnedPartition, now_s: float) -> None:
        """Writes a checkpoint as of now, when all that the owner has given out is durable."""
        owner = owned.owner
        cause, position = owner.claims.cause, owned.position
        dirty, owner.dirty = owner.dirty, set()
        owned.records, owned.checkpoint_at_s = 0, now_s

        def taken(state: bytes) -> SnapshotTaken:
            large = len(state) > _COMPRESSED_FROM
            return SnapshotTaken(
                format=COMPRESSED if large else FORMAT,
                epoch=owned.epoch,
                position=position,
                cause=cause,
                wake_at_ms=wake_at_ms(state) if state else -1,
                state=zlib.compress(state, level=1) if large else state,
            )

        # All states are of one moment: nothing is awaited before the last is taken.
        snapshots = [(key.encode(), taken(owner.instances.state(key))) for key in dirty]
        large = [key.decode() for key, each in snapshots if len(each.state) > MAX_VALUE_BYTES]
        if large:
            owner.dirty |= dirty
            log.warning(
                "no checkpoint of partition %s: the states of %s are larger than %s bytes, so a "
                "takeover reads the history from the checkpoint before; keep results small",
                *(owned.number, ", ".join(large), MAX_VALUE_BYTES),
            )
            return
        try:
            await self._commit()
            await self._log.write_snapshots({owned.number: snapshots})
            await self._log.write_snapshots({owned.number: [(CHECKPOINT, taken(b""))]})
        except (HeadwaterError, KafkaError, IllegalStateError) as error:
            owner.dirty |= dirty
            log.warning("states of partition %s are not written down: %s", owned.number, error)
