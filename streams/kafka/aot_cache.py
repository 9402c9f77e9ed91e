"""Lets Java learn, once, how Kafka starts; every later start takes a third of the time.

Theory of operation: a broker of its own runs for a moment and does a little of everything. When it
is stopped, Java writes an AOT cache (JEP 483, 514, 515): the classes loaded and linked, and which
methods are worth compiling. It rests beside the jars, is named after them and the Java, and
`streams.kafka.embedded` uses it when it is there. Without it all works, slower.
"""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable, ProcessUnavailable
from headwater.schemas.topics import TRACES
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.jars import aot_cache, fetch_jars, jars_directory
from headwater.streams.kafka.topics import create_topics

__all__ = ["make_aot_cache"]


def make_aot_cache(directory: Path, report: Callable[[str], None]) -> None:
    """Makes the AOT cache beside the jars unless it is there; says so if it cannot be made."""
    cache = aot_cache(directory)
    if cache.exists():
        return
    report("Starting Kafka once, for Java to learn how; later starts take a second or two")
    try:
        # Beside its place: it is complete when it gets its name, and whoever is first has made it.
        with tempfile.TemporaryDirectory(dir=directory, prefix=".learning-") as scratch:
            learnt = Path(scratch) / "learnt.aot"
            _train(Path(scratch), learnt)
            learnt.replace(cache)
    except (ProcessUnavailable, BrokerUnavailable, KafkaError, OSError) as error:
        report(f"Java has learnt nothing, so Kafka will start as slowly as this time: {error}")


def _train(scratch: Path, learnt: Path) -> None:
    broker = EmbeddedKafka(scratch / "kafka", port=0, report=lambda _line: None, training=learnt)
    try:
        asyncio.run(_exercise(Cluster(broker.start())))
    finally:
        broker.stop()


async def _exercise(cluster: Cluster) -> None:
    """Does what Headwater does with a broker: topics, appends, transactions, groups, reading."""
    await create_topics(cluster, partitions=1, replication=1)
    async with AIOKafkaProducer(**cluster.options(), acks="all") as producer:
        await producer.send_and_wait(TRACES, b"a record")
    async with (
        AIOKafkaProducer(**cluster.options(), transactional_id="learner") as producer,
        producer.transaction(),
    ):
        await producer.send_and_wait(TRACES, b"a record of a transaction")
    async with AIOKafkaConsumer(
        TRACES, **cluster.options(), group_id="learner", auto_offset_reset="earliest"
    ) as consumer:
        await consumer.getone()
        await consumer.commit()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Fetches the jars and makes the cache, ahead of the first start."""
    # A broker that has only just begun makes aiokafka try things twice, and say so each time.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        fetch_jars(jars_directory(), _say)
    except ProcessUnavailable as error:
        sys.exit(str(error))
    make_aot_cache(jars_directory(), _say)


if __name__ == "__main__":
    main()
