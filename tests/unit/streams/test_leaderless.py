"""A producer that waits for the leader of one partition sends to the others meanwhile."""

import asyncio

from aiokafka.cluster import ClusterMetadata
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import Sender
from aiokafka.structs import PartitionMetadata, TopicPartition

from headwater.streams.kafka.aiokafka_patches import patch_aiokafka

LED, GONE = TopicPartition("t", 0), TopicPartition("t", 1)


class Client:
    """A client of two partitions; one has no leader, and the broker that it asks stands still."""

    def __init__(self) -> None:
        self.cluster = ClusterMetadata()
        self.asked = 0
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.lead(LED, 1)
        self.lead(GONE, -1)

    def lead(self, where: TopicPartition, node: int) -> None:
        state = PartitionMetadata(where.topic, where.partition, node, [1], [1], None)
        self.cluster._partitions.setdefault(where.topic, {})[where.partition] = state

    async def send(self, node: int, request: object) -> None:
        del node, request

    def force_metadata_update(self) -> asyncio.Future[bool]:
        self.asked += 1
        return asyncio.shield(self.answer)


async def sent(accumulator: MessageAccumulator, where: TopicPartition) -> asyncio.Future[object]:
    builder = accumulator.create_builder()
    builder.append(timestamp=None, key=b"k", value=b"v", headers=[])
    return await accumulator.add_batch(builder, where, 5)


def test_partitions_with_a_leader_are_sent_to_while_that_of_another_is_asked_for():
    patch_aiokafka()

    async def scenario() -> None:
        client = Client()
        accumulator = MessageAccumulator(client.cluster, 16_384, 0, 30)
        sender = Sender(
            client,
            acks=0,
            txn_manager=None,
            message_accumulator=accumulator,
            retry_backoff_ms=1,
            request_timeout_ms=30_000,
        )
        await sender.start()
        async with asyncio.timeout(60):
            waiting = await sent(accumulator, GONE)
            while not client.asked:  # noqa: ASYNC110 (nobody would set an event)
                await asyncio.sleep(0)
            for _ in range(3):
                await (await sent(accumulator, LED))
            assert (waiting.done(), client.asked) == (False, 1)
            client.lead(GONE, 1)
            client.answer.set_result(True)
            await waiting
        await sender.close()

    asyncio.run(scenario())
