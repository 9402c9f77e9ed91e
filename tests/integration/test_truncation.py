"""Consumers of a partition whose end the broker lost, and which is longer again by then."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.truncation import (
    UNKNOWN_END,
    LogTruncated,
    leader_epoch_of,
    seek_with_epoch,
    truncation_before,
)
from tests.cut_logs import cut
from tests.throwaway_kafka import ThrowawayKafka

CUT, WHOLE = TopicPartition("cut", 0), TopicPartition("whole", 0)
#: Records that are read, those of them that are left, and those that come then.
READ, LEFT, NEW = 20, 12, 15
OLD, LATER = list(range(READ)), list(range(100, 100 + NEW))


@pytest.fixture
def broker(scratch: Path) -> Iterator[ThrowawayKafka]:
    broker = ThrowawayKafka(scratch / "kafka that loses an end", port=0, report=print)
    try:
        yield broker
    finally:
        broker.kill()


async def append(address: str, where: TopicPartition, values: list[int]) -> None:
    """Append records, each in a batch of its own."""
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    for value in values:
        await producer.send_and_wait(where.topic, b"%d" % value, partition=where.partition)
    await producer.stop()


@asynccontextmanager
async def consumer(address: str, reset: str) -> AsyncIterator[AIOKafkaConsumer]:
    made = AIOKafkaConsumer(
        **Cluster(address).options(), auto_offset_reset=reset, metadata_max_age_ms=500
    )
    await made.start()
    made.assign([CUT, WHOLE])
    made.pause(CUT, WHOLE)
    try:
        yield made
    finally:
        await made.stop()


async def take(reader: AIOKafkaConsumer, where: TopicPartition, count: int) -> list[int]:
    """Read as many records of a partition."""
    reader.resume(where)
    read: list[int] = []
    async with asyncio.timeout(60):
        while len(read) < count:
            fetched = await reader.getmany(where, timeout_ms=200)
            read += [int(record.value) for record in fetched.get(where, ())]
    reader.pause(where)
    return read


async def lose_the_end(broker: ThrowawayKafka) -> None:
    """Have a partition lose records that were read, and get others in their place, and more."""
    await asyncio.to_thread(broker.kill)
    cut(broker, *CUT, LEFT)
    address = await asyncio.to_thread(broker.start)
    for item in (CUT, WHOLE):
        await append(address, item, LATER)


def test_a_consumer_reads_what_was_appended_in_place_of_a_lost_end(
    broker: ThrowawayKafka, caplog: pytest.LogCaptureFixture
):
    async def scenario(address: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        await admin.create_topics([NewTopic(item.topic, 1, 1) for item in (CUT, WHOLE)])
        await admin.close()
        for entry in (CUT, WHOLE):
            await append(address, entry, OLD)
        # While they are paused, the new end comes to lie behind their positions.
        async with consumer(address, "earliest") as lenient, consumer(address, "none") as strict:
            for reader in (lenient, strict):
                for entry in (CUT, WHOLE):
                    seek_with_epoch(reader, entry, 0)
                    assert await take(reader, entry, READ) == OLD
                    assert leader_epoch_of(reader, entry) == 0
            await lose_the_end(broker)
            assert await take(lenient, WHOLE, NEW) == LATER
            assert await take(strict, WHOLE, NEW) == LATER
            assert "whole/0" not in caplog.text
            assert await take(lenient, CUT, NEW) == LATER
            assert f"cut/0 from offset {LEFT} to {READ - 1}" in caplog.text
            with pytest.raises(LogTruncated, match=f"cut/0 from offset {LEFT} to {READ - 1}"):
                await take(strict, CUT, 1)
        await begin_where_another_was(address)
        await find_another_log(address)

    asyncio.run(scenario(broker.start()))


async def begin_where_another_was(address: str) -> None:
    """Read on from a position that was remembered with its leader epoch."""
    async with consumer(address, "none") as reader:
        assert await truncation_before(reader, CUT, READ, 0) == LEFT
        assert await truncation_before(reader, CUT, LEFT, 0) is None
        assert await truncation_before(reader, WHOLE, READ, 0) is None
        seek_with_epoch(reader, CUT, READ, 0)
        with pytest.raises(LogTruncated):
            await take(reader, CUT, 1)
        seek_with_epoch(reader, CUT, LEFT, 0)
        assert await take(reader, CUT, NEW) == LATER
        assert (leader_epoch_of(reader, CUT) or 0) > 0


async def find_another_log(address: str) -> None:
    """A topic that was made anew was not cut, whatever is in it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic("anew", 1, 1)])
    await admin.close()
    anew = TopicPartition("anew", 0)
    await append(address, anew, LATER)
    async with consumer(address, "none") as reader:
        reader.assign([anew])
        assert await truncation_before(reader, anew, READ, 0) == UNKNOWN_END
        assert await truncation_before(reader, anew, NEW, 0) is None
        assert await truncation_before(reader, anew, NEW, 1) == UNKNOWN_END
