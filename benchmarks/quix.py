"""The alternative with Quix Streams as it is: its state on disk, its changelog, its sinks.

`python -m benchmarks.quix BOOTSTRAP DSN` reads its raw topic, merges into its state (RocksDB, one
changelog record per change: that is its topic of rows) and upserts changed rows into Postgres
through a custom sink, at every checkpoint; it reports `rows`, the deliveries so far. Its package is
installed by `make bench` only: a dependency of the benchmark, not of Headwater.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import orjson
import psycopg
from quixstreams import Application, State
from quixstreams.sinks import BatchingSink, SinkBatch
from typing_extensions import override

from benchmarks import rows, topics
from benchmarks.reporting import report

_TABLE: Final = "bench_quix"
_ROWS_A_STATEMENT: Final = 1_000
#: Its default of 5 s would be most of a round. Shorter intervals cost more than they save.
_CHECKPOINT_EVERY_S: Final = 0.5
#: Longer than it is suspended while its topic is filled.
_SESSION_MS: Final = 30_000


class PostgresSink(BatchingSink):  # type: ignore[misc]  # not installed where types are checked
    """Upserts the rows that a checkpoint has changed, every row once."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._upsert = rows.upsert(_TABLE)
        self._count = 0

    @override
    def write(self, batch: SinkBatch) -> None:
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
        report(rows=self._count)


def _fold(value: bytes, state: State) -> list[dict[str, Any]]:
    changed = []
    for key, sent_at_ms, columns in rows.read(value):
        name = "|".join(key)
        held = state.get(name) or {}
        rows.merge(held, sent_at_ms, columns)
        state.set(name, held)
        changed.append(rows.flat(key, held))
    return changed


def _main(bootstrap: str, dsn: str) -> None:
    rows.make_table(dsn, _TABLE)
    directory = Path(tempfile.mkdtemp(prefix="headwater-bench-quix-"))
    app = Application(
        broker_address=bootstrap,
        consumer_group="bench-quix",
        auto_offset_reset="earliest",
        commit_interval=_CHECKPOINT_EVERY_S,
        state_dir=directory,
        loglevel="WARNING",
        consumer_extra_config={"session.timeout.ms": _SESSION_MS},
    )
    source = app.topic(topics.QUIX, value_deserializer="bytes", key_deserializer="bytes")
    app.dataframe(source).apply(_fold, stateful=True, expand=True).sink(PostgresSink(dsn))
    try:
        app.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
