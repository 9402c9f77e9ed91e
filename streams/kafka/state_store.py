"""A store on disk for the state of a partition: what a worker has made of its topics, near at hand.

A store is never the truth. It holds what Kafka has, up to the offsets that lie in it, and is
written after the broker has acknowledged: it may lag, and is never ahead. One that is missing, torn
or of something else is made anew, empty, and its owner fills it from the topics.

It is RocksDB. All calls are made where they are needed, between two awaits: one costs microseconds,
and RocksDB would keep Python's lock in a thread as well. ADR 0023 has the measurements.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NewType, TypeAlias, cast

import msgspec
from rocksdict import Rdict, WriteBatch

from headwater.schemas.errors import Disposition, HeadwaterError

#: A key space of a store. Its name is written before each key, so short ones are good.
Family = NewType("Family", str)
#: What is put, by family and key; None deletes.
Changes: TypeAlias = Mapping[Family, Mapping[bytes, bytes | None]]

# Keys begin with the length of their family's name, which is no 0 and no 255.
_ALL: Final = (b"\x01", b"\xff")
_IDENTITY: Final = b"\x00identity"
_WRITTEN: Final = b"\x00written"


class StoreTorn(HeadwaterError):
    """A store could not be read or written. It was deleted: open it anew, and fill it again."""

    disposition = Disposition.RETRY
    code = "store_torn"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a store is of.

    Shape:  group names who keeps it, and its folder; form is the version of what keys and values
            look like. A store of another identity is deleted.
    """

    cluster: str
    group: str
    topics: tuple[str, ...]
    partition: int
    form: str


class Written(msgspec.Struct, frozen=True):
    """Up to where a store is what its topics say, by topic, and when it was last written."""

    positions: dict[str, int]
    at_ms: int


_encode: Final = msgspec.msgpack.Encoder().encode
_identity: Final = msgspec.msgpack.Decoder(Identity).decode
_written: Final = msgspec.msgpack.Decoder(Written).decode


def make(db: Rdict, identity: Identity, now_ms: int) -> None:
    """Makes an empty database a store."""
    batch = WriteBatch(raw_mode=True)
    batch.put(_IDENTITY, _encode(identity))
    batch.put(_WRITTEN, _encode(Written({}, now_ms)))
    db.write(batch)


def unfit(db: Rdict, identity: Identity, since_ms: int) -> str:
    """Why a database is not that store, or is one last written before a time; empty if it is."""
    try:
        found = _identity(db.get(_IDENTITY) or b"")
        written = _written(db.get(_WRITTEN) or b"")
    except Exception as error:  # noqa: BLE001, rocksdict has no other kind
        return f"it does not say of what it is ({error})"
    if found != identity:
        return f"it is that of {found}"
    if written.at_ms < since_ms:
        return f"it was last written at {written.at_ms}, before {since_ms}"
    return ""


def close_database(db: Rdict) -> None:
    """Closes a database, torn or not: what it cannot write out is in its log, or lost with it."""
    with contextlib.suppress(Exception):
        db.close()


class StateStore:
    """The store of a partition; made by `StateStores.open`.

    Errors: StoreTorn from everything that reads or writes.
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
        self._last = _written(db.get(_WRITTEN) or b"")

    # -- reading

    def positions(self) -> dict[str, int]:
        """The offset by topic up to which, without it, the store has what the topic says."""
        return dict(self._last.positions)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key, if it has one."""
        try:
            value: bytes | None = self._db.get(self._prefix(family) + key)
        except Exception as error:
            raise self._torn(error) from error
        return value

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, in their order; cheaper than one by one."""
        prefix = self._prefix(family)
        try:
            found = self._db.get([prefix + key for key in keys])
        except Exception as error:
            raise self._torn(error) from error
        return cast("list[bytes | None]", found)

    def scan(
        self, family: Family, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """Keys that begin so with their values, in the order of keys, at most `limit` of them.

        Shape:  the next ones are those after the last key. It is a list, because an iterator that
                is held keeps the files of its time, and the store from being closed.
        """
        start = self._prefix(family)
        within = start + prefix
        found: list[tuple[bytes, bytes]] = []
        try:
            at = self._db.iter()
            at.seek(within if after is None else start + after + b"\x00")
            while len(found) < limit and at.valid():
                key: bytes = at.key()
                if not key.startswith(within):
                    break
                found.append((key[len(start) :], at.value()))
                at.next()
            # An iterator that meets a torn file is at its end, and only this says why.
            at.status()
        except Exception as error:
            raise self._torn(error) from error
        return found

    def families(self) -> list[Family]:
        """The families that have keys."""
        found: list[Family] = []
        try:
            at = self._db.iter()
            at.seek(b"\x01")
            while at.valid():
                key: bytes = at.key()
                found.append(Family(key[1 : 1 + key[0]].decode()))
                at.seek(_end(key[: 1 + key[0]]))
            at.status()
        except Exception as error:
            raise self._torn(error) from error
        return found

    # -- writing

    def write(self, changes: Changes, positions: Mapping[str, int]) -> None:
        """Puts and deletes all of it, and says up to where the topics are in the store now.

        Shape:  at once or not at all, also when the process dies; if the machine does, the last
                writes may be missing, from some one on.
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
        """Deletes all keys of a family, at the price of one; their space is given back later."""
        prefix = self._prefix(family)
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(prefix, _end(prefix))
        self._write(batch, {})

    def clear(self) -> None:
        """Deletes everything in it, positions as well."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(*_ALL)
        self._last = Written({}, 0)
        self._write(batch, {})

    def purge(self, family: Family, prefixes: Iterable[bytes] = (b"",)) -> None:
        """Writes files that have keys which begin so anew, without the bytes of what was deleted.

        RocksDB would keep those until it comes by, which may be never.
        """
        self._flush()
        try:
            for prefix in prefixes:
                start = self._prefix(family) + prefix
                self._db.compact_range(start, _end(start))
        except Exception as error:
            raise self._torn(error) from error
        # The list of files names the first and the last key of each. A change begins it anew, with
        # what was there before the change: so it takes one more until those are gone, too.
        self._write(WriteBatch(raw_mode=True), {})
        self._flush()

    def _flush(self) -> None:
        try:
            self._db.flush()
        except Exception as error:
            raise self._torn(error) from error

    def _write(self, batch: WriteBatch, positions: Mapping[str, int]) -> None:
        last = Written({**self._last.positions, **positions}, self._clock())
        batch.put(_WRITTEN, _encode(last))
        try:
            self._db.write(batch)
        except Exception as error:
            raise self._torn(error) from error
        self._last = last

    # -- the whole

    def close(self) -> None:
        """Lets others open it. A store that is closed twice is closed."""
        if not self._closed:
            self._closed = True
            close_database(self._db)
            self._unlock()

    def _torn(self, error: Exception) -> StoreTorn:
        """Deletes the store, and gives the error that says so."""
        if self._closed:
            return StoreTorn(f"expected {self._data} to be open, found that it was closed")
        self._closed = True
        close_database(self._db)
        shutil.rmtree(self._data, ignore_errors=True)
        self._unlock()
        return StoreTorn(f"expected to read and write {self._data}, found: {error}; deleted it")

    def _prefix(self, family: Family) -> bytes:
        prefix = self._prefixes.get(family)
        if prefix is None:
            name = family.encode()
            prefix = self._prefixes[family] = bytes([len(name)]) + name
        return prefix


def _end(prefix: bytes) -> bytes:
    """The first key behind all that begin so; its last byte is none of 255: it is text."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
