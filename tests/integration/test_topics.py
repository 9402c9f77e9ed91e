"""Topics as they are and as the catalogue has them: compared, mended, and refused by the parts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from click.testing import CliRunner

from headwater.gateway.cli.topic_repair import check
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.topics import DEAD_LETTERS, EVENTS, TOPICS, WEBHOOKS, WORKFLOW_HISTORY
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.topics import compare, create_topics, describe_catalog
from tests.commands import called
from tests.e2e.system import free_port
from tests.throwaway_kafka import ThrowawayKafka

PARTITIONS = 2
PATIENCE_S = 180.0
#: Topics that tests configure otherwise than the catalogue does.
SPOILED = {EVENTS, DEAD_LETTERS, WORKFLOW_HISTORY}


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[str]:
    broker = ThrowawayKafka(scratch / "topics", port=0, report=print)
    try:
        address = broker.start()
        asyncio.run(create_topics(Cluster(address), partitions=PARTITIONS, replication=1))
        yield address
    finally:
        broker.kill()


@pytest.fixture
def kafka(broker: str) -> Iterator[str]:
    """A broker with the topics of the catalogue, whose configuration a test may spoil."""
    yield broker
    for topic in TOPICS:
        if topic.name in SPOILED:
            alter(broker, topic.name, **topic.config(replication=1))


def alter(kafka: str, topic: str, **config: str) -> None:
    """Sets the configuration of a topic, underscores for dots; all else is the broker's."""
    assert topic in SPOILED

    async def whole() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        named = {name.replace("_", "."): value for name, value in config.items()}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, named)])
        await admin.close()
        # The controller has answered; the broker knows of it a moment later.
        async with asyncio.timeout(PATIENCE_S):
            while not named.items() <= (await describe_catalog(Cluster(kafka)))[topic].own.items():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    asyncio.run(whole())


def topics_command(kafka: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return called("topics", *arguments, HEADWATER_KAFKA=kafka)


def started(kafka: str, part: str) -> subprocess.CompletedProcess[str]:
    """A part that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "headwater", part],
        env={
            **os.environ,
            "HEADWATER_KAFKA": kafka,
            "HEADWATER_PORT": str(free_port()),
            "HEADWATER_POSTGRES": "postgresql://nobody@127.0.0.1:1/none",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_topics_are_compared_and_mended(kafka: str):
    checked = topics_command(kafka, "check", "--partitions", str(PARTITIONS))
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout
    assert asyncio.run(describe_catalog(Cluster(kafka))).keys() == {topic.name for topic in TOPICS}

    other = {"retention_ms": "1000", "max_message_bytes": "1000", "segment_bytes": "1048576"}
    alter(kafka, EVENTS, **other, unclean_leader_election_enable="true")
    checked = topics_command(kafka, "check", "--json", "--replication", "3")
    assert checked.returncode == 1
    differences = json.loads(checked.stdout)
    result = {(difference["topic"], difference["what"]): difference for difference in differences}
    assert result[EVENTS, "retention.ms"] == {
        "topic": EVENTS,
        "what": "retention.ms",
        "expected": "604800000",
        "found": "1000",
        "loses_data": False,
        "mend": "headwater topics check --mend",
    }
    assert result[EVENTS, "max.message.bytes"]["loses_data"]
    assert result[EVENTS, "unclean.leader.election.enable"]["loses_data"]
    assert "keys would move away" in result[EVENTS, "partitions"]["mend"]
    assert (result[EVENTS, "replication"]["expected"], result[EVENTS, "replication"]["found"]) == (
        "3",
        "1",
    )
    assert {what for topic, what in result if topic == WEBHOOKS} == {"partitions", "replication"}

    mended = topics_command(kafka, "check", "--mend", "--partitions", str(PARTITIONS))
    assert mended.returncode == 0, mended.stdout
    assert f"Altered: topic {EVENTS}: expected retention.ms 604800000, found 1000" in mended.stderr
    topics = asyncio.run(describe_catalog(Cluster(kafka)))
    assert compare(topics, partitions=PARTITIONS, replication=1) == []
    assert topics[EVENTS].own["segment.bytes"] == "1048576", "what others have set stays"


@pytest.mark.parametrize("named", [True, False])
def test_without_kafka_the_check_says_where_it_has_looked(
    monkeypatch: pytest.MonkeyPatch,
    named: bool,
):
    port = str(free_port())
    monkeypatch.delenv("HEADWATER_KAFKA", raising=False)
    monkeypatch.setenv("HEADWATER_KAFKA_PORT", port)
    where = ["--kafka", f"127.0.0.1:{port}"] if named else []
    checked = CliRunner().invoke(check, where)
    assert isinstance(checked.exception, BrokerUnavailable)
    assert port in checked.exception.message
    assert ("HEADWATER_KAFKA_PORT" in checked.exception.message) is not named


@pytest.mark.parametrize("part", ["serve", "worker", "project"])
def test_a_part_refuses_topics_that_lose_data(kafka: str, part: str):
    alter(kafka, WORKFLOW_HISTORY, cleanup_policy="delete", max_message_bytes="11534336")
    alter(kafka, DEAD_LETTERS, cleanup_policy="compact,delete", max_message_bytes="1000")
    ended = started(kafka, part)
    assert ended.returncode == 1, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("headwater: topic dead-letters: expected max.message.bytes 11534336")
    assert "topic workflow-history: expected cleanup.policy compact, found delete" in last
    assert last.endswith("`headwater topics check` says how to fix it")


def test_a_part_warns_of_topics_that_are_otherwise(kafka: str):
    alter(kafka, DEAD_LETTERS, cleanup_policy="compact,delete", max_message_bytes="11534336")
    command = [sys.executable, "-m", "headwater", "project"]
    env = {**os.environ, "HEADWATER_KAFKA": kafka}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as part:
        assert part.stderr is not None
        line = f"topic {DEAD_LETTERS}: expected retention.ms 2592000000, found "
        assert any(line in item for item in part.stderr)
        part.send_signal(signal.SIGTERM)


SHOP = """
from headwater import workflow

@workflow("order", publishes=["orders-kept", "seen"])
async def order(event, step):
    return await step.do("keep", lambda tx: tx.publish("orders-kept", None, event.payload))

@workflow("ship", publishes=["orders-kept"])
async def ship(event, step):
    return None
"""


def test_a_worker_says_which_topics_are_missing_that_its_app_declares(kafka: str, tmp_path: Path):
    (tmp_path / "shop_topics.py").write_text(SHOP)
    made = topics_command(kafka, "create", "seen", "--partitions", "3", "--json")
    assert json.loads(made.stdout) == {"made": ["seen"]}, made.stderr
    command = [sys.executable, "-m", "headwater", "worker", "--app", "shop_topics"]
    env = {**os.environ, "HEADWATER_KAFKA": kafka}
    with subprocess.Popen(
        command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stderr is not None
        reported = next(line for line in worker.stderr if " topic orders-kept is missing" in line)
        worker.send_signal(signal.SIGTERM)
    assert reported.rstrip().endswith(
        "topic orders-kept is missing, and steps of order, ship publish to it; what they publish "
        "waits until it exists: `headwater topics create orders-kept` creates it"
    )


def test_topics_of_authors_are_made_and_those_of_headwater_refused(kafka: str):
    made = topics_command(kafka, "create", "kept", "told", "--partitions", "3")
    assert "Made 2 topics: kept, told" in made.stderr
    made = topics_command(kafka, "create", "kept", "more", "--partitions", "5")
    assert "Made 1 topic: more" in made.stderr
    assert asyncio.run(partitions_of(kafka, "kept", "told", "more")) == [3, 3, 5]
    refused = topics_command(kafka, "create", "webhooks")
    assert refused.returncode == 2
    assert "found 'webhooks', which is Headwater's" in refused.stderr


async def partitions_of(kafka: str, *topics: str) -> list[int]:
    """How many each has; of a topic that was just made, a broker may not know them yet."""
    counts: dict[str, int] = {}
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not all(counts.get(topic) for topic in topics):
                result = await admin.describe_topics([*topics])
                counts = {item["topic"]: len(item["partitions"]) for item in result}
    finally:
        await admin.close()
    return [counts[topic] for topic in topics]
