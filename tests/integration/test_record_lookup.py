"""Goal: single records are read wherever they lie; to look where none is ends, and leaves nothing.

A consumer of aiokafka's that loses partitions may wait for ever to stop.
"""

import asyncio
import gc
import warnings

import pytest

from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import iter_records_at, read_records_at
from headwater.streams.kafka.records import Outgoing


def test_records_are_read_wherever_they_lie(topics: str):
    async def scenario() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="places")
        records = [
            Outgoing(WEBHOOKS, partition, b"%d" % number, b"v")
            for partition in (0, 1)
            for number in range(1_500)
        ]
        sent = await appender.send(records)
        firsts = await appender.acknowledged(sent)
        await appender.stop()
        begins = {
            batch.partition: min(
                first
                for other, first in zip(sent, firsts, strict=True)
                if other.partition == batch.partition
            )
            for batch in sent
        }
        expected = {(p, at + n): b"%d" % n for p, at in begins.items() for n in (0, 7, 700, 1_499)}
        result = await read_records_at(Cluster(topics), WEBHOOKS, [*expected, (0, 10**9), (77, 0)])
        assert {position: record.key for position, record in result.items()} == expected

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_records_that_take_little_in_the_log_come_a_few_at_a_time(topics: str):
    async def scenario() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="places")
        alike = [Outgoing(WEBHOOKS, 2, b"%d" % number, b" " * 3_000_000) for number in range(9)]
        sent = await appender.send(alike)
        firsts = await appender.acknowledged(sent)
        await appender.stop()
        places = [(2, min(firsts) + number) for number in range(len(alike))]
        result = [some async for some in iter_records_at(Cluster(topics), WEBHOOKS, places)]
        assert [record.key for some in result for record in some] == [item.key for item in alike]
        assert max(map(len, result)) == 3

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("places", [[(77, 0)], [(0, 1_000_000)], [(0, 1_000_000), (1, 1_000_000)]])
def test_looking_where_nothing_is_ends_and_leaves_no_connection(
    topics: str, places: list[tuple[int, int]]
):
    async def scenario() -> None:
        for _ in range(30):
            assert await read_records_at(Cluster(topics), WEBHOOKS, places) == {}

    with warnings.catch_warnings(record=True) as result:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(asyncio.wait_for(scenario(), 60))
        gc.collect()
    assert not [str(item.message) for item in result if "AIOKafka" in str(item.message)]
