"""Copies of the topics under another prefix, with other numbers of partitions (ADR 0101).

The topics that are copied are closed first: the broker refuses every append to them, whichever
process tries it, and neither retention nor compaction removes a record from then on.

Copies are written with the times of the records, and keep all records until the copy is complete.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import UnknownTopicOrPartitionError, for_code
from aiokafka.structs import OffsetAndMetadata
from typing_extensions import override

from headwater.schemas.epochs import GAP_KEY
from headwater.schemas.errors import BrokerUnavailable, Disposition, HeadwaterError
from headwater.schemas.topics import TOPICS
from headwater.streams.kafka.cluster import (
    Cluster,
    admin_client,
    standalone_consumer,
    wait_for_controller,
)
from headwater.streams.kafka.names import name_in_code, topic_in_code
from headwater.streams.kafka.records import Incoming
from headwater.streams.kafka.topics import (
    CLOSED,
    TopicsTaken,
    TopicState,
    create_topics_with,
    set_configs,
)

_ENDLESS: Final = str(2**63 - 1)
#: Of topics that are closed.
_CLOSED: Final = {
    "max.message.bytes": CLOSED,
    "retention.ms": "-1",
    "min.compaction.lag.ms": _ENDLESS,
    "max.compaction.lag.ms": _ENDLESS,
}
#: Of copies, until they are complete.
_COPYING: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
#: The controller answers before brokers have a new configuration.
_CONFIGURED_S: Final = 60.0
_POLL_S: Final = 0.1
#: Records of a gap that are added before others get their turn, and batches in memory.
_GAPS_AT_ONCE: Final = 10_000
_BATCHES_MAX: Final = 8
_CATALOG: Final = {topic.name: topic for topic in TOPICS}


class CopyDiffers(HeadwaterError):
    """A copy does not have the records of its topic, or other ones."""

    disposition = Disposition.HALT
    code = "copy_differs"


class Copies:
    """The topics of the catalog under another prefix.

    Args:
        cluster: The cluster, with the prefix of the topics that are copied.
        prefix: Prefix of the copies.
        topics: The topics that are copied, by name.
    """

    def __init__(self, cluster: Cluster, prefix: str, topics: Mapping[str, TopicState]) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._configs = {self.name(name): config for name, config in _configs(topics).items()}
        self._replication = min(state.replication for state in topics.values())

    def name(self, topic: str) -> str:
        """Return the name by which clients of this process use the copy of a topic."""
        return topic_in_code(self._cluster.prefix, self._prefix + topic)

    def group(self, group: str) -> str:
        """Return the name by which clients of this process use a group under the new prefix."""
        return name_in_code(self._cluster.prefix, self._prefix + group)

    async def refuse_others(self) -> None:
        """Check that topics with the names of copies are copies that are not complete.

        Raises:
            TopicsTaken: There are others, such as those of another project.
            BrokerUnavailable: No broker answered.
        """
        async with admin_client(self._cluster) as admin:
            present = sorted(self._configs.keys() & set(await admin.list_topics()))
            actual = await _described(admin, present) if present else {}
        others = [name for name, config in actual.items() if not _COPYING.items() <= config.items()]
        if others:
            raise TopicsTaken(
                f"expected no topics with the prefix {self._prefix!r}, found {', '.join(others)}; "
                "nothing was changed. Choose another prefix"
            )

    async def create(self, partitions: int) -> None:
        """Create the copies that are missing, and have them keep everything.

        Raises:
            TopicsTaken: Other topics have their names.
            BrokerUnavailable: No broker answered, or it refused.
        """
        await self.refuse_others()
        configs = {name: config | _COPYING for name, config in self._configs.items()}
        await create_topics_with(self._cluster, configs, partitions, self._replication)
        await _configure(self._cluster, configs)

    async def complete(self) -> None:
        """Give the copies the configuration of the catalog; appends have the broker's time again.

        Raises:
            BrokerUnavailable: No broker answered, or it refused.
        """
        await _configure(self._cluster, self._configs)

    async def delete(self, topics: Iterable[str] = tuple(_CATALOG)) -> list[str]:
        """Delete the copies of topics; return the names in Kafka of those that existed."""
        names = {self.name(topic): self._prefix + topic for topic in topics}
        return await _delete(self._cluster, names)

    async def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets of a group under the new prefix; it has no members yet.

        Args:
            group: Its name in code, without a prefix.
            offsets: By topic, as clients of this process use it, and partition.

        Raises:
            BrokerUnavailable: The coordinator did not answer, or refused.
        """
        consumer = standalone_consumer(
            self._cluster, group_id=self.group(group), enable_auto_commit=False
        )
        async with consumer as started:
            partitions = [TopicPartition(*partition) for partition in offsets]
            started.assign(partitions)
            await started.commit(
                {
                    TopicPartition(*partition): OffsetAndMetadata(offset, "")
                    for partition, offset in offsets.items()
                }
            )


async def close_topics(cluster: Cluster, topics: Mapping[str, TopicState]) -> None:
    """Have the broker refuse all appends to topics, and keep their records.

    Raises:
        BrokerUnavailable: No broker answered, or it refused.
    """
    closed = {name: config | _CLOSED for name, config in _configs(topics).items()}
    await _configure(cluster, closed)


async def open_topics(cluster: Cluster, topics: Mapping[str, TopicState]) -> None:
    """Give closed topics the configuration of the catalog again.

    Raises:
        BrokerUnavailable: No broker answered, or it refused.
    """
    await _configure(cluster, _configs(topics))


async def _configure(cluster: Cluster, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Set the configurations of topics, and wait until a broker has them.

    Raises:
        BrokerUnavailable: No broker answered, or it refused.
    """
    await set_configs(cluster, configs)
    async with admin_client(cluster) as admin, asyncio.timeout(_CONFIGURED_S):
        while True:
            actual = await _described(admin, configs)
            if all(config.items() <= actual[name].items() for name, config in configs.items()):
                return
            await asyncio.sleep(_POLL_S)


async def _described(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the configurations of topics that exist."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    return {
        name: {entry[0]: entry[1] for entry in entries}
        for answer in await admin.describe_configs(resources)
        for _, _, _, name, entries in answer.resources  # type: ignore[attr-defined]
    }


def _configs(topics: Mapping[str, TopicState]) -> dict[str, dict[str, str]]:
    """Return the configurations of the catalog, with what else operators have set for topics."""
    configs = {}
    for name, state in topics.items():
        others = {key: value for key, value in state.own.items() if key not in _CLOSED}
        configs[name] = others | _CATALOG[name].config(state.replication)
    return configs


async def delete_topics(cluster: Cluster) -> list[str]:
    """Delete the topics of the catalog; return the names in Kafka of those that existed."""
    return await _delete(cluster, {name: cluster.topic_in_kafka(name) for name in _CATALOG})


async def _delete(cluster: Cluster, names: Mapping[str, str]) -> list[str]:
    """Delete topics, by their names in code, and return those names in Kafka that existed."""
    async with admin_client(cluster) as admin:
        present = [name for name in await admin.list_topics() if name in names]
        if not present:
            return []
        await wait_for_controller(admin)
        response = await admin.delete_topics(present)
        for name, code in response.topic_error_codes:  # type: ignore[attr-defined]
            if code and for_code(code) is not UnknownTopicOrPartitionError:
                raise BrokerUnavailable(
                    f"expected to delete the topic {names[name]}, found: {for_code(code).__name__}"
                )
    return sorted(names[name] for name in present)


async def committed_by_group(cluster: Cluster) -> dict[str, dict[tuple[str, int], int]]:
    """Return the committed offsets of all groups by topic and partition.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    groups: dict[str, dict[tuple[str, int], int]] = {}
    async with admin_client(cluster) as admin:
        for group, *_ in await admin.list_consumer_groups():
            committed = await admin.list_consumer_group_offsets(group)
            groups[group] = {
                (tp.topic, tp.partition): position.offset
                for tp, position in committed.items()
                if position.offset >= 0
            }
    return groups


async def end_offsets(cluster: Cluster, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the ends of partitions of a topic.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with standalone_consumer(cluster, purpose=f"the ends of {topic}") as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, n) for n in partitions])
    return {tp.partition: end for tp, end in ends.items()}


class CopyWriter:
    """Appends to one partition of a copy, so that each record keeps its offset.

    Args:
        producer: An idempotent producer.
        topic: The copy, as clients of this process use it.
        partition: The partition.
        end: Its end: what is before it was copied earlier.
    """

    def __init__(self, producer: AIOKafkaProducer, topic: str, partition: int, end: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        #: Offset of the next record, and of the next one that is not acknowledged.
        self._next = self._acknowledged = end
        self._batches: list[tuple[Any, int]] = []
        self._batch: Any = None

    async def put(self, record: Incoming, value: bytes | None) -> None:
        """Add a record, after a gap up to its offset if there is one; `flush` appends the last.

        Raises:
            CopyDiffers: As `flush`.
            KafkaError: As `flush`.
        """
        if record.offset < self._next:
            return
        await self.skip_to(record.offset, record.timestamp)
        self._append(record.timestamp, record.key, value, list(record.headers))
        await self._flush_many()

    async def skip_to(self, offset: int, timestamp: int) -> None:
        """Add gap records up to an offset."""
        while self._next < offset:
            for _ in range(min(_GAPS_AT_ONCE, offset - self._next)):
                self._append(timestamp, GAP_KEY, None, [])
            await self._flush_many()

    async def _flush_many(self) -> None:
        if len(self._batches) >= _BATCHES_MAX:
            await self.flush()

    def _append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Any]
    ) -> None:
        fields = {"timestamp": timestamp, "key": key, "value": value, "headers": headers}
        if self._batch is None or self._batch.append(**fields) is None:
            self._close_batch()
            self._batch = self._producer.create_batch()
            self._batch.append(**fields)
        self._next += 1

    def _close_batch(self) -> None:
        if self._batch is not None:
            self._batches.append((self._batch, self._batch.record_count()))
            self._batch = None

    async def flush(self) -> None:
        """Append what was added.

        Raises:
            CopyDiffers: Another record was appended to the copy in between.
            KafkaError: The broker did not answer, or refused.
        """
        self._close_batch()
        for batch, count in self._batches:
            sent = await self._producer.send_batch(batch, self._topic, partition=self._partition)
            first = (await sent).offset
            if first != self._acknowledged:
                raise CopyDiffers(
                    f"expected to append to {self._topic}/{self._partition} at offset "
                    f"{self._acknowledged}, found {first}: another process writes there"
                )
            self._acknowledged += count
        self._batches.clear()


class Digest:
    """Number and hash of the records of a partition, with their offsets, times and headers."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, record: Incoming, value: bytes | None) -> None:
        """Add a record."""
        self.count += 1
        headers = [(name, content) for name, content in record.headers]
        parts = (record.offset, record.timestamp, record.key, value, headers)
        self._hash.update(msgspec.msgpack.encode(parts))

    @override
    def __str__(self) -> str:
        """Return both as text."""
        return f"{self.count} records, {self._hash.hexdigest()}"
