"""Runs as they are read from the history: records that count, of one instance alone."""

import asyncio
import os

import pytest

from headwater.processors.runs.claims import claim_of
from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import (
    NO_CAUSE,
    HistoryAppended,
    LogWritten,
    RunEvent,
    RunStarted,
    instance_key,
    record_key,
)
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing
from headwater.streams.workflows.history_topic import RunReader

STARTED = RunStarted("null", "seed", kind="graph")


class Written:
    """A partition that a test writes to."""

    def __init__(self, appender: Appender) -> None:
        self.appender = appender
        self.name = os.urandom(4).hex()
        self.numbers = iter(range(1_000))

    async def put(self, key: bytes, record: HistoryAppended | None) -> int:
        value = None if record is None else encode(record)
        sent = await self.appender.send([Outgoing(WORKFLOW_HISTORY, 0, key, value)])
        (offset,) = await self.appender.acknowledged(sent)
        return offset

    async def claim(self) -> int:
        key = record_key(self.name.encode(), 0, next(self.numbers))
        return await self.put(key, claim_of("owner", {}, 0))

    async def run(self, epoch: int, sequence: int, instance: str = "") -> int:
        event: RunEvent = LogWritten("info", "test", str(sequence)) if sequence else STARTED
        record = HistoryAppended(
            workflow="read",
            instance_id=instance or self.name,
            run_number=0,
            sequence=sequence,
            epoch=epoch,
            cause=NO_CAUSE,
            at_ms=sequence,
            events=(event,),
        )
        return await self.put(self.key(epoch, sequence, instance), record)

    def key(self, epoch: int, sequence: int, instance: str = "") -> bytes:
        return record_key(f"read/{instance or self.name}".encode(), epoch, sequence)

    async def read(self, reader: RunReader, start: int) -> list[int]:
        key = instance_key("read", self.name)
        batches = reader.read(0, start, key)
        return [record.sequence async for records in batches for record in records]


def test_only_records_of_the_instance_that_count_are_read(topics: str):
    async def scenario() -> None:
        cluster = Cluster(topics)
        appender = Appender(cluster=cluster, client_id="test")
        await appender.start()
        try:
            log, reader = Written(appender), RunReader(cluster)
            old = await log.claim()
            start = await log.run(old, 0)
            await log.run(old, 1)
            await log.run(old, 0, "other")
            new = await log.claim()
            await log.run(old, 2)
            await log.run(new, 2)
            await log.run(old, 3)
            assert await log.read(reader, start) == [0, 1, 2]
            second = await log.run(new, 0, "second")
            await log.run(new, 1, "second")
            starts = {f"read/{log.name}": start, "read/second": second, "read/lost": second + 1}
            many = [
                (record.instance_id, record.sequence)
                async for records in reader.read_many(0, starts, 60)
                for record in records
            ]
            mine = [(log.name, number) for number in (0, 1, 2)]
            assert many == [*mine, ("second", 0), ("second", 1)]
            # What began it is gone: the instance was deleted, and its history is being removed.
            assert await log.read(reader, start - 1) == []
            with pytest.raises(BrokerUnavailable, match="within 0 s"):
                await log.read(RunReader(cluster, 0), start)
        finally:
            await appender.stop()

    asyncio.run(scenario())
