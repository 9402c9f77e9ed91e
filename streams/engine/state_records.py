"""States as records of Kafka's, and back: a large one is in several, which come in their order."""

import zlib
from typing import Final

import msgspec

from headwater.schemas.snapshots import SnapshotTaken
from headwater.streams.engine.instance_store import InstanceStore, Mark, StoredState
from headwater.streams.engine.live_instances import PART_BYTES

#: Between the key of an instance and the number of a part of its state; it is in no key.
PART: Final = "#"
#: States from this size on are compressed.
COMPRESSED_FROM: Final = 256 * 1024
#: Snapshots that are put into the store at a time, and their bytes.
_PUT_MAX: Final = 1_000
_PUT_BYTES: Final = 32 * 1024 * 1024


def records_of(key: str, stored: StoredState, mark: Mark) -> list[tuple[bytes, SnapshotTaken]]:
    """The records of a state: of several the first comes last, and says how many there are."""
    state, count = stored.state, -(-len(stored.state) // PART_BYTES)
    records = []
    for number in range(1, stored.parts):
        part = state[number * PART_BYTES : (number + 1) * PART_BYTES]
        # One without any bytes removes what is there.
        snapshot = snapshot_of(mark, msgspec.structs.replace(stored, state=part))
        records.append((f"{key}{PART}{number}".encode(), snapshot))
    first = msgspec.structs.replace(stored, state=state[:PART_BYTES]) if count > 1 else stored
    snapshot = msgspec.structs.replace(snapshot_of(mark, first), parts=max(count, 1))
    needed, gone = records[: max(count, 1) - 1], records[max(count, 1) - 1 :]
    return [*needed, (key.encode(), snapshot), *gone]


def snapshot_of(mark: Mark, stored: StoredState) -> SnapshotTaken:
    """A state as of a mark."""
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
    """Puts states into a store, many at a time."""

    def __init__(self, store: InstanceStore) -> None:
        self._store = store
        self._states: dict[str, StoredState] = {}
        self._bytes = 0

    def put(self, key: str, stored: StoredState | None) -> None:
        """Keeps a state in place of what its instance had; None if that was deleted, or is torn."""
        if stored is None:
            self._states.pop(key, None)
            self._store.remove([key])
            return
        self._states[key] = stored
        self._bytes += len(stored.state)
        if len(self._states) >= _PUT_MAX or self._bytes >= _PUT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Puts what waits."""
        self._store.put(self._states)
        self._states, self._bytes = {}, 0


class Parts:
    """The parts of states that one record does not hold, as they are read.

    Shape:  known takes in how many records each such state is, or was. What is torn was written
            only in part, by a worker that ended amid it.
    """

    def __init__(self, known: dict[str, int]) -> None:
        self._known = known
        self._read: dict[str, dict[int, SnapshotTaken]] = {}
        self.torn: set[str] = set()

    def add(self, key: str, number: int, snapshot: SnapshotTaken) -> None:
        """Takes a part other than the first, which follows; without a state it is gone."""
        self._known[key] = max(self._known.get(key, 1), number + 1)
        read = self._read.setdefault(key, {})
        if snapshot.state:
            read[number] = snapshot
        else:
            read.pop(number, None)

    def joined(self, key: str, first: SnapshotTaken) -> StoredState | None:
        """The state whose first part this is; None if there is none, or if parts are missing."""
        self.torn.discard(key)
        if not first.state:
            self._read.pop(key, None)
            return None
        state, parts = _bytes(first), 1
        if key in self._known:
            read = self._read.pop(key, {})
            of_one = [first, *(read.get(number) for number in range(1, first.parts))]
            same = [each for each in of_one if each and each.position == first.position]
            if len(same) < first.parts or len({each.epoch for each in same}) > 1:
                self.torn.add(key)
                return None
            state, parts = b"".join(map(_bytes, same)), self._known[key]
        elif first.parts > 1:
            self.torn.add(key)
            return None
        return StoredState(first.kind, first.format, first.wake_at_ms, first.position, state, parts)


def _bytes(snapshot: SnapshotTaken) -> bytes:
    return zlib.decompress(snapshot.state) if snapshot.compressed else snapshot.state
