"""A topic that is folded: what a fold that fails leaves behind."""

import asyncio
import gc
import weakref

import pytest

from headwater.schemas.avro_schemas import IDS
from headwater.schemas.errors import NotYetReadable
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import FoldedTopic
from tests.integration.consumers import open_consumers
from tests.integration.test_publishing import a_topic

#: As a later release writes it.
NEWER = b"\x00" + (max(IDS.values()) + 1).to_bytes(4, "big")


def test_a_fold_that_meets_a_newer_record_leaves_no_consumer_open(topics: str):
    async def scenario() -> None:
        name = await a_topic(topics)
        topic = FoldedTopic(
            name, None, lambda _, __: None, cluster=Cluster(topics), client_id="folds"
        )
        try:
            before = open_consumers()
            with pytest.raises(NotYetReadable):
                await topic.append("name", NEWER)
            # What asks for the end of the topic stays open.
            assert len(open_consumers()) == len(before) + 1
        finally:
            await topic.stop()

    asyncio.run(scenario())


class Outcome:
    """What applying a record gave."""


def test_only_the_writer_keeps_the_outcome_of_its_record(topics: str):
    outcomes: weakref.WeakSet[Outcome] = weakref.WeakSet()

    def apply(count: list[int], _: bytes | None) -> Outcome:
        count[0] += 1
        outcomes.add(outcome := Outcome())
        return outcome

    async def scenario() -> None:
        name = await a_topic(topics)
        ours, others = (
            FoldedTopic(name, [0], apply, cluster=Cluster(topics), client_id=client)
            for client in ("ours", "others")
        )
        try:
            kept = [await ours.append("name", b"value") for _ in range(3)]
            await others.catch_up()
            gc.collect()
            assert set(outcomes) == set(kept)
            assert ours.fold == others.fold == [3]
        finally:
            await ours.stop()
            await others.stop()

    asyncio.run(scenario())
