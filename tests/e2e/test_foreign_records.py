"""Records that no release of ours wrote, in the topics into which programs of others may write.

They look as if a newer release had written them: their schema ids, of a registry of somebody
else's, are a little greater than ours.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.schemas.avro_schemas import IDS
from headwater.schemas.topics import DEAD_LETTERS, WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import REASON, key_of, text_header
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from tests.commands import called
from tests.e2e.deliveries import daily
from tests.e2e.system import PARTITIONS, System, opened

FOREIGN = b"\x00" + (max(IDS.values()) + 2).to_bytes(4, "big") + b"somebody else's"
OUR_KEY = b"0123456789abcdef" * 2


@pytest.fixture
def system(scratch: Path, fresh_database: str) -> Iterator[System]:
    directory = scratch / "foreign"
    directory.mkdir()
    with opened(System(directory, fresh_database), ("gateway", "worker", "project")) as result:
        yield result


def put(system: System, key: bytes) -> list[int]:
    """Puts a foreign record into every partition of `webhooks`; tells where they lie."""

    async def append() -> list[int]:
        appender = Appender(cluster=Cluster(system.bootstrap), client_id="somebody-else")
        try:
            for partition in range(PARTITIONS):
                await appender.append([Outgoing(WEBHOOKS, partition, key, FOREIGN)])
        finally:
            await appender.stop()
        return [
            record.offset
            for partition in range(PARTITIONS)
            async for records in read_partition(Cluster(system.bootstrap), [WEBHOOKS], partition)
            for record in records
            if (record.key, record.value) == (key, FOREIGN)
        ]

    return asyncio.run(append())


def letters(system: System) -> list[Incoming]:
    async def read() -> list[Incoming]:
        return [
            record
            for partition in range(PARTITIONS)
            async for records in read_partition(
                Cluster(system.bootstrap), [DEAD_LETTERS], partition
            )
            for record in records
        ]

    return asyncio.run(read())


def reasons(system: System, key: bytes) -> list[str | None]:
    result = [record for record in letters(system) if key_of(record) == key]
    assert all(record.value == FOREIGN for record in result)
    return [text_header(record, REASON) for record in result]


def skip(system: System, partition: int, offset: int) -> subprocess.CompletedProcess[str]:
    where = [WEBHOOKS, str(partition), str(offset), "--kafka", system.bootstrap]
    return called("topics", "skip", *where, "--yes", "--json")


def processed(system: System) -> int:
    with psycopg.connect(system.dsn) as connection:
        query = "select count(*) from webhook_outcomes where status = 'processed'"
        (count,) = connection.execute(query).fetchone() or (0,)
        return int(count)


def test_a_record_that_is_not_ours_stops_nothing_and_an_operator_skips_what_does(
    system: System,
) -> None:
    put(system, b"their-key")
    system.deliver([daily(number, 1, number, known=True) for number in range(8)])
    system.wait(lambda: processed(system) == 8, "deliveries after records that are not ours")
    system.wait(
        lambda: reasons(system, b"their-key") == ["unknown_schema"] * PARTITIONS,
        "a dead letter of each",
    )

    offsets = put(system, OUR_KEY)
    system.deliver([daily(number, 2, number, known=True) for number in range(8)])
    system.wait(lambda: system.says("worker", "`headwater topics skip`"), "the worker to wait")
    none = skip(system, 0, offsets[0] + 100_000)
    assert (none.returncode, none.stderr.splitlines()[-1][:35]) == (
        1,
        "headwater: expected a record at web",
    )
    ours = skip(system, 0, 1)
    assert (ours.returncode, ours.stdout) == (1, "")
    assert "found a webhook_received, which usually blocks nothing" in ours.stderr
    for partition, offset in enumerate(offsets):
        done = skip(system, partition, offset)
        assert done.returncode == 0, done.stderr
        reported = json.loads(done.stdout)
        assert (reported["topic"], reported["partition"], reported["offset"]) == (
            WEBHOOKS,
            partition,
            offset,
        )
        assert reported["fault"] in done.stderr
    assert reasons(system, OUR_KEY) == ["skipped"] * PARTITIONS
    assert processed(system) == 8
    system.stop("worker")
    system.start("worker")
    system.wait(lambda: processed(system) == 16, "deliveries after the records that were skipped")
    system.wait(
        lambda: system.says("worker", "is skipped, as an operator marked it"), "what was skipped"
    )
