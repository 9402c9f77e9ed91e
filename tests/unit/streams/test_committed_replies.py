"""A worker commits how far commands have replies, and only when that has changed."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError

from headwater.schemas.topics import WORKFLOW_COMMANDS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.consumer_groups import Committed
from headwater.streams.ownership.deadlines import SessionDeadlines
from headwater.streams.workflows.command_reader import CommandHandling
from headwater.streams.workflows.ownership import Handover, Ownership


class Group:
    """A group that fails commits while it rebalances."""

    def __init__(self) -> None:
        self.commits: list[dict[int, int]] = []
        self.is_rebalancing = False

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        if self.is_rebalancing:
            raise CommitFailedError
        assert {tp.topic for tp in offsets} == {WORKFLOW_COMMANDS}
        self.commits.append({tp.partition: position.offset for tp, position in offsets.items()})


def test_an_offset_is_committed_again_only_when_it_changed_or_after_an_assignment():
    async def scene() -> None:
        partitions = {number: SimpleNamespace(number=number, replied=0) for number in range(3)}
        driver: Any = SimpleNamespace(partitions=partitions, release_confirmed=lambda: None)
        unused: Any = None
        ownership = Ownership(
            cluster=Cluster("localhost:1"),
            name="worker",
            member=None,
            driver=driver,
            workflow_log=unused,
            deadlines=SessionDeadlines.create(),
            handover=Handover(unused, unused, unused, unused),
            handling=CommandHandling(unused, unused),
        )
        group: Any = Group()
        ownership._member = group
        partitions[0].replied, partitions[1].replied = 5, 7
        group.is_rebalancing = True
        await ownership.commit()
        group.is_rebalancing = False
        await ownership.commit()
        await ownership.commit()
        # Kafka has lost commands: an offset may also decrease.
        partitions[1].replied = 6
        await ownership.commit()
        ownership._reader = SimpleNamespace(assign=lambda _: None)  # type: ignore[assignment]
        await ownership.assigned(frozenset())
        await ownership.commit()
        assert group.commits == [{0: 5, 1: 7}, {1: 6}, {0: 5, 1: 6}]

    asyncio.run(scene())
