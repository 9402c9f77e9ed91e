"""What Kafka knows of the house: its members, and how far behind those are who read it."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import GroupCoordinatorNotAvailableError

from headwater.schemas.schema_versions import READABLE_VERSIONS, parse_announcement
from headwater.schemas.topics import TOPICS
from headwater.streams.kafka.clients import admin_of, consumer_of
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.membership import GROUP

_OURS: Final = frozenset(topic.name for topic in TOPICS)


class Member(NamedTuple):
    """A part of the house that is up: its name, and what this release reads and it does not."""

    name: str
    older: tuple[str, ...]


class Seen(NamedTuple):
    """What Kafka knows of the house.

    Shape:  `ends` are the ends of partitions; `behind` is how many records each consumer group has
            still to read of topics of ours.
    """

    members: tuple[Member, ...]
    ends: Mapping[tuple[str, int], int]
    behind: Mapping[str, int]


async def look(cluster: Cluster) -> Seen:
    """Looks once.

    Errors: BrokerUnavailable.
    """
    async with admin_of(cluster) as admin, consumer_of(cluster) as consumer:
        members = await _members(admin)
        ends = await _ends(admin, consumer)
        return Seen(members, ends, await _behind(admin, ends))


async def _members(admin: AIOKafkaAdminClient) -> tuple[Member, ...]:
    try:
        (answer,) = await admin.describe_consumer_groups([GROUP])
    except GroupCoordinatorNotAvailableError:  # a cluster that has had no group yet
        return ()
    ((_, _, _, _, _, members, *_),) = answer.groups  # type: ignore[attr-defined]
    found = []
    for _, _, _, metadata, *_ in members:
        announcement = parse_announcement(
            ConsumerProtocolMemberMetadata.decode(metadata).user_data or b""
        )
        older = sorted(
            name
            for name in READABLE_VERSIONS
            if announcement.reads.get(name, 0) < READABLE_VERSIONS[name]
        )
        found.append(Member(announcement.member, tuple(older)))
    return tuple(sorted(found))


async def _ends(
    admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer
) -> dict[tuple[str, int], int]:
    present = _OURS & set(await admin.list_topics())
    where = [
        TopicPartition(topic["topic"], partition["partition"])
        for topic in await admin.describe_topics(sorted(present))
        for partition in topic["partitions"]
    ]
    ends = await consumer.end_offsets(where)
    return {(each.topic, each.partition): end for each, end in ends.items()}


async def _behind(
    admin: AIOKafkaAdminClient, ends: Mapping[tuple[str, int], int]
) -> dict[str, int]:
    found = {}
    asked = [TopicPartition(*where) for where in ends]
    for group, *_ in await admin.list_consumer_groups():
        committed = await admin.list_consumer_group_offsets(group, partitions=asked)
        # Offset -1: the group has read nothing of it.
        ours = {
            (where.topic, where.partition): each.offset
            for where, each in committed.items()
            if each.offset >= 0
        }
        if ours:
            found[group] = sum(max(0, ends[where] - offset) for where, offset in ours.items())
    return found
