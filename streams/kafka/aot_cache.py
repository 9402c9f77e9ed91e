"""Create Java's AOT cache for Kafka, once; later starts take a third of the time.

A separate broker runs for a moment and does a little of everything. When it is stopped, Java writes
an AOT cache (JEP 483, 514, 515): the classes loaded and linked, and which methods are worth
compiling. The cache is stored next to the jars, named after their version and Java's, and
`streams.kafka.embedded` uses it if it exists. Without it Kafka starts more slowly.
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


def make_aot_cache(directory: Path, report: Callable[[str], None]) -> None:
    """Create the AOT cache next to the jars unless it exists; report it if that fails."""
    cache = aot_cache(directory)
    if cache.exists():
        return
    report("Starting Kafka once to create Java's AOT cache; later starts take a second or two")
    try:
        # The cache gets its name when it is complete; the first of several processes wins.
        with tempfile.TemporaryDirectory(dir=directory, prefix=".training-") as scratch:
            trained = Path(scratch) / "trained.aot"
            _train(Path(scratch), trained)
            trained.replace(cache)
    except (ProcessUnavailable, BrokerUnavailable, KafkaError, OSError) as error:
        report(f"Could not create Java's AOT cache; Kafka will start as slowly as now: {error}")


def _train(scratch: Path, trained: Path) -> None:
    broker = EmbeddedKafka(scratch / "kafka", port=0, report=lambda _line: None, training=trained)
    try:
        asyncio.run(_exercise(Cluster(broker.start())))
    finally:
        broker.stop()


async def _exercise(cluster: Cluster) -> None:
    """Do what Headwater does with a broker: topics, appends, transactions, groups, reading."""
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


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Fetch the jars and create the cache, ahead of the first start."""
    # While the broker starts, aiokafka retries and logs every retry.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        fetch_jars(jars_directory(), _print_line)
    except ProcessUnavailable as error:
        sys.exit(str(error))
    make_aot_cache(jars_directory(), _print_line)


if __name__ == "__main__":
    main()
