"""A turn that cannot be appended costs its partitions a takeover, and nothing else."""

import asyncio
from pathlib import Path

import pytest

from headwater.schemas.errors import InvariantViolation
from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import HistoryAppended, StartRun
from headwater.streams.clock import now_ms
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.workflows.history_lease import HistoryLease
from headwater.streams.workflows.instance_stores import DiskStore
from tests.e2e.workflow_system import Sender
from tests.waiting import until
from tests.workflow_parts import a_client, a_worker, running, started


def test_a_fault_in_an_append_is_said_and_its_partitions_are_taken_over_again(
    topics: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    worker = a_worker(topics)
    client = a_client(topics)
    faults = 2

    def faulty(lease: HistoryLease, key: bytes, record: HistoryAppended) -> tuple[bytes, bytes]:
        nonlocal faults
        if faults:
            faults -= 1
            raise InvariantViolation("a fault of ours")
        return encoded(lease, key, record)

    encoded = HistoryLease._encoded
    monkeypatch.setattr(HistoryLease, "_encoded", faulty)
    monkeypatch.setattr("headwater.streams.workflows.worker._PAUSE_AFTER_BUG_S", 0.1)

    async def scenario() -> None:
        async with running(worker), started(client):
            sender = Sender(client)
            await sender.ready()
            reply = await sender.send("echo", "large", StartRun('"1"'))
            assert reply.code in {"", INSTANCE_EXISTS}

    asyncio.run(scenario())
    assert not faults
    assert caplog.text.count("a turn cannot be appended") == 2
    assert "again: InvariantViolation" in caplog.text


def test_a_fault_beside_the_turns_ends_the_worker(topics: str):
    worker = a_worker(topics)

    async def fails() -> None:
        raise LookupError("expected what cannot be")

    async def scenario() -> None:
        async with running(worker) as working, asyncio.timeout(60):
            await worker.declared()
            worker._in_background(fails())
            await working

    with pytest.raises(LookupError, match="expected what cannot be"):
        asyncio.run(scenario())


def test_a_store_that_is_torn_ends_the_worker_and_the_next_one_fills_it(
    topics: str, tmp_path: Path
):
    stores = StateStores(tmp_path, 8 * 1024 * 1024, now_ms)
    client = a_client(topics, timeout_s=60, restarted_within_s=60)

    async def scenario() -> None:
        worker = a_worker(topics, stores=stores)
        async with started(client):
            async with running(worker) as working:
                await Sender(client).ready()
                await until(lambda: len(worker._driver.partitions) == worker._driver.count)
                for partition in worker._driver.partitions.values():
                    store = partition.owner.instances.store
                    assert isinstance(store, DiskStore)
                    store._store._db.close()  # Whatever is asked of it from now on fails.
                requested = asyncio.create_task(client.send("echo", "torn", StartRun('"1"')))
                with pytest.raises(StoreCorrupted, match="deleted it"):
                    await asyncio.wait_for(working, 60)
            async with running(a_worker(topics, stores=stores)):
                assert not (await requested).code

    asyncio.run(scenario())
