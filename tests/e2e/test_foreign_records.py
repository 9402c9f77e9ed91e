"""Records that no release of ours wrote, in the topics into which programs of others may write.

They look as if a newer release had written them: their schema ids, of a registry of somebody
else's, are a little greater than ours.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.schemas.catalogue import IDS
from headwater.schemas.topics import DEAD_LETTERS, WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import REASON, key_of, text_header
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from tests.e2e.deliveries import daily
from tests.e2e.house import PARTITIONS, House, opened

FOREIGN = b"\x00" + (max(IDS.values()) + 2).to_bytes(4, "big") + b"somebody else's"
OUR_KEY = b"0123456789abcdef" * 2


@pytest.fixture
def house(scratch: Path, fresh_database: str) -> Iterator[House]:
    directory = scratch / "foreign"
    directory.mkdir()
    with opened(House(directory, fresh_database), ("gateway", "worker", "project")) as found:
        yield found


def put(house: House, key: bytes) -> list[int]:
    """Puts a foreign record into every partition of `webhooks`; tells where they lie."""

    async def append() -> list[int]:
        appender = Appender(cluster=Cluster(house.bootstrap), client_id="somebody-else")
        try:
            for partition in range(PARTITIONS):
                await appender.append([Outgoing(WEBHOOKS, partition, key, FOREIGN)])
        finally:
            await appender.stop()
        return [
            record.offset
            for partition in range(PARTITIONS)
            async for records in read_partition(Cluster(house.bootstrap), [WEBHOOKS], partition)
            for record in records
            if (record.key, record.value) == (key, FOREIGN)
        ]

    return asyncio.run(append())


def letters(house: House) -> list[Incoming]:
    async def read() -> list[Incoming]:
        return [
            record
            for partition in range(PARTITIONS)
            async for records in read_partition(Cluster(house.bootstrap), [DEAD_LETTERS], partition)
            for record in records
        ]

    return asyncio.run(read())


def reasons(house: House, key: bytes) -> list[str | None]:
    found = [record for record in letters(house) if key_of(record) == key]
    assert all(record.value == FOREIGN for record in found)
    return [text_header(record, REASON) for record in found]


def skip(house: House, partition: int, offset: int) -> subprocess.CompletedProcess[str]:
    where = [WEBHOOKS, str(partition), str(offset), "--kafka", house.bootstrap]
    return subprocess.run(
        [sys.executable, "-m", "headwater", "topics", "skip", *where, "--yes", "--json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def processed(house: House) -> int:
    with psycopg.connect(house.dsn) as connection:
        query = "select count(*) from webhook_outcomes where status = 'processed'"
        (count,) = connection.execute(query).fetchone() or (0,)
        return int(count)


def test_a_record_that_is_not_ours_stops_nothing_and_an_operator_skips_what_does(
    house: House,
) -> None:
    put(house, b"their-key")
    house.deliver([daily(number, 1, number, known=True) for number in range(8)])
    house.wait(lambda: processed(house) == 8, "deliveries after records that are not ours")
    assert reasons(house, b"their-key") == ["unknown_schema"] * PARTITIONS

    offsets = put(house, OUR_KEY)
    house.deliver([daily(number, 2, number, known=True) for number in range(8)])
    house.wait(lambda: house.says("worker", "`headwater topics skip`"), "the worker to wait")
    none = skip(house, 0, offsets[0] + 100_000)
    assert (none.returncode, none.stderr.splitlines()[-1][:35]) == (
        1,
        "headwater: expected a record at web",
    )
    ours = skip(house, 0, 1)
    assert (ours.returncode, ours.stdout) == (1, "")
    assert "found a webhook_received, which usually blocks nothing" in ours.stderr
    for partition, offset in enumerate(offsets):
        done = skip(house, partition, offset)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["topic"], told["partition"], told["offset"]) == (WEBHOOKS, partition, offset)
        assert told["fault"] in done.stderr
    assert reasons(house, OUR_KEY) == ["skipped"] * PARTITIONS
    assert processed(house) == 8
    house.stop("worker")
    house.start("worker")
    house.wait(lambda: processed(house) == 16, "deliveries after the records that were skipped")
    assert house.says("worker", "is skipped, as an operator marked it")
