"""The servers of a benchmark: Kafka and Postgres of its own, deleted afterwards."""

import asyncio
import contextlib
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.children import Child
from benchmarks.meter import CpuReading
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.topics import create_topics

#: As many as `headwater up` creates by default.
PARTITIONS: Final = 4
_RETRY_S: Final = 0.1


def log_progress(message: str) -> None:
    """Print a line of progress to stderr: stdout may be a pipe that waits for JSON."""
    sys.stderr.write(f"{message}\n")


@dataclass(frozen=True, slots=True)
class System:
    """The servers, and the directory of their children's logs."""

    bootstrap: str
    dsn: str
    logs: Path
    kafka: EmbeddedKafka
    postgres: EmbeddedPostgres

    def start_process(self, command: str, **settings: str) -> Child:
        """Start one of Headwater's processes by its command line, as `headwater up` does."""
        variables = {"kafka": self.bootstrap, "postgres": self.dsn, "log_level": "warning"}
        variables |= settings
        named = {f"HEADWATER_{name.upper()}": value for name, value in variables.items()}
        return Child(command, "headwater", command, logs=self.logs, variables=named)

    def child(self, name: str, *arguments: str, python: str = sys.executable) -> Child:
        """Start a process of the benchmark."""
        return Child(name, *arguments, logs=self.logs, python=python)

    def meter(self, **children: Child) -> CpuReading:
        """Return the processor time that children and servers have used so far."""
        pids = {name: child.pid for name, child in children.items()}
        return CpuReading.of({**pids, "kafka": self.kafka.pid, "postgres": self.postgres.pid})

    def make_topics(self, *names: str) -> None:
        """Create topics for the alternatives to Headwater."""
        asyncio.run(_make_topics(self.bootstrap, names))


@contextlib.contextmanager
def opened() -> Iterator[System]:
    """Start the servers on free ports in a temporary directory."""
    directory = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    directory.chmod(0o711)  # Postgres may run under another account than root.
    kafka = EmbeddedKafka(directory / "kafka", port=0, report=lambda _line: None)
    postgres = EmbeddedPostgres(directory / "postgres", report=lambda _line: None)
    try:
        log_progress("Starting Kafka and Postgres")
        bootstrap, dsn = kafka.start(), postgres.start()
        asyncio.run(create_topics(Cluster(bootstrap), partitions=PARTITIONS, replication=1))
        migrate(dsn, lambda _line: None)
        logs = directory / "logs"
        logs.mkdir()
        yield System(bootstrap, dsn, logs, kafka, postgres)
    finally:
        postgres.stop()
        kafka.stop()
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def _make_topics(bootstrap: str, names: tuple[str, ...]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        # Quix Streams fails if the broker that it asks does not know a topic yet.
        while not set(names) <= set(await admin.list_topics()):  # noqa: ASYNC110 (no event exists)
            await asyncio.sleep(_RETRY_S)
    finally:
        await admin.close()
