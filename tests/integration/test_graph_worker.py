"""A graph that is deployed with an app runs on Kafka, whoever dies on the way."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from headwater.processors.graph.engine import GraphEngine
from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import StartRun
from headwater.streams.workflows.worker import WorkflowWorker
from tests import workflow_parts
from tests.apps.graphs import doubles, wide
from tests.e2e.workflow_system import Sender
from tests.fakes.engines import ENGINES
from tests.waiting import until
from tests.workflow_parts import a_client, running, started

ITEMS = 40


def a_worker(topics: str) -> WorkflowWorker:
    graphs = GraphEngine([doubles.graph(), wide.graph()])
    return workflow_parts.a_worker(
        topics,
        apps=["tests.apps.graphs", "tests.e2e.workflow_app"],
        engines={**ENGINES, GraphEngine.kind: graphs},
    )


def test_a_graph_survives_its_host_and_its_worker(topics: str, tmp_path: Path):
    seen, total = tmp_path / "seen", tmp_path / "seen.total"
    client = a_client(topics)

    async def scenario() -> None:
        async with started(client):
            async with running(a_worker(topics)):
                sender = Sender(client)
                await sender.ready()
                params = {"items": list(range(ITEMS)), "file": str(seen)}
                # Sent again until the worker is there, and perhaps carried out twice.
                reply = await sender.send("doubles", "d-1", StartRun(json.dumps(params)))
                assert reply.code in {"", INSTANCE_EXISTS}
                await until(seen.exists)
                os.kill(int(seen.read_text().split()[0]), signal.SIGKILL)
                before = seen.stat().st_size
                await until(lambda: seen.stat().st_size > before)
            assert not total.exists()
            async with running(a_worker(topics)):
                await until(total.exists)

    asyncio.run(scenario())
    assert total.read_text() == str(2 * sum(range(ITEMS)))


@pytest.mark.soak
def test_ten_thousand_branches_meet_whose_outputs_no_record_can_hold(topics: str, tmp_path: Path):
    seen, total = tmp_path / "seen", tmp_path / "seen.total"
    client = a_client(topics)
    params = {"items": list(range(10_000)), "size": 2_000, "file": str(seen)}

    async def scenario() -> None:
        async with running(a_worker(topics)), started(client):
            sender = Sender(client)
            await sender.ready()
            reply = await sender.send("wide", "w-1", StartRun(json.dumps(params)))
            assert reply.code in {"", INSTANCE_EXISTS}
            await until(total.exists)

    asyncio.run(scenario())
    assert total.read_text() == "10000"
