"""Taking over a partition: from its snapshots and its log to an owner."""

import zlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.processors.runs.engine import Engines
from headwater.processors.runs.folding import fold
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
from headwater.schemas.snapshots import SnapshotTaken
from headwater.streams.engine import quarantine
from headwater.streams.engine.effects import lease_until_ms
from headwater.streams.engine.instance_store import Mark
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.state_records import PART, Filler, Parts

#: The key of a partition's checkpoint among its snapshots.
CHECKPOINT: Final = b""
#: Instances that a takeover keeps as objects before it looks for those that rest: some 20 MB.
LIVE_MAX: Final = 10_000
#: A history that is read whole.
_BEGINNING: Final = Mark(0, UNCLAIMED, NO_CAUSE)
#: Bytes of states that a takeover loads before it looks for those that rest.
_LOADED_BYTES: Final = 256 * 1024 * 1024


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of a command, as its reply says it."""

    code: str
    message: str
    status: str
    run_number: int
    position: int
    lease_until_ms: int | None = None


@dataclass(slots=True)
class Restored:
    """A partition as its log says it is, up to one's own claim.

    Shape:  wakes are times and keys of the instances that are bytes; outcomes are by cause, of
            the commands whose replies may not have been sent.
    """

    instances: LiveInstances
    claims: Claims = field(default_factory=Claims)
    wakes: list[tuple[int, str]] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    #: Offset up to which commands have their replies.
    replied: int = 0
    #: Offset of the history from which on it has to be read.
    start: int = 0
    #: The time of its latest record that was read; 0 if none was.
    at_ms: int = 0


class HistoryReader(Protocol):
    """What a takeover reads."""

    def read(
        self, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[tuple[int, HistoryAppended]]]:
        """Yields records with their offsets."""

    def read_snapshots(self, partition: int) -> AsyncGenerator[tuple[bytes, SnapshotTaken | None]]:
        """Yields snapshots."""


def restore(
    claims: Claims, records: Iterable[tuple[int, HistoryAppended]], instances: LiveInstances
) -> None:
    """Fold records, in the order of their offsets, into the instances.

    Args:
        claims: Claims as of the records before; changed in place.
        records: Offsets and records.
        instances: Instances as of the records before; changed in place.
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
        return  # Its bytes are newer than the mark from which on the history is read.
    if isinstance(first, InstanceDeleted):
        instances.delete(key)
        return
    if key in instances.quarantined:
        return
    begins = isinstance(first, RunStarted) and record.run_number == 0
    if live is None and not (begins or isinstance(first, CommandRejected)):
        # A checkpoint that was not completed has its bytes removed already.
        instances.torn.add(key)
        return
    try:
        state = fold(instances.engines, live.run if live else None, record)
    except NewerSchema:
        raise
    except Exception as error:  # noqa: BLE001, one history costs its instance alone
        why = quarantine.described(error)
        instances.quarantine(key, f"its history cannot be applied at {offset}: {why}", error)
        return
    if live is not None:
        live.run = state
    elif state is not None:
        instances.add(key, state)


async def take_over(
    log: HistoryReader,
    instances: LiveInstances,
    partition: int,
    epoch: int,
    committed: int,
    live_max: int = LIVE_MAX,
) -> Restored:
    """Read a partition up to the own claim.

    Instances whose history cannot be applied, though it was read from its beginning, are
    quarantined.

    Args:
        log: Reads the history and the snapshots.
        instances: None are loaded. If their store has a mark, the history is read from there;
            otherwise the store is filled.
        partition: Number of the partition.
        epoch: Offset of the own claim.
        committed: Offset up to which all commands have been replied to.
        live_max: How many instances stay loaded.

    Raises:
        BrokerUnavailable: Kafka does not answer.
        UndecodableRecord: A record cannot be decoded.
        UnknownSchema: A record has a schema that is not known.
        NewerSchema: A record is of a newer release.
    """
    mark = instances.store.mark()
    if mark is None or mark.position > epoch:
        # None, or of a history that was longer than this.
        mark = await _fill(log, partition, instances, epoch)
    retries = instances.was_quarantined_by_another_release()
    restored = _from(instances, mark)
    if not retries:
        await _read_on(log, restored, partition, epoch, committed, live_max)
    if mark.position and (retries or instances.torn or instances.has_failed()):
        # A state is missing that nobody deleted, or does not fit: the history alone has it all.
        instances.clear()
        restored = _from(instances, _BEGINNING)
        await _read_on(log, restored, partition, epoch, committed, live_max)
    for key in list(instances.torn):
        instances.quarantine(key, "its history does not begin with RunStarted")
    restored.wakes.extend(instances.store.wakes())
    return restored


async def restore_instance(
    log: HistoryReader, instances: LiveInstances, partition: int, key: str, end: int
) -> LiveInstance | None:
    """Read the state of one instance again, from the store and the history before `end`.

    Returns:
        A state of its own, which `instances` do not hold; None if its history cannot be applied.
    """
    mark = instances.store.mark() or _BEGINNING
    scratch = LiveInstances(instances.engines, instances.store)
    claims = _claims(mark)
    async with aclosing(log.read(partition, mark.position, end)) as batches:
        async for records in batches:
            restore(claims, (each for each in records if concerns(each[1], key)), scratch)
    return scratch.find(key)


def concerns(record: HistoryAppended, key: str) -> bool:
    """Return whether a record is about an instance, or decides which records count."""
    claims = isinstance(record.events[0], PartitionClaimed)
    return claims or instance_key(record.workflow, record.instance_id) == key


def _from(instances: LiveInstances, mark: Mark) -> Restored:
    return Restored(instances, _claims(mark), start=mark.position)


def _claims(mark: Mark) -> Claims:
    return Claims(epoch=mark.epoch, cause=mark.cause, leader_epoch=mark.leader_epoch)


async def _read_on(
    log: HistoryReader,
    restored: Restored,
    partition: int,
    epoch: int,
    committed: int,
    live_max: int,
) -> None:
    """Reads the history from where it has to be read, up to the own claim."""
    instances, room, restored.replied = restored.instances, live_max, committed
    async with aclosing(log.read(partition, restored.start, epoch + 1)) as batches:
        async for records in batches:
            for offset, record in records:
                restore(restored.claims, [(offset, record)], instances)
                if record.epoch == restored.claims.epoch:
                    restored.at_ms = record.at_ms
                    _note_outcome(restored, offset, record)
            loaded = instances.loaded_bytes > _LOADED_BYTES
            if records and (loaded or instances.count_at_work() > room):
                room = max(live_max, 2 * instances.evict_restored(records[-1][0] + 1))


def _note_outcome(restored: Restored, offset: int, record: HistoryAppended) -> None:
    """Keep the outcome of a command that may not have its reply; forget those of lost commands."""
    first = record.events[0]
    if record.cause >= restored.replied:
        restored.outcomes[record.cause] = _outcome(restored.instances, offset, record)
    elif isinstance(first, LeaderEpochNoted):
        left = left_of(restored.outcomes, restored.replied, first)
        restored.outcomes, restored.replied = left


def left_of(
    outcomes: dict[int, Outcome], replied: int, noted: LeaderEpochNoted
) -> tuple[dict[int, Outcome], int]:
    """Return the outcomes of commands that the broker still has, and up to where to reply to none.

    Args:
        outcomes: Outcomes of commands that may not have their replies, by offset.
        replied: Offset up to which commands have their replies.
        noted: What is known of commands that were lost.
    """
    if noted.lost_from < 0:
        return outcomes, replied
    if noted.leader_epoch == NO_LEADER_EPOCH:
        # Another log: it may have other commands at the offsets of all of these.
        return {}, noted.lost_from
    left = {cause: outcome for cause, outcome in outcomes.items() if cause < noted.lost_from}
    return left, min(replied, noted.lost_from)


async def _fill(log: HistoryReader, partition: int, instances: LiveInstances, epoch: int) -> Mark:
    """Fills the store with the snapshots of a partition, and marks it.

    A snapshot of an older epoch than one before it comes from a superseded owner: it is true as of
    its position, so the history is read from there. Without a checkpoint, or with a state of
    another form among them, or one of which parts are missing, or one of a history that was longer
    (the broker lost its end), nothing is kept, and the history is read from its beginning.
    """
    store = instances.store
    store.clear()
    filler, parts = Filler(store), Parts(instances.parts)
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
                # What is not a state as we write it: the history has all of them.
                checkpoint = None
                break
    if checkpoint is None or parts.torn:
        store.clear()
        return _BEGINNING
    if late is not None and late.position < checkpoint.position:
        checkpoint = late
    filler.flush()
    mark = _mark(checkpoint)
    store.set_mark(mark)
    return mark


def _mark(checkpoint: SnapshotTaken) -> Mark:
    return Mark(checkpoint.position, checkpoint.epoch, checkpoint.cause, checkpoint.leader_epoch)


def _put(filler: Filler, parts: Parts, name: str, snapshot: SnapshotTaken) -> None:
    key, _, number = name.partition(PART)
    if number:
        parts.add(key, int(number), snapshot)
    else:
        filler.put(key, parts.joined(key, snapshot))


def _is_usable(snapshot: SnapshotTaken, engines: Engines, epoch: int) -> bool:
    """Whether the state is of this history, and of a form that its engine has now."""
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
