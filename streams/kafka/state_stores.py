"""The stores on disk of a worker: one limit of memory for all, and one process for each.

Each partition has a folder `GROUP/PARTITION.0`, which the process locks that uses it. Where another
one stands still and holds it, a spare is made beside it: nobody waits for who may never go on.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBufferManager,
)

from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.kafka.state_store import (
    Identity,
    StateStore,
    StoreTorn,
    close_database,
    make,
    unfit,
)

log = logging.getLogger(__name__)

#: The part of the memory in which writes are gathered; the other parts are the cache of blocks.
_WRITE_SHARE: Final = 4
#: What one store gathers before it is written out: a log of that size is read when it is opened.
_WRITE_BUFFER_MAX: Final = 32 * 1024 * 1024
#: Buffers of a store, of which all but one are being written out.
_WRITE_BUFFERS: Final = 4
#: Files that wait to be merged; a reader has to look into the filter of each.
_NEW_FILES_MAX: Final = 60
#: Twice a row, so that the cache is not filled with the neighbours of what is read.
_BLOCK_BYTES: Final = 8 * 1024
#: Bits a key, by which one lookup in a hundred goes to a file that does not have the key.
_BLOOM_BITS: Final = 10
#: A store of 4 GiB has as many files.
_OPEN_FILES: Final = 64
#: Stores of one partition beside each other: those of processes that stand still and hold theirs.
_SPARES: Final = 4


class StoreLocked(HeadwaterError):
    """Other processes hold all stores that there may be of a partition."""

    disposition = Disposition.RETRY
    code = "store_locked"


class StateStores:
    """The stores of a worker.

    Shape:  one folder, and one limit of memory for all of them together.
    Units:  bytes, for what is cached, with indices and filters, and for what is gathered to be
            written.
    """

    def __init__(self, folder: Path, memory_bytes: int, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._clock = clock
        gathered = memory_bytes // _WRITE_SHARE
        # Apart from each other: taken from a small cache, buffers would fill some shards of it.
        self._cache = Cache(memory_bytes - gathered)
        self._buffers = WriteBufferManager(gathered, allow_stall=False)
        self._options = _options(self._cache, self._buffers, min(gathered, _WRITE_BUFFER_MAX))

    def memory_used(self) -> int:
        """Bytes of the limit that are in use."""
        return self._cache.get_usage() + self._buffers.get_usage()

    def open(self, identity: Identity, *, written_since_ms: int = 0) -> StateStore:
        """Opens the store of a partition, or makes an empty one.

        Shape:  one that was last written before `written_since_ms` is too old: what was deleted
                since may be gone from the topics.
        Errors: StoreLocked; StoreTorn, if none can be made.
        """
        place, lock = self._take(identity)
        try:
            return self._open(place, lock, identity, written_since_ms)
        except BaseException:
            os.close(lock)
            raise

    def _take(self, identity: Identity) -> tuple[Path, int]:
        """Locks the first place that is free, and deletes what spare ones hold."""
        group = self._folder / identity.group
        places = [group / f"{identity.partition}.{spare}" for spare in range(_SPARES)]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
            lock = _lock(place / "lock")
            if lock is None:
                log.warning("the store %s is held by process %s", place, _holder(place / "lock"))
                continue
            if place is places[0]:
                for spare in places[1:]:
                    _delete_spare(spare)
            return place, lock
        raise StoreLocked(
            f"expected a free store of partition {identity.partition} in {group}, found "
            f"{_SPARES} that other processes hold; usual cause: processes that stand still"
        )

    def _open(self, place: Path, lock: int, identity: Identity, since_ms: int) -> StateStore:
        data, unlock = place / "data", partial(os.close, lock)
        if data.exists():
            found = self._found(data, identity, since_ms)
            if isinstance(found, Rdict):
                return StateStore(found, data, self._clock, unlock)
            log.warning("expected %s to be the store of %s; deleted: %s", data, identity, found)
            shutil.rmtree(data)
        try:
            db = self._rocksdb(data)
            make(db, identity, self._clock())
        except Exception as error:
            raise StoreTorn(f"expected to make a store in {data}, found: {error}") from error
        return StateStore(db, data, self._clock, unlock)

    def _found(self, data: Path, identity: Identity, since_ms: int) -> Rdict | str:
        """The database of a store, or why it is none."""
        try:
            db = self._rocksdb(data)
        except Exception as error:  # noqa: BLE001, rocksdict has no other kind
            return str(error)
        why = unfit(db, identity, since_ms)
        if why:
            close_database(db)
        return why or db

    def _rocksdb(self, data: Path) -> Rdict:
        # Without the options of the family it has those of last time, and a cache of its own.
        return Rdict(str(data), self._options, column_families={"default": self._options})


def _options(cache: Cache, buffers: WriteBufferManager, buffer_bytes: int) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(_BLOCK_BYTES)
    table.set_bloom_filter(_BLOOM_BITS, block_based=False)
    # Indices and filters are cached in parts, as blocks are: whole, they would not fit.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(buffer_bytes)
    options.set_max_open_files(_OPEN_FILES)
    # A writer that RocksDB makes wait keeps Python's lock, and with it all of the process: rather
    # more memory and slower reads for as long as the background is behind.
    options.set_max_write_buffer_number(_WRITE_BUFFERS)
    options.set_level_zero_slowdown_writes_trigger(_NEW_FILES_MAX)
    options.set_level_zero_stop_writes_trigger(2 * _NEW_FILES_MAX)
    # What is soon written again is not worth it.
    lz4, none = DBCompressionType.lz4(), DBCompressionType.none()
    options.set_compression_per_level([none, none, lz4, lz4, lz4, lz4, lz4])
    # Its list of files is written anew with each change: see `StateStore.purge`.
    options.set_max_manifest_file_size(1)
    # RocksDB's own log is for its developers.
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _lock(path: Path) -> int | None:
    """Locks a file for as long as the process lives and has it open; None if another has."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    os.truncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return handle


def _holder(path: Path) -> str:
    return path.read_text() or "unknown"


def _delete_spare(place: Path) -> None:
    lock = _lock(place / "lock") if place.exists() else None
    if lock is not None:
        shutil.rmtree(place / "data", ignore_errors=True)
        os.close(lock)
