"""`python -m benchmarks.state_store`: cost of the store on disk, in microseconds of CPU per key.

Method. Batches of 2,000 rows of 2,000 bytes of JSON, half of which compression removes. CPU is that
of the calling thread, and of the whole process, in which RocksDB writes and compacts tables in the
background; the benchmark waits until the process is idle. Reads are measured on rows in the cache,
on rows that are not, and on missing keys.

    python -m benchmarks.state_store --batches 100 --memory-mib 64
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headwater.streams.kafka.state_store import Family, StateStore, StoreIdentity
from headwater.streams.kafka.state_stores import StateStores

_BATCH: Final = 2_000
_VALUE_BYTES: Final = 2_000
_ROWS: Final = Family("rows")
_CLAIMS: Final = Family("claims")
_IDLE_S: Final = 0.3
_MIB: Final = 1024 * 1024


def _row(draw: random.Random) -> bytes:
    fields = _VALUE_BYTES // 20
    text = ",".join(f'"metric_{n:03}":{draw.randrange(10**7)}' for n in range(fields))
    return text.encode().ljust(_VALUE_BYTES)[:_VALUE_BYTES]


def _us(work: Callable[[], object], keys: int) -> tuple[float, float]:
    """Return the CPU per key of this thread, and of the process until it is idle."""
    thread, process = time.thread_time(), time.process_time()
    work()
    thread = time.thread_time() - thread
    while True:
        before = time.process_time()
        time.sleep(_IDLE_S)
        now = time.process_time()
        if now - before < 0.05 * _IDLE_S:
            return thread / keys * 1e6, (now - process) / keys * 1e6


def _write(store: StateStore, family: Family, keys: list[bytes], values: list[bytes]) -> None:
    for start in range(0, len(keys), _BATCH):
        batch = dict(zip(keys[start : start + _BATCH], values, strict=False))
        store.write({family: batch}, {"rows": start})


def _measure(store: StateStore, batches: int, draw: random.Random) -> None:
    values = [_row(draw) for _ in range(_BATCH)]
    keys = [b"user-%08d|garmin" % number for number in range(batches * _BATCH)]
    draw.shuffle(keys)
    _show("put", _us(lambda: _write(store, _ROWS, keys, values), len(keys)))
    again = draw.sample(keys, len(keys) // 2)
    _show("put again", _us(lambda: _write(store, _ROWS, again, values), len(again)))
    few = draw.sample(keys, _BATCH)
    _show("multi_get, not in the cache", _us(lambda: store.multi_get(_ROWS, few), _BATCH))
    _show("multi_get, in the cache", _us(lambda: store.multi_get(_ROWS, few), _BATCH))
    _show("get, in the cache", _us(lambda: [store.get(_ROWS, key) for key in few], _BATCH))
    none = [key + b"?" for key in few]
    _show("multi_get, nowhere", _us(lambda: store.multi_get(_ROWS, none), _BATCH))
    _show("scan", _us(lambda: store.scan(_ROWS, limit=_BATCH), _BATCH))
    claims = [draw.randbytes(32) for _ in range(10 * _BATCH)]
    offsets = [bytes(8)] * _BATCH
    _show("put of a claim", _us(lambda: _write(store, _CLAIMS, claims, offsets), len(claims)))
    _show("drop of a family", _us(lambda: store.drop(_CLAIMS), 1))


def _show(what: str, cost: tuple[float, float]) -> None:
    sys.stdout.write(f"{what:32}{cost[0]:8.1f}{cost[1]:10.1f}\n")
    sys.stdout.flush()


def main() -> None:
    """Measure, and print one line per kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--memory-mib", type=int, default=64)
    options = parser.parse_args()
    ours = StoreIdentity(cluster="", group="bench", topics=("rows",), partition=0, form="1")
    sys.stdout.write(f"{'CPU, us a key':32}{'thread':>8}{'process':>10}\n")
    with tempfile.TemporaryDirectory() as folder:
        stores = StateStores(Path(folder), options.memory_mib * _MIB, lambda: 0)
        store = stores.open(ours)
        _measure(store, options.batches, random.Random("rows"))  # noqa: S311, the same every time
        store.close()
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.sst"))
        raw = options.batches * _BATCH * _VALUE_BYTES
        sys.stdout.write(f"{size / _MIB:.0f} MiB on disk of {raw / _MIB:.0f}\n")


if __name__ == "__main__":
    main()
