"""Taking over a partition: from its snapshots and its log to an owner."""

import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headwater.processors.runs.claims import Claims
from headwater.processors.runs.engine import Engines
from headwater.processors.runs.folding import fold
from headwater.schemas.history import CommandRejected, HistoryAppended, instance_key
from headwater.schemas.snapshots import SnapshotTaken
from headwater.streams.engine.instance_store import StoredState
from headwater.streams.engine.live_instances import LiveInstances

#: The key of a partition's checkpoint among its snapshots.
CHECKPOINT: Final = b""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of a command, as its reply says it."""

    code: str
    message: str
    status: str
    run_number: int
    position: int


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
    #: Offset of the history from which on it has to be read.
    start: int = 0


class HistoryReader(Protocol):
    """What a takeover reads."""

    def read(
        self, partition: int, start: int, end: int
    ) -> AsyncIterator[list[tuple[int, HistoryAppended]]]:
        """Yields records with their offsets."""

    def read_snapshots(self, partition: int) -> AsyncIterator[tuple[bytes, SnapshotTaken | None]]:
        """Yields snapshots."""


def restore(
    claims: Claims,
    records: Iterable[tuple[int, HistoryAppended]],
    instances: LiveInstances,
    read_from: Mapping[str, int] | None = None,
) -> None:
    """Folds records, in the order of their offsets, into the instances.

    Shape:  claims and instances are what was folded before, and are changed in place; read_from is
            the offset by instance key from which on its events are not yet in its state.
    """
    read_from = read_from or {}
    for offset, record in records:
        if claims.admit(offset, record):
            key = instance_key(record.workflow, record.instance_id)
            if offset < read_from.get(key, 0):
                continue
            _apply(instances, key, record)


def _apply(instances: LiveInstances, key: str, record: HistoryAppended) -> None:
    live = instances.find(key)
    run = live.run if live else None
    state = fold(instances.engines, run, record)
    if live is not None:
        live.run = state
    elif state is not None:
        instances.add(key, state)


async def take_over(
    log: HistoryReader, engines: Engines, partition: int, epoch: int, committed: int
) -> Restored:
    """Reads a partition up to the own claim.

    Shape:  epoch is the offset of that claim; committed the offset up to which all commands have
            been replied to.
    Errors: BrokerUnavailable, UndecodableRecord, UnknownSchema, InvariantViolation.
    """
    restored = Restored(LiveInstances(engines))
    read_from = await _read_snapshots(log, partition, restored)
    async for records in log.read(partition, restored.start, epoch + 1):
        for offset, record in records:
            restore(restored.claims, [(offset, record)], restored.instances, read_from)
            if record.cause >= committed and record.epoch == restored.claims.epoch:
                restored.outcomes[record.cause] = _outcome(restored.instances, offset, record)
    return restored


async def _read_snapshots(log: HistoryReader, partition: int, restored: Restored) -> dict[str, int]:
    """Takes in snapshots and the checkpoint; gives from where on each instance's events are new.

    A snapshot of an older epoch than one before it comes from a superseded owner: it is true as of
    its position, so the history is read from there.
    """
    found: dict[bytes, SnapshotTaken] = {}
    newest, late = -1, None
    async for name, snapshot in log.read_snapshots(partition):
        if snapshot is None or not _is_readable(snapshot, restored.instances.engines):
            return {}
        if snapshot.epoch < newest and (late is None or snapshot.position < late.position):
            late = snapshot
        newest = max(newest, snapshot.epoch)
        found[name] = snapshot
    checkpoint = found.pop(CHECKPOINT, None)
    if checkpoint is None:
        return {}
    if late is not None and late.position < checkpoint.position:
        checkpoint = late
    restored.start = checkpoint.position
    restored.claims = Claims(epoch=checkpoint.epoch, cause=checkpoint.cause)
    read_from: dict[str, int] = {}
    for name, snapshot in found.items():
        key = name.decode()
        state = zlib.decompress(snapshot.state) if snapshot.compressed else snapshot.state
        at_ms = snapshot.wake_at_ms
        stored = StoredState(snapshot.kind, snapshot.format, at_ms, state)
        restored.instances.add_stored(key, stored)
        read_from[key] = snapshot.position
        if at_ms >= 0:
            restored.wakes.append((at_ms, key))
    return read_from


def _is_readable(snapshot: SnapshotTaken, engines: Engines) -> bool:
    """Whether the state is of a form that its engine has now; a checkpoint has no state."""
    engine = engines.get(snapshot.kind)
    return not snapshot.state or (engine is not None and engine.format == snapshot.format)


def _outcome(instances: LiveInstances, offset: int, record: HistoryAppended) -> Outcome:
    live = instances.find(instance_key(record.workflow, record.instance_id))
    status = live.run.status.value if live else ""
    first = record.events[0]
    if isinstance(first, CommandRejected):
        return Outcome(first.code, first.message, status, record.run_number, offset)
    return Outcome("", "", status, record.run_number, offset)
