"""State of the cluster as Kafka knows it: members, end offsets, and lag of a group."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.membership import inspect_cluster, system_membership

GROUP = "a group that is behind"


def test_members_ends_and_how_far_behind_a_group_is(topics: str):
    cluster = Cluster(topics)

    async def scene() -> None:
        before = (await inspect_cluster(cluster)).ends["pushes", 0]
        async with AIOKafkaProducer(bootstrap_servers=topics) as producer:
            for _ in range(5):
                await producer.send_and_wait("pushes", b"value", b"key", partition=0)
        where = TopicPartition("pushes", 0)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=topics, group_id=GROUP, enable_auto_commit=False
        )
        consumer.assign([where])
        async with consumer:
            await consumer.commit({where: before + 2})
        with system_membership(cluster, "pipeline here-1") as membership:
            await asyncio.to_thread(membership.join)
            seen = await inspect_cluster(cluster)
        assert seen.ends["pushes", 0] == before + 5
        assert seen.behind[GROUP] == 3
        assert ("pipeline here-1", ()) in seen.members

    asyncio.run(scene())
