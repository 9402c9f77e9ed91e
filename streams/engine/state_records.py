"""Conversion of states to Kafka records and back. A large state has several records."""

import zlib
from typing import Final

import msgspec

from headwater.schemas.records import SnapshotTaken
from headwater.streams.engine.instance_store import HistoryMark, InstanceStore, StoredState
from headwater.streams.engine.live_instances import PART_BYTES

#: Separates the key of an instance from the number of a part. It occurs in no key.
PART: Final = "#"
#: States of at least this size are compressed.
COMPRESSED_FROM: Final = 256 * 1024
#: Snapshots, and bytes, that are put into the store at a time.
_PUT_MAX: Final = 1_000
_PUT_BYTES: Final = 32 * 1024 * 1024


def records_of(
    key: str, stored: StoredState, mark: HistoryMark
) -> list[tuple[bytes, SnapshotTaken]]:
    """Return the records of a state. The first of several comes last and has their number."""
    state, count = stored.state, -(-len(stored.state) // PART_BYTES)
    records = []
    for number in range(1, stored.parts):
        part = state[number * PART_BYTES : (number + 1) * PART_BYTES]
        # A record without a state deletes a part of an earlier snapshot.
        snapshot = snapshot_of(mark, msgspec.structs.replace(stored, state=part))
        records.append((f"{key}{PART}{number}".encode(), snapshot))
    first = msgspec.structs.replace(stored, state=state[:PART_BYTES]) if count > 1 else stored
    snapshot = msgspec.structs.replace(snapshot_of(mark, first), parts=max(count, 1))
    needed, deleted = records[: max(count, 1) - 1], records[max(count, 1) - 1 :]
    return [*needed, (key.encode(), snapshot), *deleted]


def snapshot_of(mark: HistoryMark, stored: StoredState) -> SnapshotTaken:
    """Return a state as a snapshot at a mark."""
    compressed = len(stored.state) > COMPRESSED_FROM
    return SnapshotTaken(
        kind=stored.kind,
        format=stored.format,
        compressed=compressed,
        epoch=mark.epoch,
        position=mark.position,
        cause=mark.cause,
        leader_epoch=mark.leader_epoch,
        wake_at_ms=stored.wake_at_ms,
        state=zlib.compress(stored.state, level=1) if compressed else stored.state,
    )


class Filler:
    """Puts states into a store in batches."""

    def __init__(self, store: InstanceStore) -> None:
        self._store = store
        self._states: dict[str, StoredState] = {}
        self._bytes = 0

    def put(self, key: str, stored: StoredState | None) -> None:
        """Replace the state of an instance; None if it was deleted or is incomplete."""
        if stored is None:
            self._states.pop(key, None)
            self._store.remove([key])
            return
        self._states[key] = stored
        self._bytes += len(stored.state)
        if len(self._states) >= _PUT_MAX or self._bytes >= _PUT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put all pending states."""
        self._store.put(self._states)
        self._states, self._bytes = {}, 0


class StateParts:
    """Collects the parts of states that are larger than one record, as they are read.

    A state is incomplete if the worker that wrote it was interrupted.

    Args:
        known: Largest numbers of records of such states, by key. Updated in place.
    """

    def __init__(self, known: dict[str, int]) -> None:
        self._known = known
        self._read: dict[str, dict[int, SnapshotTaken]] = {}
        self.incomplete: set[str] = set()

    def add(self, key: str, number: int, snapshot: SnapshotTaken) -> None:
        """Add a part, before the first one follows. Without a state the part is deleted."""
        self._known[key] = max(self._known.get(key, 1), number + 1)
        read = self._read.setdefault(key, {})
        if snapshot.state:
            read[number] = snapshot
        else:
            read.pop(number, None)

    def join(self, key: str, first: SnapshotTaken) -> StoredState | None:
        """Return the state that starts with this part; None if it was deleted or is incomplete."""
        self.incomplete.discard(key)
        if not first.state:
            self._read.pop(key, None)
            return None
        state, parts = _bytes(first), 1
        if key in self._known:
            read = self._read.pop(key, {})
            parts_read = [first, *(read.get(number) for number in range(1, first.parts))]
            matching = [part for part in parts_read if part and part.position == first.position]
            if len(matching) < first.parts or len({part.epoch for part in matching}) > 1:
                self.incomplete.add(key)
                return None
            state, parts = b"".join(map(_bytes, matching)), self._known[key]
        elif first.parts > 1:
            self.incomplete.add(key)
            return None
        return StoredState(first.kind, first.format, first.wake_at_ms, first.position, state, parts)


def _bytes(snapshot: SnapshotTaken) -> bytes:
    return zlib.decompress(snapshot.state) if snapshot.compressed else snapshot.state
