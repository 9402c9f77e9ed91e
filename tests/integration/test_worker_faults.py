"""A turn that cannot be appended costs its partitions a takeover, and nothing else."""

import asyncio
import os
from pathlib import Path

import pytest

from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import StartRun
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.state_store import StoreTorn
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.workflows.client import WorkflowClient
from headwater.streams.workflows.instance_stores import DiskStore
from headwater.streams.workflows.worker import WorkflowWorker
from tests.e2e.workflow_house import Sender
from tests.fakes.engines import ENGINES


def test_a_fault_in_an_append_is_said_and_its_partitions_are_taken_over_again(
    topics: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    worker = WorkflowWorker(
        cluster=Cluster(topics),
        apps=["tests.e2e.workflow_app"],
        engines=ENGINES,
        clock=now_ms,
        draw_seed=lambda: "seed",
        name="tests",
    )
    client = WorkflowClient(
        cluster=Cluster(topics),
        client_id="tests",
        timeout_s=20,
        clock=now_ms,
        new_id=lambda: os.urandom(8).hex(),
    )
    # No decision leads to such a record: this is what a fault of ours would look like.
    monkeypatch.setattr("headwater.streams.workflows.log.MAX_VALUE_BYTES", 1_000)
    monkeypatch.setattr("headwater.streams.workflows.worker._PAUSE_AFTER_FAULT_S", 0.1)

    async def mended() -> None:
        async with asyncio.timeout(30):
            while "taken over again" not in caplog.text:  # noqa: ASYNC110, a log has no event
                await asyncio.sleep(0.05)
        monkeypatch.undo()

    async def scenario() -> None:
        working = asyncio.create_task(worker.run())
        await client.start()
        try:
            sender = Sender(client)
            await sender.ready()
            mending = asyncio.create_task(mended())
            reply = await sender.send("echo", "large", StartRun(f'"{"x" * 2_000}"'))
            assert reply.code in {"", INSTANCE_EXISTS}
            await mending
        finally:
            await client.stop()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    asyncio.run(scenario())
    assert "a turn cannot be appended" in caplog.text


def test_a_fault_beside_the_turns_ends_the_worker(topics: str):
    worker = WorkflowWorker(
        cluster=Cluster(topics),
        apps=["tests.e2e.workflow_app"],
        engines=ENGINES,
        clock=now_ms,
        draw_seed=lambda: "seed",
        name="tests",
    )

    async def fails() -> None:
        raise LookupError("expected what cannot be")

    async def scenario() -> None:
        working = asyncio.create_task(worker.run())
        await worker.declared()
        worker._in_background(fails())
        async with asyncio.timeout(30):
            await working

    with pytest.raises(LookupError, match="expected what cannot be"):
        asyncio.run(scenario())


def test_a_store_that_is_torn_ends_the_worker_and_the_next_one_fills_it(
    topics: str, tmp_path: Path
):
    def a_worker() -> WorkflowWorker:
        return WorkflowWorker(
            cluster=Cluster(topics),
            apps=["tests.e2e.workflow_app"],
            engines=ENGINES,
            clock=now_ms,
            draw_seed=lambda: "seed",
            name="tests",
            stores=StateStores(tmp_path, 8 * 1024 * 1024, now_ms),
        )

    client = WorkflowClient(
        cluster=Cluster(topics),
        client_id="tests",
        timeout_s=20,
        clock=now_ms,
        new_id=lambda: os.urandom(8).hex(),
    )

    async def scenario() -> None:
        worker = a_worker()
        working = asyncio.create_task(worker.run())
        await client.start()
        try:
            await Sender(client).ready()
            async with asyncio.timeout(30):
                while len(worker._driver.partitions) < worker._driver.count:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for partition in worker._driver.partitions.values():
                store = partition.owner.instances.store
                assert isinstance(store, DiskStore)
                store._store._db.close()  # Whatever is asked of it from now on fails.
            asked = asyncio.create_task(client.send("echo", "torn", StartRun('"1"')))
            with pytest.raises(StoreTorn, match="deleted it"):
                await asyncio.wait_for(working, 30)
            working = asyncio.create_task(a_worker().run())
            assert not (await asked).code
        finally:
            await client.stop()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    asyncio.run(scenario())
