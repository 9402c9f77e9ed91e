"""A pipeline whose source lost its end, which it has read, and is as long again by then."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets
from tests.cut_logs import cut
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import wait_until

#: Records that are read, and those of them that are left.
READ, LEFT = 20, 12


class System:
    """A topic of a broker, and a reader as a process of its own."""

    def __init__(self, broker: ThrowawayKafka, directory: Path) -> None:
        self.broker, self.topic = broker, directory.name
        self._file = directory / "read"
        self._file.touch()
        self._log = directory / "log"
        self._next = 0

    async def make(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.broker.start())
        await admin.start()
        await admin.create_topics([NewTopic(self.topic, 1, 1)])
        await admin.close()

    def append(self, count: int) -> list[str]:
        """Append records, each in a batch of its own; return what they are."""
        values = [str(self._next + number) for number in range(count)]
        self._next += count
        asyncio.run(self._append(values))
        return values

    async def _append(self, values: list[str]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.broker.start())
        await producer.start()
        for value in values:
            await producer.send_and_wait(self.topic, value.encode(), partition=0)
        await producer.stop()

    def lose_the_end(self) -> None:
        self.broker.kill()
        cut(self.broker, self.topic, 0, LEFT)
        self.broker.start()

    @contextmanager
    def reading(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Read with a process; at the end it is stopped in order, if it has not ended."""
        program = "tests.integration.batch_reader"
        command = [sys.executable, "-m", program, self.broker.start(), self.topic, str(self._file)]
        with self._log.open("ab") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGCONT)
                process.terminate()

    def read(self) -> list[str]:
        return self._file.read_text().splitlines()

    def log(self) -> str:
        return self._log.read_text()

    def committed(self) -> int:
        return asyncio.run(self._committed())

    async def _committed(self) -> int:
        offsets = Offsets(Cluster(self.broker.start()), "tests")
        try:
            return (await offsets.committed([self.topic], 0))[self.topic]
        finally:
            await offsets.stop()


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[ThrowawayKafka]:
    broker = ThrowawayKafka(scratch / "kafka that loses deliveries", port=0, report=print)
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def system(broker: ThrowawayKafka, tmp_path: Path) -> System:
    """A topic that is named as the directory of the test."""
    system = System(broker, tmp_path)
    asyncio.run(system.make())
    return system


SHORTER, AS_LONG = (
    pytest.param(count, id=name, marks=pytest.mark.soak)
    for count, name in ((3, "shorter"), (8, "as long"))
)
LONGER = pytest.param(15, id="longer")


@pytest.mark.parametrize("count", [SHORTER, AS_LONG, LONGER])
def test_what_takes_the_place_of_lost_deliveries_is_read_by_the_next_worker(
    system: System, count: int
):
    with system.reading():
        old = system.append(READ)
        wait_until(lambda: system.committed() == READ, "the first records to be committed")
    system.lose_the_end()
    new = system.append(count)
    with system.reading():
        wait_until(lambda: len(system.read()) >= READ + count, "the others to be read")
        wait_until(lambda: system.committed() == LEFT + count, "them to be committed")
    assert system.read() == old + new
    assert f"{system.topic}/0 from offset {LEFT} to {READ - 1}" in system.log()


@pytest.mark.parametrize("count", [AS_LONG, LONGER])
def test_what_takes_the_place_of_lost_deliveries_is_read_by_a_worker_that_has_read_those(
    system: System, count: int
):
    with system.reading() as first:
        old = system.append(READ)
        wait_until(lambda: system.committed() == READ, "the first records to be committed")
        first.send_signal(signal.SIGSTOP)
        system.lose_the_end()
        new = system.append(count)
        first.send_signal(signal.SIGCONT)
        deadline_s = time.monotonic() + 60
        while first.poll() is None and system.read() != old + new:
            assert time.monotonic() < deadline_s, system.log()
            time.sleep(0.1)
    with system.reading():
        wait_until(lambda: len(system.read()) >= READ + count, "the others to be read")
        wait_until(lambda: system.committed() == LEFT + count, "them to be committed")
    assert system.read() == old + new
