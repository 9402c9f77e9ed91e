"""The alternative with Quix Streams as it is: its state on disk, its changelog, its sinks.

`python -m benchmarks.quix BOOTSTRAP DSN TOPIC TABLE CHECKPOINT_S` reads a raw topic, merges into
its state (RocksDB, one changelog record per change: that is its topic of rows) and upserts changed
rows into Postgres through a custom sink, at every checkpoint. It reports `rows`, the deliveries so
far, and `idle_s`, for how long the last of them waited for a checkpoint. Its package is installed
by `make bench` only: a dependency of the benchmark, not of Headwater.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import orjson
import psycopg
from quixstreams import Application, State
from quixstreams.sinks import BatchingSink, SinkBatch
from typing_extensions import override

from benchmarks import rows
from benchmarks.reporting import report

_ROWS_A_STATEMENT: Final = 1_000
#: Longer than it is suspended while its topic is filled.
_SESSION_MS: Final = 30_000


class PostgresSink(BatchingSink):  # type: ignore[misc]  # not installed where types are checked
    """Upserts the rows that a checkpoint has changed, every row once."""

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__()
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._upsert = rows.upsert(table)
        self._count = 0
        self._added = time.monotonic()

    @override
    def add(self, *args: Any, **kwargs: Any) -> None:
        super().add(*args, **kwargs)
        self._added = time.monotonic()

    @override
    def write(self, batch: SinkBatch) -> None:
        idle_s = time.monotonic() - self._added
        changed: dict[tuple[Any, ...], dict[str, Any]] = {}
        for item in batch:
            row = item.value
            changed[row["user_id"], row["source"], row["datetime"]] = row
        all_rows = list(changed.values())
        with self._connection.pipeline(), self._connection.transaction():
            for start in range(0, len(all_rows), _ROWS_A_STATEMENT):
                part = orjson.dumps(all_rows[start : start + _ROWS_A_STATEMENT]).decode()
                self._connection.execute(self._upsert, (part,))
        self._count += batch.size
        report(rows=self._count, idle_s=idle_s)


def _fold(value: bytes, state: State) -> list[dict[str, Any]]:
    changed = []
    for key, sent_at_ms, columns in rows.read(value):
        name = "|".join(key)
        held = state.get(name) or {}
        rows.merge(held, sent_at_ms, columns)
        state.set(name, held)
        changed.append(rows.flat(key, held))
    return changed


def _main(bootstrap: str, dsn: str, topic: str, table: str, checkpoint_s: float) -> None:
    rows.make_table(dsn, table)
    directory = Path(tempfile.mkdtemp(prefix="headwater-bench-quix-"))
    app = Application(
        broker_address=bootstrap,
        consumer_group=topic,
        auto_offset_reset="earliest",
        commit_interval=checkpoint_s,
        state_dir=directory,
        loglevel="WARNING",
        consumer_extra_config={"session.timeout.ms": _SESSION_MS},
    )
    source = app.topic(topic, value_deserializer="bytes", key_deserializer="bytes")
    app.dataframe(source).apply(_fold, stateful=True, expand=True).sink(PostgresSink(dsn, table))
    try:
        app.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _bootstrap, _dsn, _topic, _table, _checkpoint_s = sys.argv[1:]
    _main(_bootstrap, _dsn, _topic, _table, float(_checkpoint_s))
