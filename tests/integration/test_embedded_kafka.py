"""The embedded broker keeps acknowledged records through every way of ending it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headwater.schemas.errors import ProcessUnavailable
from headwater.streams.kafka import jars as kafka_jars
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.jars import Jar, fetch_jars, jars_directory, locked_jars

TOPIC = "embedded-kafka-records"
#: A payload of 10 MB and then some: what one webhook may bring.
LARGE = 11 * 1024 * 1024


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def broker(
    scratch: Path, said: list[str], request: pytest.FixtureRequest
) -> Iterator[EmbeddedKafka]:
    directory = scratch / f"kafka of {request.node.name}"
    broker = EmbeddedKafka(directory, port=0, report=said.append)
    yield broker
    broker.kill()


async def create_topic(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def append(bootstrap: str, value: bytes) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_request_size=LARGE + 1024
    )
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, value, partition=0)
    finally:
        await producer.stop()


async def read(bootstrap: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def test_records_survive_a_stop_and_a_kill(broker: EmbeddedKafka, said: list[str]):
    bootstrap = broker.start()
    asyncio.run(create_topic(bootstrap))
    asyncio.run(append(bootstrap, b"first"))
    broker.stop()
    assert broker.pid is None

    assert broker.start() == bootstrap
    asyncio.run(append(bootstrap, b"second"))
    broker.kill()

    assert broker.start() == bootstrap
    assert asyncio.run(read(bootstrap, 2)) == [b"first", b"second"]
    assert [line for line in said if "first start" in line] == said, (
        "formatted once, fetched nothing"
    )


def test_a_record_of_eleven_megabytes_is_taken(kafka: str):
    asyncio.run(create_topic(kafka))
    asyncio.run(append(kafka, b"x" * LARGE))
    assert [len(value) for value in asyncio.run(read(kafka, 1))] == [LARGE]


def test_a_broker_that_dies_is_noticed(broker: EmbeddedKafka):
    broker.start()
    assert broker.poll() is None
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    assert broker._process is not None
    broker._process.wait()
    assert broker.poll() == -signal.SIGKILL
    assert broker.pid is None


def test_a_broker_left_by_a_killed_owner_is_stopped_first(
    broker: EmbeddedKafka, said: list[str], scratch: Path
):
    owner = textwrap.dedent("""
        import os, pathlib, sys
        from headwater.streams.kafka.embedded import EmbeddedKafka
        broker = EmbeddedKafka(pathlib.Path(sys.argv[1]), port=0, report=print)
        broker.start()
        print(broker.pid, flush=True)
        os.kill(os.getpid(), 9)
    """)
    ran = subprocess.run(
        [sys.executable, "-c", owner, str(broker._dir)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    left = int(ran.stdout.split()[-1])
    os.kill(left, 0)  # raises if the broker did not outlive its owner

    broker.start()
    assert f"Stopping the Kafka of an earlier run (pid {left})" in said


def test_a_stale_broker_that_ends_by_itself_meanwhile_is_no_error(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    broker._dir.mkdir(parents=True)
    broker._pid_file.write_text(f"{ended.pid}\n")
    monkeypatch.setattr(broker, "_is_our_broker", lambda _: True)
    broker._stop_stale_broker()
    assert not broker._pid_file.exists()


def test_a_pid_file_that_names_somebody_else_harms_nobody(broker: EmbeddedKafka, said: list[str]):
    broker._dir.mkdir(parents=True)
    broker._pid_file.write_text(f"{os.getpid()}\n")
    broker._stop_stale_broker()
    assert said == []
    assert not broker._pid_file.exists()


def test_a_taken_port_is_refused_before_java_starts(scratch: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = EmbeddedKafka(scratch / "refused", port=port, report=print)
        with pytest.raises(
            ProcessUnavailable, match=rf"127\.0\.0\.1:{port}.*--kafka-port.*HEADWATER_KAFKA_PORT"
        ):
            broker.start()
    assert broker.pid is None


def test_a_broker_that_cannot_start_says_why(broker: EmbeddedKafka):
    broker._dir.mkdir(parents=True)
    broker._log_dir.write_text("a file where the data directory should be")
    with pytest.raises(ProcessUnavailable, match="could not prepare"):
        broker.start()


@pytest.fixture
def one_jar(monkeypatch: pytest.MonkeyPatch) -> Jar:
    """The smallest jar of the lock, as if it were the only one."""
    jar = min(locked_jars(), key=lambda jar: jar.size)
    monkeypatch.setattr(kafka_jars, "locked_jars", lambda: (jar,))
    return jar


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends HTTP to a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("https_proxy", nobody)
    monkeypatch.setenv("http_proxy", nobody)


def test_jars_at_hand_need_no_network(no_network: None, kafka: str):
    said: list[str] = []
    assert len(fetch_jars(jars_directory(), said.append)) == len(locked_jars())
    assert said == []


def test_a_missing_network_is_one_clear_line(no_network: None, one_jar: Jar, tmp_path: Path):
    with pytest.raises(ProcessUnavailable, match=r"^No network: .* needed once") as failure:
        fetch_jars(tmp_path, print)
    assert "\n" not in failure.value.message
    assert list(tmp_path.iterdir()) == [], "nothing half-fetched is left"


def test_a_jar_that_was_changed_is_not_used(no_network: None, one_jar: Jar, tmp_path: Path):
    (tmp_path / one_jar.filename).write_bytes(b"x" * one_jar.size)
    with pytest.raises(ProcessUnavailable, match="No network"):
        fetch_jars(tmp_path, print)
