"""Goal: after a wipe nothing of a user is left anywhere, whoever dies while it is carried out.

Method: the whole system with deliveries of all fates about one user, who is wiped while worker and
gateway are killed; then topics are compacted at once, and all bytes there are, are looked through.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import httpx2
import psycopg
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headwater.gateway.builtin.blobs.store import reports_of
from headwater.gateway.cli.api import Api, CliEnvironment
from headwater.gateway.cli.sync import Mirror
from headwater.gateway.client.requests import path
from headwater.schemas.topics import TOPICS, Cleanup
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Outgoing
from tests.e2e.deliveries import body, mixed
from tests.e2e.system import ADMIN, PARTITIONS, READER, System, opened
from tests.waiting import ANSWERED_WITHIN_S

#: Whatever deliveries may carry has to be found, and forgotten.
USER = "user_to/be forgotten?#1"
ABOUT = "/admin/user" + path(USER)
SUBJECT = "terra-of-the-forgotten"
MARKER = "a lighthouse at dusk"
TRACES_OF_THEM = (USER.encode(), SUBJECT.encode(), MARKER.encode())
PARTS = ("worker", "gateway", "project", "worker2")
#: The system's own workflows alone.
OF_THE_SYSTEM = ("--app", "headwater")
NO_DIFFERENCE = {"added": 0, "removed": 0, "changed": 0, "examples": []}
AT_ONCE = {
    "segment.ms": "50",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "0",
    "retention.ms": "-1",
    "cleanup.policy": "compact",
}


@pytest.fixture
def system(scratch: Path, fresh_database: str) -> Iterator[System]:
    directory = scratch / "wipe"
    directory.mkdir()
    with opened(System(directory, fresh_database)) as system:
        system.start("worker2", *OF_THE_SYSTEM)
        yield system


def theirs(kind: str, day: int, *, named: bool, steps: int = 7) -> bytes:
    user = {"user_id": SUBJECT, "provider": "GARMIN", "reference_id": USER if named else None}
    times = {"start_time": f"2026-06-{day:02}T00:00:00Z", "end_time": f"2026-06-{day:02}T07:00:00Z"}
    record = {"metadata": times, "distance_data": {"steps": steps}, "note": MARKER}
    return body(kind, user=user, data=[record])


def all_fates() -> list[bytes]:
    user = {"user_id": SUBJECT, "provider": "GARMIN", "reference_id": USER}
    rubbish = json.dumps({"type": "daily", "user": user, "data": MARKER}).encode()
    return [
        theirs("daily", 1, named=False),  # before the connection: it waits
        body("auth", status="success", user=user, note=MARKER),
        *(theirs(kind, day, named=True) for kind in ("daily", "sleep") for day in (2, 3)),
        *(theirs(kind, day, named=False) for kind in ("daily", "sleep") for day in (4, 5)),
        theirs("daily", 6, named=True, steps=-5),
        theirs("nutrition", 7, named=False),
        rubbish,
    ]


def in_topics(bootstrap: str) -> list[str]:
    """Where records name them, in any topic."""

    names = [topic.name for topic in TOPICS]

    async def read() -> list[str]:
        result = []
        for partition in range(PARTITIONS):
            async for records in read_partition(Cluster(bootstrap), names, partition):
                for record in records:
                    parts = [record.key, record.value, *(v for _, v in record.headers)]
                    data = b"\n".join(part for part in parts if part)
                    if any(trace in data for trace in TRACES_OF_THEM):
                        result.append(f"{record.topic}/{partition}@{record.offset}")
        return result

    return asyncio.run(read())


BY_AGE = [topic.name for topic in TOPICS if topic.retention_ms and topic.cleanup is Cleanup.DELETE]
COMPACTED = [topic.name for topic in TOPICS if topic.cleanup is not Cleanup.DELETE]


async def _compact_at_once(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        (broker,) = (await admin.describe_cluster())["brokers"]
        node, topic = ConfigResourceType.BROKER, ConfigResourceType.TOPIC
        often = ConfigResource(node, str(broker["node_id"]), {"log.cleaner.backoff.ms": "100"})
        item = [ConfigResource(topic, name, AT_ONCE) for name in COMPACTED]
        await admin.alter_configs([often, *item])
        # What goes by age, within a week: as if that was over.
        places = [TopicPartition(name, number) for name in BY_AGE for number in range(PARTITIONS)]
        await admin.delete_records(
            {position: RecordsToDelete(before_offset=-1) for position in places}
        )
    finally:
        await admin.close()


async def _fill(bootstrap: str) -> None:
    """The last segment of a partition is never compacted: ours lie there."""
    appender = Appender(cluster=Cluster(bootstrap), client_id="filler")
    try:
        for number in range(2):
            await asyncio.sleep(0.1)  # longer than a segment is open
            await appender.append(
                [
                    Outgoing(name, partition, b"filler-%d" % number, b"x")
                    for name in COMPACTED
                    for partition in range(PARTITIONS)
                ]
            )
    finally:
        await appender.stop()


def left_after_compaction(bootstrap: str) -> list[str]:
    """Where records name them, after the broker has come by; tombstones go the second time."""
    asyncio.run(_fill(bootstrap))
    return in_topics(bootstrap)


def in_postgres(dsn: str) -> list[str]:
    """The tables that name them."""
    with psycopg.connect(dsn) as connection:
        names = connection.execute(
            "select tablename from pg_tables where schemaname = 'headwater'"
        ).fetchall()
        result = []
        for (name,) in names:
            rows = connection.execute(f'select t::text from "{name}" t').fetchall()  # noqa: S608
            text = "\n".join(row for (row,) in rows)
            hexed = [trace.hex() for trace in TRACES_OF_THEM]
            if any(trace in text for trace in [*(t.decode() for t in TRACES_OF_THEM), *hexed]):
                result.append(name)
    return result


def in_files(directory: Path) -> list[str]:
    """The files that name them.

    Not those of the broker, which has compacted nothing yet, and not what the workflow worker has
    said of steps that failed, which goes when its log does.
    """
    return [
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file()
        and path.relative_to(directory).parts[0] not in ("kafka", "worker2.log")
        and any(trace in path.read_bytes() for trace in TRACES_OF_THEM)
    ]


def mirrored(system: System, database: Path) -> None:
    with click.Context(click.Command("sync"), obj=CliEnvironment()):
        api = Api(system.url(), READER)
        Mirror(database, api.exchange, report=print, sleep=time.sleep).sync()


def done(system: System) -> int:
    with psycopg.connect(system.dsn) as connection:
        result = connection.execute("select count(*) from wipes where done_at is not null")
        return int(result.fetchone()[0])  # type: ignore[index]


def instances(system: System) -> set[str]:
    """The workflows that have instances about them."""
    with psycopg.connect(system.dsn) as connection:
        query = "select workflow_name from workflow_instance where params::text like %s"
        return {name for (name,) in connection.execute(query, [f"%{USER}%"])}


def counts(system: System) -> dict[str, int]:
    answer = httpx2.get(f"{system.url()}{ABOUT}", headers=ADMIN, timeout=ANSWERED_WITHIN_S)
    return {name: number for name, number in answer.json()["counts"].items() if number}


# Each wait has a bound of its own. On a busy machine all of them together, and the start of Kafka,
# which counts for the first test that needs it, take as long as a test usually may.
@pytest.mark.timeout(900)
def test_nothing_is_left_of_a_user_who_was_wiped_while_parts_were_killed(system: System):
    blob = system.directory / "data" / "blobs" / reports_of(USER) / "report.pdf"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(MARKER.encode())
    copy = system.directory / "copy.sqlite"
    system.deliver(all_fates() + mixed(1, 40))
    system.wait(lambda: counts(system).get("raw_events", 0) >= len(all_fates()) - 1, "their rows")
    requested = {"user_id": USER, "rate": 1}
    replay = httpx2.post(
        f"{system.url()}/admin/replays", headers=ADMIN, json=requested, timeout=ANSWERED_WITHIN_S
    )
    assert replay.status_code == 202, replay.text
    # That of the replay names the user's digest alone.
    system.wait(lambda: instances(system) == {"terra-backfill"}, "instances")
    mirrored(system, copy)
    rebuilt(system, "daily_summary")
    assert any("rebuilds" in path for path in in_files(system.directory))
    assert in_topics(system.bootstrap)
    assert in_postgres(system.dsn)

    _wipe_and_kill(system)
    system.wipe(USER)
    assert not counts(system)
    mirrored(system, copy)
    assert system.deliver(all_fates()) == len(all_fates()), "copies are still known"
    for projection in ("workflows", "daily_summary"):
        assert rebuilt(system, projection) == NO_DIFFERENCE
    for part in PARTS:
        system.stop(part)
    assert in_files(system.directory) == []
    assert in_postgres(system.dsn) == []
    asyncio.run(_compact_at_once(system.bootstrap))
    system.wait(lambda: not left_after_compaction(system.bootstrap), "compaction")


def rebuilt(system: System, projection: str) -> dict[str, object]:
    """How the rows come out that are made again."""
    with httpx2.Client(
        base_url=f"{system.url()}/admin/rebuilds", headers=ADMIN, timeout=ANSWERED_WITHIN_S
    ) as client:
        begun = client.post("", json={"projection": projection}).json()

        def found() -> dict[str, Any]:
            return dict(client.get(f"/{begun['id']}").json())

        system.wait(lambda: found()["state"] == "compared", "the rebuild to be compared")
        assert found()["progress"]["total"] > 0
        return dict(found()["difference"])


def _wipe_and_kill(system: System) -> None:
    """Kills everybody when the first partition is done; what was ordered is carried out."""

    def order() -> None:
        with suppress(httpx2.TransportError):
            httpx2.post(f"{system.url()}{ABOUT}/wipe", headers=ADMIN, timeout=ANSWERED_WITHIN_S)

    ordering = threading.Thread(target=order)
    ordering.start()
    system.wait(lambda: done(system) > 0, "a partition to be done")
    for part in PARTS:
        system.kill(part)
    ordering.join()
    for part in PARTS:
        system.start(part, *(OF_THE_SYSTEM if part == "worker2" else ()))
    system.wait(lambda: done(system) == PARTITIONS, "all partitions to be done")
