"""A store on disk for the state that a worker derives from a partition.

A store is never the source of truth. It holds the state as of the offsets stored in it, and is
written after the broker's acknowledgement: it may lag behind Kafka, and is never ahead. A missing,
corrupted or mismatched store is replaced by an empty one, which its owner fills from the topics.

The store is RocksDB. Calls are made directly on the event loop: one costs microseconds, and RocksDB
would hold Python's GIL in a thread as well. ADR 0023 has the measurements.
"""

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NewType, TypeAlias, cast

import msgspec
from rocksdict import Rdict, WriteBatch

from headwater.monitoring.catalog import STORE_FAILURES
from headwater.schemas.errors import Disposition, HeadwaterError

#: A key space of a store. Its name prefixes every key, so short ones are good.
Family = NewType("Family", str)
#: Values to put, by family and key; None deletes.
Changes: TypeAlias = Mapping[Family, Mapping[bytes, bytes | None]]

# A key begins with the length of its family's name, which is neither 0 nor 255.
_ALL: Final = (b"\x01", b"\xff")
_IDENTITY: Final = b"\x00identity"
_WRITTEN: Final = b"\x00written"
#: Values that a scan of staged changes reads at once.
_PAGE: Final = 500


class StoreCorrupted(HeadwaterError):
    """A store could not be read or written. It was deleted: open it again and refill it."""

    disposition = Disposition.RETRY
    code = "store_torn"


class StoreIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a store belongs to; a store of another identity is deleted.

    Attributes:
        cluster: Id of the cluster.
        group: Consumer group that keeps the store, and its folder.
        topics: Topics of the state.
        partition: Their partition.
        form: Version of the encoding of keys and values.
    """

    cluster: str
    group: str
    topics: tuple[str, ...]
    partition: int
    form: str


class StoreProgress(msgspec.Struct, frozen=True):
    """Up to which offsets a store reflects its topics, and when it was last written."""

    positions: dict[str, int]
    at_ms: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_identity: Final = msgspec.msgpack.Decoder(StoreIdentity).decode
_decode_progress: Final = msgspec.msgpack.Decoder(StoreProgress).decode


def initialize_store(db: Rdict, identity: StoreIdentity, now_ms: int) -> None:
    """Write identity and progress of a new store to an empty database."""
    batch = WriteBatch(raw_mode=True)
    batch.put(_IDENTITY, _encode(identity))
    batch.put(_WRITTEN, _encode(StoreProgress({}, now_ms)))
    db.write(batch)


def mismatch_of(db: Rdict, identity: StoreIdentity, since_ms: int) -> str:
    """Return why a database is not that store, or was not written since a time; "" if it fits."""
    try:
        actual = _decode_identity(db.get(_IDENTITY) or b"")
        progress = _decode_progress(db.get(_WRITTEN) or b"")
    except Exception as error:  # noqa: BLE001, rocksdict has no other kind
        return f"it has no identity ({error})"
    if actual != identity:
        fields = msgspec.structs.fields(StoreIdentity)
        names = [f.name for f in fields if getattr(actual, f.name) != getattr(identity, f.name)]
        return f"it is of another {' and '.join(names)}"
    if progress.at_ms < since_ms:
        return f"it was last written at {progress.at_ms}, before {since_ms}"
    return ""


def close_database(db: Rdict) -> None:
    """Close a database, corrupted or not; unflushed writes are in its log, or lost with it."""
    with contextlib.suppress(Exception):
        db.close()


class StateStore:
    """The store of a partition, opened by `StateStores.open`.

    Everything that reads or writes raises StoreCorrupted if RocksDB fails.
    """

    def __init__(
        self, db: Rdict, data: Path, clock: Callable[[], int], unlock: Callable[[], None]
    ) -> None:
        self._db = db
        self._data = data
        self._clock = clock
        self._unlock = unlock
        self._closed = False
        self._prefixes: dict[Family, bytes] = {}
        self._progress = _decode_progress(db.get(_WRITTEN) or b"")

    # -- reading

    def positions(self) -> dict[str, int]:
        """Return the offset, exclusive, up to which the store reflects its topics, by topic."""
        return dict(self._progress.positions)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of a key, if it has one."""
        try:
            value: bytes | None = self._db.get(self._prefix(family) + key)
        except Exception as error:
            raise self._corrupted(error) from error
        return value

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order; cheaper than one by one."""
        prefix = self._prefix(family)
        try:
            values = self._db.get([prefix + key for key in keys])
        except Exception as error:
            raise self._corrupted(error) from error
        return cast("list[bytes | None]", values)

    def scan(
        self, family: Family, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """Return keys with a prefix and their values, in the order of keys.

        It is a list, because an open iterator keeps the files of its time, and keeps the store from
        being closed.

        Args:
            family: The family.
            prefix: Prefix of the keys.
            after: The last key of the previous call, to continue after it.
            limit: Maximum number of keys.
        """
        start = self._prefix(family)
        bound = start + prefix
        pairs: list[tuple[bytes, bytes]] = []
        try:
            iterator = self._db.iter()
            iterator.seek(bound if after is None else start + after + b"\x00")
            while len(pairs) < limit and iterator.valid():
                key: bytes = iterator.key()
                if not key.startswith(bound):
                    break
                pairs.append((key[len(start) :], iterator.value()))
                iterator.next()
            # An iterator that hits a corrupted file just ends; only its status shows it.
            iterator.status()
        except Exception as error:
            raise self._corrupted(error) from error
        return pairs

    def families(self) -> list[Family]:
        """Return the families that have keys."""
        families: list[Family] = []
        try:
            iterator = self._db.iter()
            iterator.seek(b"\x01")
            while iterator.valid():
                key: bytes = iterator.key()
                families.append(Family(key[1 : 1 + key[0]].decode()))
                iterator.seek(_end(key[: 1 + key[0]]))
            iterator.status()
        except Exception as error:
            raise self._corrupted(error) from error
        return families

    # -- writing

    def write(self, changes: Changes, positions: Mapping[str, int]) -> None:
        """Put and delete values, and record up to which offsets the store reflects its topics.

        The write is atomic, also if the process dies; if the machine crashes, the latest writes may
        be lost, in order.
        """
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for family, values in changes.items():
            prefix = self._prefix(family)
            for key, value in values.items():
                if value is None:
                    delete(prefix + key)
                else:
                    put(prefix + key, value)
        self._write(batch, positions)

    def drop(self, family: Family) -> None:
        """Delete all keys of a family at the cost of one; their space is reclaimed later."""
        prefix = self._prefix(family)
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(prefix, _end(prefix))
        self._write(batch, {})

    def clear(self) -> None:
        """Delete everything in the store, including positions."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(*_ALL)
        self._progress = StoreProgress({}, 0)
        self._write(batch, {})

    def purge(self, family: Family, prefixes: Iterable[bytes] = (b"",)) -> None:
        """Compact the files of keys with these prefixes, so that deleted values leave the disk.

        RocksDB would keep those until its next compaction, which may never come.
        """
        self._flush()
        try:
            for prefix in prefixes:
                start = self._prefix(family) + prefix
                self._db.compact_range(start, _end(start))
        except Exception as error:
            raise self._corrupted(error) from error
        # The manifest has the first and last key of every file. A change rewrites it, with the
        # state before the change: another change is needed until those keys are removed, too.
        self._write(WriteBatch(raw_mode=True), {})
        self._flush()

    def _flush(self) -> None:
        try:
            self._db.flush()
        except Exception as error:
            raise self._corrupted(error) from error

    def _write(self, batch: WriteBatch, positions: Mapping[str, int]) -> None:
        progress = StoreProgress({**self._progress.positions, **positions}, self._clock())
        batch.put(_WRITTEN, _encode(progress))
        try:
            self._db.write(batch)
        except Exception as error:
            raise self._corrupted(error) from error
        self._progress = progress

    # -- closing

    def close(self) -> None:
        """Close the store and release its lock; may be called twice."""
        if not self._closed:
            self._closed = True
            close_database(self._db)
            self._unlock()

    def _corrupted(self, error: Exception) -> StoreCorrupted:
        """Delete the store, and return the error that reports it."""
        if self._closed:
            return StoreCorrupted(f"expected {self._data} to be open, found that it was closed")
        self._closed = True
        STORE_FAILURES.add()
        close_database(self._db)
        shutil.rmtree(self._data, ignore_errors=True)
        self._unlock()
        return StoreCorrupted(
            f"expected to read and write {self._data}, found: {error}; deleted it"
        )

    def _prefix(self, family: Family) -> bytes:
        prefix = self._prefixes.get(family)
        if prefix is None:
            name = family.encode()
            prefix = self._prefixes[family] = bytes([len(name)]) + name
        return prefix


def _end(prefix: bytes) -> bytes:
    """Return the first key after all with a prefix; its last byte is text, never 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


class Staged:
    """A store and the changes to be written to it.

    Changes must not reach the store before the broker has acknowledged them, but whatever follows
    from the same records has to see them.
    """

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self._changes: defaultdict[Family, dict[bytes, bytes | None]] = defaultdict(dict)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of a key, with staged changes."""
        changes = self._changes[family]
        return changes[key] if key in changes else self.store.get(family, key)

    def put(self, family: Family, key: bytes, value: bytes | None) -> None:
        """Stage the change of a key; None deletes it."""
        self._changes[family][key] = value

    def put_all(self, family: Family, values: Mapping[bytes, bytes | None]) -> None:
        """Stage changes of many keys, which costs less than one by one."""
        self._changes[family].update(values)

    def scan(
        self, family: Family, prefix: bytes = b"", *, until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys with a prefix and their values, unordered; `until` is exclusive."""
        changes = dict(self._changes[family])
        for key, value in changes.items():
            if value is not None and key.startswith(prefix) and (until is None or key < until):
                yield key, value
        after: bytes | None = None
        while page := self.store.scan(family, prefix, after=after, limit=_PAGE):
            for key, value in page:
                if until is not None and key >= until:
                    return
                if key not in changes:
                    yield key, value
            after = page[-1][0]

    def write(self, positions: Mapping[str, int]) -> None:
        """Write the staged changes, all of them durable, and the positions of topics."""
        self.store.write(self._changes, positions)
        self._changes.clear()
