"""The baseline: a hand-written aiokafka loop that makes the same rows.

`python -m benchmarks.by_hand BOOTSTRAP DSN` reads its raw topic, merges into a dictionary, produces
the merged rows (`acks=all`, in batches), upserts them into Postgres and commits; it reports `rows`,
the sum so far, after every batch. The next batch is read while the last one is being written. No
duplicates are dropped, no outcomes or traces kept, and a crash may lose what is in memory.
"""

import asyncio
import sys
from collections import defaultdict
from typing import Any, Final

import orjson
import psycopg
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord

from benchmarks import rows, topics
from benchmarks.reporting import report

_RECORDS_A_BATCH: Final = 4_000
_ROWS_A_STATEMENT: Final = 1_000
_TABLE: Final = "bench_by_hand"


class Loop:
    """The rows in memory and the three connections."""

    def __init__(self, bootstrap: str, connection: psycopg.AsyncConnection[Any]) -> None:
        self._consumer = AIOKafkaConsumer(
            topics.BY_HAND,
            bootstrap_servers=bootstrap,
            group_id="bench-by-hand",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=4 * 1024 * 1024,
            # aiokafka sends a broker one fetch at a time: one that waits for partitions without
            # data, half a second by default, delays the others.
            fetch_max_wait_ms=50,
            # Longer than it is suspended while its topic is filled.
            session_timeout_ms=30_000,
        )
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            max_batch_size=512 * 1024,
        )
        self._connection = connection
        self._upsert = rows.upsert(_TABLE)
        self._rows: dict[rows.Key, rows.Held] = {}
        self._count = 0

    async def run(self) -> None:
        """Run until cancelled."""
        await self._consumer.start()
        await self._producer.start()
        writing: asyncio.Task[None] | None = None
        while True:
            fetched = await self._consumer.getmany(timeout_ms=200, max_records=_RECORDS_A_BATCH)
            changed = {tp.partition: self._fold(records) for tp, records in fetched.items()}
            ends = {tp: records[-1].offset + 1 for tp, records in fetched.items()}
            if writing is not None:
                await writing
                writing = None
            if changed:
                count = sum(map(len, fetched.values()))
                writing = asyncio.create_task(self._write(changed, ends, count))

    def _fold(self, records: list[ConsumerRecord[Any, Any]]) -> list[dict[str, Any]]:
        changed: dict[rows.Key, rows.Held] = {}
        for record in records:
            for key, sent_at_ms, columns in rows.read(record.value or b""):
                held = self._rows.setdefault(key, {})
                rows.merge(held, sent_at_ms, columns)
                changed[key] = held
        return [rows.flat(key, held) for key, held in changed.items()]

    async def _write(
        self, changed: dict[int, list[dict[str, Any]]], ends: dict[TopicPartition, int], count: int
    ) -> None:
        await asyncio.gather(self._produce(changed), self._store(changed))
        await self._consumer.commit(ends)
        self._count += count
        report(rows=self._count)

    async def _produce(self, changed: dict[int, list[dict[str, Any]]]) -> None:
        pending: dict[int, list[Any]] = defaultdict(list)
        for partition, group in changed.items():
            batch = self._producer.create_batch()
            for row in group:
                key = f"{row['user_id']}|{row['source']}|{row['datetime']}".encode()
                value = orjson.dumps(row)
                if batch.append(key=key, value=value, timestamp=None) is None:
                    pending[partition].append(await self._send(batch, partition))
                    batch = self._producer.create_batch()
                    batch.append(key=key, value=value, timestamp=None)
            pending[partition].append(await self._send(batch, partition))
        await asyncio.gather(*(sent for group in pending.values() for sent in group))

    async def _send(self, batch: Any, partition: int) -> Any:  # noqa: ANN401 (aiokafka's own types)
        return await self._producer.send_batch(batch, topics.BY_HAND_ROWS, partition=partition)

    async def _store(self, changed: dict[int, list[dict[str, Any]]]) -> None:
        all_rows = [row for group in changed.values() for row in group]
        async with self._connection.pipeline(), self._connection.transaction():
            for start in range(0, len(all_rows), _ROWS_A_STATEMENT):
                part = orjson.dumps(all_rows[start : start + _ROWS_A_STATEMENT]).decode()
                await self._connection.execute(self._upsert, (part,))


async def _main(bootstrap: str, dsn: str) -> None:
    rows.make_table(dsn, _TABLE)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await Loop(bootstrap, connection).run()


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], sys.argv[2]))
