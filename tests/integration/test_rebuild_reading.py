"""A rebuild whose deliveries are read by other processes makes the rows that it makes alone."""

import asyncio
from collections.abc import AsyncGenerator

import psutil
import pytest

from headwater.gateway.builtin.rebuilding.reading import ReadRequest, read_in_child
from headwater.gateway.settings.settings import Settings
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets
from headwater.streams.kafka.records import Outgoing
from headwater.streams.pipeline.rebuild_reader import Chunk, Span, read_here
from headwater.streams.pipeline.rebuilding import Rebuild
from tests.e2e.deliveries import mixed
from tests.fakes.memory_store import MemoryStore
from tests.unit.streams.test_rebuilding import DAY_MS, PARTITIONS, PLACEMENT, log_of, rows_of

MODULE = "headwater.gateway.builtin.rebuilding.reading"


async def ends_of(cluster: Cluster) -> list[int]:
    offsets = Offsets(cluster, "rebuild-reading")
    try:
        return [(await offsets.ends([WEBHOOKS], number))[WEBHOOKS] for number in range(PARTITIONS)]
    finally:
        await offsets.stop()


async def filled(cluster: Cluster) -> list[Span]:
    """Where the deliveries lie that were appended for this test."""
    starts = await ends_of(cluster)
    appender = Appender(cluster=cluster, client_id="test")
    for number, records in enumerate(log_of(mixed(14, 400))):
        await appender.append([Outgoing(WEBHOOKS, number, one.key, one.value) for one in records])
    await appender.stop()
    return list(map(Span, range(PARTITIONS), starts, await ends_of(cluster)))


async def nothing() -> None:
    """Nobody is told."""


async def rows(readers: list[AsyncGenerator[Chunk]], spans: list[Span]) -> object:
    stores = [MemoryStore() for _ in range(PARTITIONS)]
    rebuild = Rebuild(PLACEMENT, stores, DAY_MS, DAILY_SUMMARY)
    await rebuild.follow([span.end for span in spans], readers, nothing)
    assert not rebuild.spans([span.end for span in spans])
    return rows_of(rebuild, DAILY_SUMMARY)


def test_rows_are_the_same_whoever_reads_the_deliveries(topics: str) -> None:
    cluster, settings = Cluster(topics), Settings(kafka=topics)

    async def scenario() -> None:
        spans = await filled(cluster)
        reading = Rebuild(
            PLACEMENT, [MemoryStore() for _ in range(PARTITIONS)], DAY_MS, DAILY_SUMMARY
        ).reader
        alongside = [
            read_in_child(settings, ReadRequest(DAILY_SUMMARY.name, PARTITIONS, some))
            for some in (spans[::2], spans[1::2])
        ]
        result = await rows(alongside, spans)
        assert result
        assert result == await rows([read_here(cluster, reading, spans)], spans)

    asyncio.run(scenario())


def test_a_rebuild_fails_when_a_process_that_reads_for_it_is_killed(topics: str) -> None:
    cluster, settings = Cluster(topics), Settings(kafka=topics)

    async def scenario() -> None:
        first, *others = await filled(cluster)
        # It waits for one more than there is.
        spans = [first, others[0]._replace(end=others[0].end + 1)]
        reader = read_in_child(settings, ReadRequest(DAILY_SUMMARY.name, PARTITIONS, spans))
        assert (await anext(reader)).end == first.end
        children = psutil.Process().children()
        (process,) = [item for item in children if MODULE in " ".join(item.cmdline())]
        process.kill()
        with pytest.raises(BrokerUnavailable, match="exited with -9"):
            async for _ in reader:
                pass

    asyncio.run(scenario())
