"""How far consumer groups are behind: in records, and in time.

A gateway asks for all groups, so lag is also known of a group without members, and of a partition
that its owner does not read.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import TopicPartition

from headwater.streams.kafka.cluster import Cluster, admin_client, standalone_consumer


class PartitionLag(NamedTuple):
    """Progress of a consumer group on a partition.

    Attributes:
        position: First offset that the group has not committed, or first offset that there is.
        end: End of the partition.
    """

    group: str
    topic: str
    partition: int
    position: int
    end: int


async def read_lags(cluster: Cluster, groups: Mapping[str, Sequence[str]]) -> list[PartitionLag]:
    """Return the progress of groups on all partitions of their topics.

    Args:
        cluster: The cluster.
        groups: Topics of every group. Topics that are missing are left out.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with admin_client(cluster) as admin, standalone_consumer(cluster) as consumer:
        wanted = {topic for topics in groups.values() for topic in topics}
        present = sorted(wanted & set(await admin.list_topics()))
        partitions: dict[str, list[TopicPartition]] = {
            topic["topic"]: [
                TopicPartition(topic["topic"], partition["partition"])
                for partition in topic["partitions"]
            ]
            for topic in await admin.describe_topics(present)
        }
        everywhere = [tp for tps in partitions.values() for tp in tps]
        ends = await consumer.end_offsets(everywhere)
        firsts = await consumer.beginning_offsets(everywhere)
        lags = []
        for group, topics in groups.items():
            tps = [tp for topic in topics for tp in partitions.get(topic, ())]
            committed = await admin.list_consumer_group_offsets(group, partitions=tps)
            for tp in tps:
                known = committed.get(tp)
                position = max(known.offset if known else 0, firsts[tp])
                lags.append(PartitionLag(group, tp.topic, tp.partition, position, ends[tp]))
        return lags


#: Points of a partition: an hour, at one every 15 s. Beyond, half of the older half is removed.
_POINTS_MAX: Final = 240


class EndHistory:
    """When the ends of partitions were at which offset, so that the age of a record can be bounded.

    The record at an offset was appended after the last time at which the end was not beyond it. So
    no record has to be read. An age is at most one interval of the observations too large.
    """

    def __init__(self) -> None:
        self._ends: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        #: Latest time at which the end was at the offset of the same index.
        self._times_s: defaultdict[tuple[str, int], list[float]] = defaultdict(list)

    def observe(self, lags: Iterable[PartitionLag], now_s: float) -> None:
        """Record the current ends."""
        for partition, end in {(lag.topic, lag.partition): lag.end for lag in lags}.items():
            ends, times_s = self._ends[partition], self._times_s[partition]
            if ends and end < ends[-1]:  # The topic was created again, or lost its end.
                ends.clear()
                times_s.clear()
            if ends and end == ends[-1]:
                times_s[-1] = now_s
                continue
            ends.append(end)
            times_s.append(now_s)
            if len(ends) > _POINTS_MAX:
                half = len(ends) // 2
                del ends[1:half:2], times_s[1:half:2]

    def age_s(self, lag: PartitionLag, now_s: float) -> float:
        """Return how long the oldest record that waits has waited; 0 if none waits.

        A record from before the first observation counts from there.
        """
        if lag.position >= lag.end:
            return 0.0
        ends = self._ends[lag.topic, lag.partition]
        index = bisect_right(ends, lag.position) - 1
        times_s = self._times_s[lag.topic, lag.partition]
        return max(0.0, now_s - times_s[max(0, index)])
