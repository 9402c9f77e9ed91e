"""Restores the state of a partition from its snapshots and its log."""

import zlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.processors.runs.engine import Engines, fold
from headwater.schemas.errors import NewerSchema
from headwater.schemas.history import (
    NO_CAUSE,
    NO_LEADER_EPOCH,
    CommandRejected,
    HistoryAppended,
    InstanceDeleted,
    LeaderEpochNoted,
    PartitionClaimed,
    RunStarted,
    instance_key,
)
from headwater.schemas.records import SnapshotTaken
from headwater.streams.engine import quarantine
from headwater.streams.engine.effects import lease_until_ms
from headwater.streams.engine.instance_store import HistoryMark
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.state_records import PART, Filler, StateParts

#: The key of a partition's checkpoint among its snapshots.
CHECKPOINT: Final = b""
#: Instances kept in memory before resting ones are moved to the store: some 20 MB.
LIVE_MAX: Final = 10_000
#: For a history that is read from its beginning.
_BEGINNING: Final = HistoryMark(0, UNCLAIMED, NO_CAUSE)
#: Bytes of loaded states before resting instances are moved to the store.
_LOADED_BYTES: Final = 256 * 1024 * 1024


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a command, as in its reply."""

    code: str
    message: str
    status: str
    run_number: int
    position: int
    lease_until_ms: int | None = None


@dataclass(slots=True)
class Restored:
    """A partition as its log describes it, up to the owner's claim.

    Attributes:
        outcomes: Outcomes of commands with replies that may not have been sent, by cause.
    """

    instances: LiveInstances
    claims: Claims = field(default_factory=Claims)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    #: Offset up to which replies to commands were sent.
    replied: int = 0
    #: Offset from which the history has to be read.
    start: int = 0
    #: Time of the latest record that was read; 0 if there was none.
    at_ms: int = 0


class HistoryReader(Protocol):
    """Reads the history and the snapshots of partitions."""

    def read(
        self, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[tuple[int, HistoryAppended]]]:
        """Yield records with their offsets."""

    def read_snapshots(self, partition: int) -> AsyncGenerator[tuple[bytes, SnapshotTaken | None]]:
        """Yield snapshots by name; None for a snapshot that cannot be used."""


def restore(
    claims: Claims, records: Iterable[tuple[int, HistoryAppended]], instances: LiveInstances
) -> None:
    """Fold records, in the order of their offsets, into the instances.

    Args:
        claims: Claims as of the records before. Changed in place.
        records: Offsets and records.
        instances: Instances as of the records before. Changed in place.
    """
    for offset, record in records:
        if claims.admit(offset, record):
            _apply(instances, offset, record)


def _apply(instances: LiveInstances, offset: int, record: HistoryAppended) -> None:
    first = record.events[0]
    if isinstance(first, LeaderEpochNoted):
        return
    key = instance_key(record.workflow, record.instance_id)
    live = instances.find(key)
    if live is not None and offset < live.position:
        return  # Its stored state is newer than the mark.
    if isinstance(first, InstanceDeleted):
        instances.delete(key)
        return
    if key in instances.quarantined:
        return
    begins = isinstance(first, RunStarted) and record.run_number == 0
    if live is None and not (begins or isinstance(first, CommandRejected)):
        # An interrupted checkpoint has already removed its state.
        instances.incomplete.add(key)
        return
    try:
        state = fold(instances.engines, live.run if live else None, record)
    except NewerSchema:
        raise
    except Exception as error:  # noqa: BLE001, one history costs its instance alone
        description = quarantine.describe_error(error)
        instances.quarantine(
            key, f"its history cannot be applied at {offset}: {description}", error
        )
        return
    if live is not None:
        live.run = state
    elif state is not None:
        instances.add(key, state)


async def restore_partition(
    log: HistoryReader,
    instances: LiveInstances,
    partition: int,
    epoch: int,
    committed: int,
    live_max: int = LIVE_MAX,
) -> Restored:
    """Read a partition up to the owner's claim.

    Instances with a history that cannot be applied even from its beginning are quarantined.

    Args:
        log: Reads the history and the snapshots.
        instances: Instances, none in memory. If their store has a mark, the history is read from
            there; otherwise the store is filled from snapshots.
        partition: Number of the partition.
        epoch: Offset of the owner's claim.
        committed: Offset up to which all commands have been replied to.
        live_max: Number of instances that stay in memory.

    Raises:
        BrokerUnavailable: Kafka does not respond.
        UndecodableRecord: A record cannot be decoded.
        UnknownSchema: A record has an unknown schema.
        NewerSchema: A record was written by a newer release.
    """
    mark = instances.store.mark()
    if mark is None or mark.position > epoch:
        # No mark, or one of a history that was longer before the broker lost its end.
        mark = await _fill(log, partition, instances, epoch)
    retries = instances.was_quarantined_by_another_release()
    restored = _restored_to(instances, mark)
    if not retries:
        await _read_history(log, restored, partition, epoch, committed, live_max)
    if mark.position and (retries or instances.incomplete or instances.has_failed()):
        # A state is missing or inconsistent. Only the complete history can repair that.
        instances.clear()
        restored = _restored_to(instances, _BEGINNING)
        await _read_history(log, restored, partition, epoch, committed, live_max)
    for key in list(instances.incomplete):
        instances.quarantine(key, "its history does not begin with RunStarted")
    return restored


async def restore_instance(
    log: HistoryReader, instances: LiveInstances, partition: int, key: str, end: int
) -> LiveInstance | None:
    """Restore the state of one instance from the store and the history before `end`.

    Returns:
        A separate object that is not in `instances`; None if its history cannot be applied.
    """
    mark = instances.store.mark() or _BEGINNING
    scratch = LiveInstances(instances.engines, instances.store)
    claims = _claims(mark)
    async with aclosing(log.read(partition, mark.position, end)) as batches:
        async for records in batches:
            restore(claims, (item for item in records if concerns(item[1], key)), scratch)
    return scratch.find(key)


def concerns(record: HistoryAppended, key: str) -> bool:
    """Return whether a record belongs to an instance, or decides which records count."""
    claims = isinstance(record.events[0], PartitionClaimed)
    return claims or instance_key(record.workflow, record.instance_id) == key


def _restored_to(instances: LiveInstances, mark: HistoryMark) -> Restored:
    return Restored(instances, _claims(mark), start=mark.position)


def _claims(mark: HistoryMark) -> Claims:
    return Claims(epoch=mark.epoch, cause=mark.cause, leader_epoch=mark.leader_epoch)


async def _read_history(
    log: HistoryReader,
    restored: Restored,
    partition: int,
    epoch: int,
    committed: int,
    live_max: int,
) -> None:
    """Read the rest of the history up to the owner's claim."""
    instances, limit, restored.replied = restored.instances, live_max, committed
    async with aclosing(log.read(partition, restored.start, epoch + 1)) as batches:
        async for records in batches:
            for offset, record in records:
                restore(restored.claims, [(offset, record)], instances)
                if record.epoch == restored.claims.epoch:
                    restored.at_ms = record.at_ms
                    _note_outcome(restored, offset, record)
            is_full = instances.loaded_bytes > _LOADED_BYTES
            if records and (is_full or instances.count_in_memory() > limit):
                limit = max(live_max, 2 * instances.evict_restored(records[-1][0] + 1))


def _note_outcome(restored: Restored, offset: int, record: HistoryAppended) -> None:
    """Keep the outcome of a command that may lack its reply; drop those of lost commands."""
    first = record.events[0]
    if record.cause >= restored.replied:
        restored.outcomes[record.cause] = _outcome(restored.instances, offset, record)
    elif isinstance(first, LeaderEpochNoted):
        remaining = remaining_outcomes(restored.outcomes, restored.replied, first)
        restored.outcomes, restored.replied = remaining


def remaining_outcomes(
    outcomes: dict[int, Outcome], replied: int, noted: LeaderEpochNoted
) -> tuple[dict[int, Outcome], int]:
    """Return the outcomes of commands that the broker still has, and up to where all have replies.

    Args:
        outcomes: Outcomes of commands that may lack their replies, by offset.
        replied: Offset up to which replies to commands were sent.
        noted: What is known of lost commands.
    """
    if noted.lost_from < 0:
        return outcomes, replied
    if noted.leader_epoch == NO_LEADER_EPOCH:
        # Another log, which may have other commands at all of these offsets.
        return {}, noted.lost_from
    remaining = {cause: outcome for cause, outcome in outcomes.items() if cause < noted.lost_from}
    return remaining, min(replied, noted.lost_from)


async def _fill(
    log: HistoryReader, partition: int, instances: LiveInstances, epoch: int
) -> HistoryMark:
    """Fill the store from the snapshots of a partition, and set its mark.

    A snapshot with an older epoch than one before it comes from a superseded owner. It is correct
    as of its position, so the history is read from there. The history is read from its beginning
    if there is no checkpoint, a state has another format or lacks parts, or a snapshot belongs to
    a history that was longer, because the broker lost its end.
    """
    store = instances.store
    store.clear()
    filler, parts = Filler(store), StateParts(instances.parts)
    newest, late, checkpoint = -1, None, None
    async with aclosing(log.read_snapshots(partition)) as snapshots:
        async for name, snapshot in snapshots:
            if snapshot is None or not _is_usable(snapshot, instances.engines, epoch):
                checkpoint = None
                break
            if snapshot.epoch < newest and (late is None or snapshot.position < late.position):
                late = snapshot
            newest = max(newest, snapshot.epoch)
            if name == CHECKPOINT:
                checkpoint = snapshot
                continue
            try:
                _put(filler, parts, name.decode(), snapshot)
            except (ValueError, zlib.error):
                # Not a valid state. The history has all of them.
                checkpoint = None
                break
    if checkpoint is None or parts.incomplete:
        store.clear()
        return _BEGINNING
    if late is not None and late.position < checkpoint.position:
        checkpoint = late
    filler.flush()
    mark = _mark(checkpoint)
    store.set_mark(mark)
    return mark


def _mark(checkpoint: SnapshotTaken) -> HistoryMark:
    return HistoryMark(
        checkpoint.position, checkpoint.epoch, checkpoint.cause, checkpoint.leader_epoch
    )


def _put(filler: Filler, parts: StateParts, name: str, snapshot: SnapshotTaken) -> None:
    key, _, number = name.partition(PART)
    if number:
        parts.add(key, int(number), snapshot)
    else:
        filler.put(key, parts.join(key, snapshot))


def _is_usable(snapshot: SnapshotTaken, engines: Engines, epoch: int) -> bool:
    """Whether a state belongs to this history and has the current format of its engine."""
    if snapshot.position > epoch:
        return False
    if snapshot.kind == quarantine.KIND:
        return snapshot.format == quarantine.RELEASE
    engine = engines.get(snapshot.kind)
    # A checkpoint has no state.
    return not snapshot.state or (engine is not None and engine.format == snapshot.format)


def _outcome(instances: LiveInstances, offset: int, record: HistoryAppended) -> Outcome:
    live = instances.find(instance_key(record.workflow, record.instance_id))
    status = live.run.status.value if live else ""
    first = record.events[0]
    if isinstance(first, CommandRejected):
        return Outcome(first.code, first.message, status, record.run_number, offset)
    return Outcome("", "", status, record.run_number, offset, lease_until_ms(record))
