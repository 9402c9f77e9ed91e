"""A copy of a topic that has lost records is not current."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka import folded_topic
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import FoldedTopic


def test_a_topic_with_fewer_records_than_were_read_is_noticed(monkeypatch: pytest.MonkeyPatch):
    ends = iter([3, 2, 0, 3, 4])
    read: list[tuple[int, int]] = []

    class Ends:
        def __init__(self, *_: object) -> None: ...

        async def ends(self, topics: list[str], _: int) -> dict[str, int]:
            return {topics[0]: next(ends)}

    async def read_partition(
        *_: object, start: int, end: int
    ) -> AsyncIterator[list[folded_topic.Incoming]]:
        read.append((start, end))
        yield []

    monkeypatch.setattr(folded_topic, "Offsets", Ends)
    monkeypatch.setattr(folded_topic, "read_partition", read_partition)

    async def scenario() -> None:
        topic = FoldedTopic(
            "api-keys", None, lambda *_: None, cluster=Cluster("127.0.0.1:1"), client_id="keys"
        )
        await topic.catch_up()
        for found in (2, 0):
            with pytest.raises(BrokerUnavailable, match=f"3 records in api-keys, found {found}:"):
                await topic.catch_up()
        # Restored: what came meanwhile is read.
        await topic.catch_up()
        await topic.catch_up()
        assert read == [(0, 3), (3, 4)]

    asyncio.run(scenario())
