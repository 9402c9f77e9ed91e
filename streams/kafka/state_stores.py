"""The stores on disk of a worker: one memory limit for all, and one process per store.

Every partition has a folder `GROUP/PARTITION.0`, locked by the process that uses it. When a
partition moves between processes of one machine, the next owner waits a moment for the lock. If a
suspended process holds it, a spare folder is used, because that process may never continue.
"""

import asyncio
import contextlib
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

from headwater.monitoring.catalog import DISK_FREE, DISK_SIZE, STORE_BYTES, STORE_MEMORY
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.kafka.state_store import (
    StateStore,
    StoreCorrupted,
    StoreIdentity,
    close_database,
    initialize_store,
    mismatch_of,
)

log = logging.getLogger(__name__)

#: Share of the memory that buffers writes, one in so many; the rest is the block cache.
_WRITE_SHARE: Final = 4
#: Largest write buffer of a store: a log of that size is replayed when the store is opened.
_WRITE_BUFFER_MAX: Final = 32 * 1024 * 1024
#: Write buffers of a store, of which all but one are being flushed.
_WRITE_BUFFERS: Final = 4
#: Files at level 0 that wait for compaction; a read has to check their filters.
_NEW_FILES_MAX: Final = 60
#: Twice a row, so that neighbors of what is read do not fill the cache.
_BLOCK_BYTES: Final = 8 * 1024
#: Bits per key, with which one lookup in a hundred goes to a file that does not have the key.
_BLOOM_BITS: Final = 10
#: A store of 4 GiB has as many files.
_OPEN_FILES: Final = 64
#: Seconds in which a running process that has lost a partition closes its store.
_CLOSED_WITHIN_S: Final = 3.0
_CLOSED_LOOK_S: Final = 0.05
#: Folders of a partition: spares are used while suspended processes hold the others.
_SPARES: Final = 4


class StoreLocked(HeadwaterError):
    """Other processes hold all folders of a partition's store."""

    disposition = Disposition.RETRY
    code = "store_locked"


class StateStores:
    """The stores of a worker.

    Args:
        folder: Their folder.
        memory_bytes: Limit for caches, with indices and filters, and write buffers of all stores.
        clock: Returns Unix milliseconds.
    """

    def __init__(self, folder: Path, memory_bytes: int, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._clock = clock
        write_bytes = memory_bytes // _WRITE_SHARE
        # Separate limits: taken from a small cache, write buffers would fill some of its shards.
        self._cache = Cache(memory_bytes - write_bytes)
        self._buffers = WriteBufferManager(write_bytes, allow_stall=False)
        #: Data of the stores that were opened last, by partition.
        self._opened: dict[int, Path] = {}
        self._options = _options(self._cache, self._buffers, min(write_bytes, _WRITE_BUFFER_MAX))

    def measure(self) -> None:
        """Set the metrics of the stores and of their disk."""
        usage = shutil.disk_usage(self._folder)
        DISK_FREE.set(usage.free)
        DISK_SIZE.set(usage.total)
        STORE_MEMORY.set(self.memory_used())
        sizes = {number: _size_of(data) for number, data in self._opened.copy().items()}
        STORE_BYTES.replace({(str(number),): size for number, size in sizes.items() if size})

    def memory_used(self) -> int:
        """Return how many bytes of the limit are in use."""
        return self._cache.get_usage() + self._buffers.get_usage()

    async def open_when_closed(
        self, identity: StoreIdentity, *, written_since_ms: int = 0
    ) -> StateStore:
        """Open the store of a partition as `open` does, once its last owner has closed it.

        That takes a moment, because both learn of a rebalance at the same time. Without the wait,
        the next owner would take a spare, and restore it in full. The wait has a limit.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _CLOSED_WITHIN_S
        while self._is_open(identity) and loop.time() < deadline_s:  # noqa: ASYNC110, a file
            await asyncio.sleep(_CLOSED_LOOK_S)
        return self.open(identity, written_since_ms=written_since_ms)

    def _is_open(self, identity: StoreIdentity) -> bool:
        file = self._folders(identity)[0] / "lock"
        if not file.exists():
            return False
        lock = _lock(file)
        if lock is not None:
            os.close(lock)
        return lock is None

    def _folders(self, identity: StoreIdentity) -> list[Path]:
        group = self._folder / identity.group
        return [group / f"{identity.partition}.{spare}" for spare in range(_SPARES)]

    def open(self, identity: StoreIdentity, *, written_since_ms: int = 0) -> StateStore:
        """Open the store of a partition, or create an empty one.

        Args:
            identity: What the store must belong to.
            written_since_ms: A store last written before this time is too old: tombstones since
                then may have been removed from the topics.

        Raises:
            StoreLocked: Other processes hold all folders.
            StoreCorrupted: No store can be created.
        """
        folder, lock = self._take(identity)
        try:
            return self._open(folder, lock, identity, written_since_ms)
        except BaseException:
            os.close(lock)
            raise

    def _take(self, identity: StoreIdentity) -> tuple[Path, int]:
        """Lock the first free folder, and delete the data of spare ones."""
        folders = self._folders(identity)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock(folder / "lock")
            if lock is None:
                log.warning("the store %s is held by process %s", folder, _holder(folder / "lock"))
                continue
            if folder is folders[0]:
                for spare in folders[1:]:
                    _delete_spare(spare)
            return folder, lock
        raise StoreLocked(
            f"expected a free store of partition {identity.partition} in {folders[0].parent}, "
            f"found {_SPARES} that other processes hold; usual cause: suspended processes"
        )

    def _open(self, folder: Path, lock: int, identity: StoreIdentity, since_ms: int) -> StateStore:
        data, unlock = folder / "data", partial(os.close, lock)
        self._opened[identity.partition] = data
        if data.exists():
            database = self._open_existing(data, identity, since_ms)
            if isinstance(database, Rdict):
                return StateStore(database, data, self._clock, unlock)
            log.warning("making the local store %s again, from Kafka: %s", data, database)
            shutil.rmtree(data)
        try:
            db = self._rocksdb(data)
            initialize_store(db, identity, self._clock())
        except Exception as error:
            raise StoreCorrupted(f"expected to make a store in {data}, found: {error}") from error
        return StateStore(db, data, self._clock, unlock)

    def _open_existing(self, data: Path, identity: StoreIdentity, since_ms: int) -> Rdict | str:
        """Return the database of a store, or why it cannot be used."""
        try:
            db = self._rocksdb(data)
        except Exception as error:  # noqa: BLE001, rocksdict has no other kind
            return str(error)
        reason = mismatch_of(db, identity, since_ms)
        if reason:
            close_database(db)
        return reason or db

    def _rocksdb(self, data: Path) -> Rdict:
        # Without options of the column family RocksDB uses those of last time, and another cache.
        return Rdict(str(data), self._options, column_families={"default": self._options})


def _options(cache: Cache, buffers: WriteBufferManager, buffer_bytes: int) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(_BLOCK_BYTES)
    table.set_bloom_filter(_BLOOM_BITS, block_based=False)
    # Cache indices and filters in partitions, as blocks are: whole, they would not fit.
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
    # A write that RocksDB stalls holds the GIL, and stops the whole process: prefer more memory
    # and slower reads while flushes and compaction lag.
    options.set_max_write_buffer_number(_WRITE_BUFFERS)
    options.set_level_zero_slowdown_writes_trigger(_NEW_FILES_MAX)
    options.set_level_zero_stop_writes_trigger(2 * _NEW_FILES_MAX)
    # Levels that are soon rewritten are not worth compressing.
    lz4, none = DBCompressionType.lz4(), DBCompressionType.none()
    options.set_compression_per_level([none, none, lz4, lz4, lz4, lz4, lz4])
    # Rewrites the manifest with every change: see `StateStore.purge`.
    options.set_max_manifest_file_size(1)
    # RocksDB's own log is for its developers.
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _lock(path: Path) -> int | None:
    """Lock a file while the process lives and has it open; return None if another holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    os.truncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return handle


def _size_of(data: Path) -> int:
    """Return the size of a store's files, which RocksDB may delete meanwhile."""
    size = 0
    with contextlib.suppress(FileNotFoundError):
        for file in os.scandir(data):
            size += file.stat().st_size
    return size


def _holder(path: Path) -> str:
    return path.read_text() or "unknown"


def _delete_spare(folder: Path) -> None:
    lock = _lock(folder / "lock") if folder.exists() else None
    if lock is not None:
        shutil.rmtree(folder / "data", ignore_errors=True)
        os.close(lock)
