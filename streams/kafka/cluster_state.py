"""State of the cluster as Kafka knows it: members, end offsets, and lag of consumer groups."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import GroupCoordinatorNotAvailableError

from headwater.schemas.schema_versions import READABLE_VERSIONS, parse_announcement
from headwater.schemas.topics import TOPICS
from headwater.streams.kafka.clients import admin_client, standalone_consumer
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.membership import GROUP

_OURS: Final = frozenset(topic.name for topic in TOPICS)


class Member(NamedTuple):
    """A running process: its name, and the topics of which it reads older schema versions only."""

    name: str
    older: tuple[str, ...]


class ClusterState(NamedTuple):
    """Members, end offsets and lag.

    Attributes:
        members: The running processes.
        ends: End offsets, by topic and partition.
        behind: Number of records that each consumer group has yet to read of our topics.
    """

    members: tuple[Member, ...]
    ends: Mapping[tuple[str, int], int]
    behind: Mapping[str, int]


async def inspect_cluster(cluster: Cluster) -> ClusterState:
    """Query the state of a cluster once.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with admin_client(cluster) as admin, standalone_consumer(cluster) as consumer:
        members = await _members(admin)
        ends = await _ends(admin, consumer)
        return ClusterState(members, ends, await _lags(admin, ends))


async def _members(admin: AIOKafkaAdminClient) -> tuple[Member, ...]:
    try:
        (response,) = await admin.describe_consumer_groups([GROUP])
    except GroupCoordinatorNotAvailableError:  # a cluster that has had no group yet
        return ()
    ((_, _, _, _, _, members, *_),) = response.groups  # type: ignore[attr-defined]
    running = []
    for _, _, _, metadata, *_ in members:
        announcement = parse_announcement(
            ConsumerProtocolMemberMetadata.decode(metadata).user_data or b""
        )
        older = sorted(
            name
            for name in READABLE_VERSIONS
            if announcement.reads.get(name, 0) < READABLE_VERSIONS[name]
        )
        running.append(Member(announcement.member, tuple(older)))
    return tuple(sorted(running))


async def _ends(
    admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer
) -> dict[tuple[str, int], int]:
    present = _OURS & set(await admin.list_topics())
    partitions = [
        TopicPartition(topic["topic"], partition["partition"])
        for topic in await admin.describe_topics(sorted(present))
        for partition in topic["partitions"]
    ]
    ends = await consumer.end_offsets(partitions)
    return {(partition.topic, partition.partition): end for partition, end in ends.items()}


async def _lags(admin: AIOKafkaAdminClient, ends: Mapping[tuple[str, int], int]) -> dict[str, int]:
    lags = {}
    partitions = [TopicPartition(*partition) for partition in ends]
    for group, *_ in await admin.list_consumer_groups():
        committed = await admin.list_consumer_group_offsets(group, partitions=partitions)
        # Offset -1: the group has read nothing of it.
        ours = {
            (partition.topic, partition.partition): position.offset
            for partition, position in committed.items()
            if position.offset >= 0
        }
        if ours:
            lags[group] = sum(max(0, ends[partition] - read) for partition, read in ours.items())
    return lags
