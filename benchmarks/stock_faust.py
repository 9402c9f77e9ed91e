"""The alternative with Faust as it is: its own transport, its own table, one event at a time.

`python -m benchmarks.stock_faust BOOTSTRAP DSN` reads its raw topic, merges into a `faust.Table`
(memory store with changelog), sends every merged row to a topic and upserts them into Postgres in
batches; it reports `rows`, the sum so far, after every batch.
"""

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any, Final

import faust
import orjson
import psycopg
import uvloop

from benchmarks import rows, topics
from benchmarks.reporting import report
from benchmarks.system import PARTITIONS

_TABLE: Final = "bench_faust"
_ROWS_A_BATCH: Final = 500
_FLUSH_EVERY_S: Final = 0.1


class Store:
    """Rows to be written to Postgres."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._upsert = rows.upsert(_TABLE)
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._pending: list[dict[str, Any]] = []
        self._sent: list[Awaitable[object]] = []
        self._count = 0

    async def add(self, row: dict[str, Any], sent: Awaitable[object]) -> None:
        """Add a row and the future of its append; write a batch when there are enough."""
        self._pending.append(row)
        self._sent.append(sent)
        if len(self._pending) >= _ROWS_A_BATCH:
            await self.flush()

    async def flush(self) -> None:
        """Write the pending rows."""
        pending, self._pending = self._pending, []
        sent, self._sent = self._sent, []
        if not pending:
            return
        await asyncio.gather(*sent)
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
        await self._connection.execute(self._upsert, (orjson.dumps(pending).decode(),))
        self._count += len(pending)
        report(rows=self._count)


def _app(bootstrap: str, dsn: str) -> faust.App:
    app = faust.App(
        "bench-faust-app",
        broker=f"kafka://{bootstrap}",
        store="memory://",
        web_enabled=False,
        topic_partitions=PARTITIONS,
        consumer_auto_offset_reset="earliest",
    )
    source = app.topic(topics.FAUST, key_serializer="raw", value_serializer="raw")
    target = app.topic(topics.FAUST_ROWS, key_serializer="raw", value_serializer="raw")
    table = app.Table("rows", partitions=PARTITIONS)
    store = Store(dsn)

    @app.agent(source)
    async def fold(stream: faust.StreamT[bytes]) -> None:
        async for value in stream:
            for key, sent_at_ms, columns in rows.read(value):
                name = "|".join(key)
                held = table.get(name) or {}
                rows.merge(held, sent_at_ms, columns)
                table[name] = held
                row = rows.flat(key, held)
                sent = await target.send(key=name.encode(), value=orjson.dumps(row))
                await store.add(row, sent)

    async def flush() -> None:
        await store.flush()

    app.timer(interval=_FLUSH_EVERY_S)(flush)
    return app


def _main(bootstrap: str, dsn: str) -> None:
    rows.make_table(dsn, _TABLE)
    uvloop.install()
    app = _app(bootstrap, dsn)
    faust.Worker(
        app, loglevel="WARNING", redirect_stdouts=False, quiet=True
    ).execute_from_commandline()


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
