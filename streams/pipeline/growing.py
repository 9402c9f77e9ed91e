"""Copy the topics of a stopped system into ones with more partitions (ADR 0101).

No process runs meanwhile, and everything was read that the old partitions have for a consumer
group. A copy that was interrupted continues where the new topics end.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from headwater.processors.providers.provider import Placement
from headwater.schemas.errors import BrokerUnavailable, Disposition, HeadwaterError
from headwater.schemas.topics import (
    EFFECTS,
    EVENTS,
    SKIPPED,
    TOPICS,
    UNRESOLVED,
    WEBHOOKS,
    WORKFLOW_COMMANDS,
    Topic,
)
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.growth_marks import GrowthMark, growth_record, is_growth
from headwater.streams.kafka.membership import inspect_cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.skips import SkipMark
from headwater.streams.kafka.topic_copies import (
    Copies,
    CopyDiffers,
    CopyWriter,
    Digest,
    committed_by_group,
    end_offsets,
)
from headwater.streams.pipeline.growth_routes import (
    Layout,
    Router,
    Treatment,
    note_removals,
    treatment_of,
)

#: Consumer group of workflow workers.
_WORKFLOWS: Final = "headwater-workflows"

#: A record with its targets, and the value of its copies.
Routed: TypeAlias = tuple[Incoming, tuple[int, ...], bytes | None]


class StillRunning(HeadwaterError):
    """Processes run, or have work left; no topic can be copied."""

    disposition = Disposition.HALT
    code = "still_running"


class Growth:
    """Copies all topics.

    Args:
        cluster: The cluster, with the prefix of the old topics.
        copies: The new topics.
        layout: Numbers of partitions.
        placement: Owners of deliveries.
        app_id: Consumer group of the pipeline, with which the names of others begin.
    """

    def __init__(
        self, cluster: Cluster, copies: Copies, layout: Layout, placement: Placement, app_id: str
    ) -> None:
        self._cluster = cluster
        self._copies = copies
        self._layout = layout
        self._placement = placement
        self._app_id = app_id

    # -- checks

    async def refuse_running(self) -> None:
        """Check that no process runs.

        Raises:
            StillRunning: Some do; the message names them.
            BrokerUnavailable: No broker answered.
        """
        members = (await inspect_cluster(self._cluster)).members
        if members:
            names = ", ".join(member.name for member in members)
            raise StillRunning(f"expected no process of this project, found {names}; stop them")

    async def refuse_unread(self, applied: Mapping[tuple[str, int], int]) -> None:
        """Check that consumers have read all of their topics.

        Args:
            applied: What all projections have applied, by topic and partition.

        Raises:
            StillRunning: Some have work left; the message names their topics.
            BrokerUnavailable: No broker answered.
        """
        committed = await committed_by_group(self._cluster)
        read = dict(applied)
        for group, topics in self._readers().items():
            offsets = committed.get(group, {})
            for topic in topics:
                for number in range(self._layout.before):
                    reached = offsets.get((topic, number), 0)
                    read[topic, number] = min(reached, applied.get((topic, number), reached))
        unread = []
        for topic in {topic for topic, _ in read}:
            ends = await end_offsets(self._cluster, topic, range(self._layout.before))
            for number, end in ends.items():
                reached = read.get((topic, number), 0)
                if reached < end and await self._has_record(topic, number, reached, end):
                    unread.append(f"{topic}/{number} from offset {reached}")
        if unread:
            raise StillRunning(
                f"expected everything to be read, found records of {', '.join(sorted(unread))}; "
                "start workers and projectors without a gateway, and stop them when "
                "`headwater doctor` reports no lag"
            )

    def _readers(self) -> dict[str, tuple[str, ...]]:
        return {
            self._app_id: (WEBHOOKS, EVENTS, UNRESOLVED),
            f"{self._app_id}-effects": (EFFECTS,),
            _WORKFLOWS: (WORKFLOW_COMMANDS,),
        }

    async def _has_record(self, topic: str, partition: int, start: int, end: int) -> bool:
        """Return whether offsets have a record: compaction may have removed all of them."""
        reading = read_partition(self._cluster, [topic], partition, start=start, end=end)
        async with aclosing(reading) as batches:
            async for _ in batches:
                return True
        return False

    # -- copying

    async def copy(self, report: Callable[[str], None]) -> None:
        """Copy all topics; continue a copy that was interrupted.

        Args:
            report: Is called with the progress, a line at a time.

        Raises:
            CopyDiffers: Another process writes to the copies; they were deleted.
            BrokerUnavailable: No broker answered. Call it again.
        """
        appender = Appender(cluster=self._cluster, client_id="headwater-topics-grow")
        try:
            await appender.start()
            producer = appender.idempotent_producer()
            for topic in TOPICS:
                await self._copy_topic(producer, topic)
                report(f"copied {self._cluster.topic_in_kafka(topic.name)}")
        except CopyDiffers:
            await self._copies.delete()
            raise
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(
                f"expected copies to be acknowledged by {self._cluster}, found: {error!r}"
            ) from error
        finally:
            await appender.stop()

    async def _copy_topic(self, producer: AIOKafkaProducer, topic: Topic) -> None:
        copy = self._copies.name(topic.name)
        ends, reached = await self._ends(topic)
        for number, end in ends.items():
            targets = self._router(topic, number).targets
            if any(reached[target] != end for target in targets):
                writers = {n: CopyWriter(producer, copy, n, reached[n]) for n in targets}
                await self._copy_partition(topic, number, end, writers)

    async def _copy_partition(
        self, topic: Topic, partition: int, end: int, writers: Mapping[int, CopyWriter]
    ) -> None:
        last_ms = 0
        async with aclosing(self._routed(topic, partition)) as batches:
            async for batch in batches:
                for record, places, value in batch:
                    last_ms = record.timestamp
                    for target in places:
                        await writers[target].put(record, value)
                for writer in writers.values():
                    await writer.flush()
        for writer in writers.values():
            await writer.skip_to(end, last_ms)
            await writer.flush()

    async def _ends(self, topic: Topic) -> tuple[dict[int, int], dict[int, int]]:
        """Return the ends of a topic and of its copy, by partition."""
        copy = self._copies.name(topic.name)
        ends = await end_offsets(self._cluster, topic.name, range(self._layout.before))
        return ends, await end_offsets(self._cluster, copy, range(self._layout.after))

    async def _routed(self, topic: Topic, partition: int) -> AsyncGenerator[Sequence[Routed]]:
        """Yield the records of a partition with their targets, in batches."""
        router = self._router(topic, partition, await self._removed(topic, partition))
        async with aclosing(read_partition(self._cluster, [topic.name], partition)) as batches:
            async for records in batches:
                yield [(record, router.route(record), router.value(record)) for record in records]

    async def _removed(self, topic: Topic, partition: int) -> dict[bytes, set[int]]:
        """Return the keys of a partition's tombstones, with the targets of later records.

        Nothing if every record has one target, or that follows from the key.
        """
        removed: dict[bytes, set[int]] = {}
        router = self._router(topic, partition)
        is_divided = router.treatment is Treatment.DIVIDED and len(router.targets) > 1
        if not is_divided or router.is_owner_in_key:
            return removed
        async with aclosing(read_partition(self._cluster, [topic.name], partition)) as batches:
            async for records in batches:
                note_removals(removed, records, router)
        return removed

    def _router(
        self,
        topic: Topic,
        partition: int,
        removed: Mapping[bytes, AbstractSet[int]] = MappingProxyType({}),
    ) -> Router:
        return Router(topic, partition, self._layout, self._placement, removed)

    # -- verification

    async def verify(self, report: Callable[[str], None]) -> int:
        """Compare all copies with their topics, by count and hash; return the number of records.

        Raises:
            CopyDiffers: A copy differs. It was deleted, so that it can be copied again.
            BrokerUnavailable: No broker answered.
        """
        total = 0
        for topic in TOPICS:
            ends, reached = await self._ends(topic)
            differences = []
            for number, end in ends.items():
                targets = self._layout.targets(number)
                if end or any(reached[target] for target in targets):
                    count, problems = await self._compare(topic, number, end, reached)
                    total += count
                    differences += problems
            if differences:
                await self._copies.delete([topic.name])
                raise CopyDiffers(
                    f"expected equal copies, found: {'; '.join(differences)}. The copy of "
                    f"{topic.name} was deleted; run the command again"
                )
            report(f"verified {self._cluster.topic_in_kafka(topic.name)}")
        return total

    async def _compare(
        self, topic: Topic, partition: int, end: int, reached: Mapping[int, int]
    ) -> tuple[int, list[str]]:
        """Return the number of records of a partition, and how its copies differ."""
        copy, router = self._copies.name(topic.name), self._router(topic, partition)
        expected = {target: Digest() for target in self._layout.targets(partition)}
        count = 0
        async with aclosing(self._routed(topic, partition)) as routed:
            async for batch in routed:
                count += len(batch)
                for record, places, value in batch:
                    for target in places:
                        expected[target].add(record, value)
        differences = []
        for target, digest in expected.items():
            actual, expected_end = Digest(), end if target in router.targets else 0
            async with aclosing(read_partition(self._cluster, [copy], target)) as batches:
                async for records in batches:
                    for record in records:
                        actual.add(record, record.value)
            if (str(digest), expected_end) != (str(actual), reached[target]):
                differences.append(
                    f"{copy}/{target}: expected {digest} up to offset {expected_end}, found "
                    f"{actual} up to {reached[target]}"
                )
        return count, differences

    # -- consumer groups

    async def commit(self) -> None:
        """Have all consumer groups continue in the new topics where they ended in the old ones.

        Raises:
            BrokerUnavailable: The coordinator did not answer, or refused.
        """
        catalog = {topic.name: topic for topic in TOPICS}
        for group, committed in (await committed_by_group(self._cluster)).items():
            is_ours = group.startswith(self._app_id) or any(t in catalog for t, _ in committed)
            offsets: dict[tuple[str, int], int] = {}
            for (topic, number), offset in committed.items():
                if topic not in catalog:  # a source, or a topic of authors
                    offsets[topic, number] = offset
                elif number < self._layout.before:
                    name = self._copies.name(topic)
                    for target in self._router(catalog[topic], number).targets:
                        offsets[name, target] = offset
            if is_ours and offsets:
                await self._copies.commit(group, offsets)

    async def repeat_skips(self) -> None:
        """Repeat the marks of skipped records for the partitions where these may be now.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        divided = {t.name for t in TOPICS if treatment_of(t) is Treatment.DIVIDED}
        marks: list[Outgoing] = []
        async with aclosing(read_partition(self._cluster, [SKIPPED], 0)) as batches:
            async for records in batches:
                for record in records:
                    if is_growth(record):
                        continue
                    mark = msgspec.json.decode(record.value or b"", type=SkipMark)
                    targets = self._layout.targets(mark.partition)[1:]
                    for target in targets if mark.topic in divided else ():
                        repeated = msgspec.structs.replace(mark, partition=target)
                        key = f"{mark.topic}/{target}@{mark.offset}".encode()
                        value = msgspec.json.encode(repeated)
                        marks.append(Outgoing(self._copies.name(SKIPPED), 0, key, value))
        await self._append(marks)

    async def note(self, prefix: str) -> None:
        """Write the growth to the log, too: a new database of the same topics needs it.

        Args:
            prefix: Prefix of the new topics.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        before = range(self._layout.before)
        ends = await end_offsets(self._cluster, WEBHOOKS, before)
        mark = GrowthMark(self._layout.before, [ends[number] for number in before])
        await self._append([growth_record(self._copies.name(SKIPPED), prefix, mark)])

    async def _append(self, records: Sequence[Outgoing]) -> None:
        appender = Appender(cluster=self._cluster, client_id="headwater-topics-grow")
        try:
            await appender.append(records)
        finally:
            await appender.stop()
