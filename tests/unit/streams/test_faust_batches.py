"""Fetching batches across rebalances: no record is passed over, whenever a fetch ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka.structs import TopicPartition

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming
from headwater.streams.pipeline._faust import TP, Batch, BatchConsumer, OffsetGap, batch_app

WHERE = TP("webhooks", 2)
FIRST, END = 3, 9


def record(offset: int) -> Incoming:
    topic, partition = WHERE
    return Incoming(topic, partition, offset, 0, 0, b"", b"", None, 0, 0, ())


class Broker:
    """What Faust's thread does with Kafka, for one partition that begins at FIRST."""

    def __init__(self, committed: int | None) -> None:
        self.committed = committed
        self.position = committed or FIRST
        self.answers = asyncio.Event()
        self.answers.set()
        self.takes_commits = True

    async def commit(self, offsets: dict[TP, int]) -> bool:
        if self.takes_commits:
            self.committed = offsets[WHERE]
        return self.takes_commits

    async def getmany(self, _: set[TP] | None, __: float) -> dict[TopicPartition, list[Incoming]]:
        await self.answers.wait()
        records = [record(offset) for offset in range(self.position, END)]
        self.position = END
        return {TopicPartition(*WHERE): records} if records else {}

    async def seek_to_committed(self) -> dict[TP, int | None]:
        self.position = self.committed or self.position  # as aiokafka does
        return {WHERE: self.committed}

    async def earliest_offsets(self, *tps: TP) -> dict[TP, int]:
        return dict.fromkeys(tps, FIRST)

    def seek(self, _: TP, offset: int) -> None:
        self.position = offset

    def assignment(self) -> set[TP]:
        return {WHERE}


def run(
    committed: int | None, scenario: Callable[[BatchConsumer, Broker], Awaitable[None]]
) -> None:
    async def whole() -> None:
        app = batch_app(app_id="test", cluster=Cluster("127.0.0.1:1"), member=None)
        consumer = app.consumer
        assert isinstance(consumer, BatchConsumer)
        consumer._thread.thread_loop.close()
        broker = Broker(committed)
        consumer._thread = broker  # type: ignore[assignment]
        consumer.resume_partitions({WHERE})
        await scenario(consumer, broker)

    asyncio.run(whole())


async def fetched(consumer: BatchConsumer) -> list[Batch]:
    return [message.value async for _, message in consumer.getmany(1.0)]  # type: ignore[misc]


def offsets(batches: list[Batch]) -> list[int]:
    return [one.offset for batch in batches for one in batch.records]


@pytest.mark.parametrize("committed", [None, 5])
def test_what_a_fetch_brings_after_faust_went_back_is_fetched_again(committed: int | None):
    async def scenario(consumer: BatchConsumer, broker: Broker) -> None:
        broker.answers.clear()
        late = asyncio.create_task(fetched(consumer))
        await asyncio.sleep(0)
        consumer.stop_flow()
        await consumer.perform_seek()
        broker.answers.set()
        assert await late == []
        consumer.resume_flow()
        assert offsets(await fetched(consumer)) == list(range(committed or FIRST, END))

    run(committed, scenario)


def test_what_a_fetch_brings_after_the_flow_goes_on_is_fetched_again():
    async def scenario(consumer: BatchConsumer, broker: Broker) -> None:
        broker.answers.clear()
        late = asyncio.create_task(fetched(consumer))
        await asyncio.sleep(0)
        consumer.app.consumer_generation_id += 1
        broker.answers.set()
        assert await late == []
        assert offsets(await fetched(consumer)) == list(range(5, END))

    run(5, scenario)


def test_what_was_fetched_of_a_partition_that_is_held_by_then_is_fetched_once_it_is_released():
    async def scenario(consumer: BatchConsumer, broker: Broker) -> None:
        broker.answers.clear()
        late = asyncio.create_task(fetched(consumer))
        await asyncio.sleep(0)
        consumer.hold({WHERE})
        broker.answers.set()
        assert await late == []
        consumer.release({WHERE})
        assert offsets(await fetched(consumer)) == list(range(5, END))

    run(5, scenario)


def test_where_nothing_was_committed_a_rebalance_goes_back_to_the_first_record():
    async def scenario(consumer: BatchConsumer, broker: Broker) -> None:
        assert offsets(await fetched(consumer)) == list(range(FIRST, END))
        await consumer.perform_seek()
        assert offsets(await fetched(consumer)) == list(range(FIRST, END))

    run(None, scenario)


def test_a_batch_cannot_be_done_while_the_one_before_it_is_not():
    async def scenario(consumer: BatchConsumer, broker: Broker) -> None:
        await consumer.perform_seek()
        await fetched(consumer)
        broker.position = END - 1
        (second,) = await fetched(consumer)
        with pytest.raises(OffsetGap, match=f"follows {END}"):
            second.done()

    run(5, scenario)


def test_only_what_is_done_is_committed():
    async def scenario(consumer: BatchConsumer, broker: Broker) -> None:
        await consumer.perform_seek()
        (batch,) = await fetched(consumer)
        assert not await consumer.commit()
        assert broker.committed == 5
        batch.done()
        assert await consumer.commit()
        assert broker.committed == END
        assert not await consumer.commit(), "there is nothing more"

    run(5, scenario)


def test_a_commit_that_failed_is_repeated():
    async def scenario(consumer: BatchConsumer, broker: Broker) -> None:
        await consumer.perform_seek()
        (batch,) = await fetched(consumer)
        batch.done()
        broker.takes_commits = False
        assert not await consumer.commit()
        broker.takes_commits = True
        assert await consumer.commit()
        assert broker.committed == END

    run(5, scenario)
