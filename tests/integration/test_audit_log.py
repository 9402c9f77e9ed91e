"""Entries of the audit log on a real broker: in one order, and never taken back."""

import asyncio

import pytest

from headwater.schemas.codec import decode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import OperationAudited
from headwater.schemas.topics import AUDIT
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.pipeline.request_logs import PARTITION, AuditLog

#: The port of nobody: refused at once.
NOBODY = "127.0.0.1:1"
GATEWAYS = 3
EACH = 40


def entry(name: str) -> OperationAudited:
    return OperationAudited(
        id=name,
        key_id="admin:00000000",
        project_id="default",
        action="tests.write",
        resource="/tests",
        result="success",
        ip="127.0.0.1",
        user_agent="",
        metadata="{}",
        at_ms=1,
    )


async def in_log(bootstrap: str, run: str) -> list[str]:
    """The entries of a test, in the order of the log."""
    result = []
    async for records in read_partition(Cluster(bootstrap), [AUDIT], PARTITION):
        result += [decode(record.value, OperationAudited).id for record in records]
    return [item for item in result if item.startswith(run)]


async def connected(log: AuditLog, name: str) -> None:
    """Waits until a log has connected: until then it says that it has not."""

    async with asyncio.timeout(60):
        while True:
            try:
                return await log.append(entry(name))
            except BrokerUnavailable:
                await asyncio.sleep(0.05)


def test_what_several_gateways_append_at_once_is_there_once_and_in_the_order_of_each(topics: str):
    async def scenario() -> list[str]:
        logs = [AuditLog(cluster=Cluster(topics), append_timeout_s=60) for _ in range(GATEWAYS)]
        try:
            for number, log in enumerate(logs):
                await log.start()
                await connected(log, f"once-{number}-begin")

            async def one_by_one(number: int, log: AuditLog) -> None:
                for count in range(EACH):
                    await log.append(entry(f"once-{number}-{count:03}"))

            await asyncio.gather(*(one_by_one(*log) for log in enumerate(logs)))
            return await in_log(topics, "once-")
        finally:
            await asyncio.gather(*(log.stop() for log in logs))

    result = asyncio.run(scenario())
    assert len(result) == len(set(result)) == GATEWAYS * (EACH + 1)
    for number in range(GATEWAYS):
        of_one = [item for item in result if item.startswith(f"once-{number}-0")]
        assert of_one == sorted(of_one)


def test_without_kafka_it_says_so(topics: str):
    async def scenario() -> None:
        log = AuditLog(cluster=Cluster(NOBODY), append_timeout_s=0.2)
        await log.start()
        try:
            with pytest.raises(BrokerUnavailable, match="no connection yet"):
                await log.append(entry("nobody"))
        finally:
            await log.stop()

    asyncio.run(scenario())


def test_an_entry_that_nobody_waits_for_any_more_is_appended(topics: str):
    async def scenario() -> None:
        log = AuditLog(cluster=Cluster(topics), append_timeout_s=60)
        await log.start()
        try:
            await connected(log, "left-begin")
            leaving = asyncio.create_task(log.append(entry("left")))
            await asyncio.sleep(0)  # It is on its way.
            leaving.cancel()
            await asyncio.wait([leaving])
            assert leaving.cancelled()
            await log.append(entry("left-end"))
            assert await in_log(topics, "left") == ["left-begin", "left", "left-end"]
        finally:
            await log.stop()

    asyncio.run(scenario())
