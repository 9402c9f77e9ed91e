"""Graphs that are deployed while workers run: versions are one for all, and nobody is too early."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headwater.processors.graph.catalogue import Deployed, NotDeployed
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import graph_of
from headwater.schemas.deployments import GraphDeployed
from headwater.schemas.failures import GRAPH_OF_APP, INSTANCE_EXISTS, INVALID_PARAMS
from headwater.schemas.history import StartRun
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.client import WorkflowClient
from headwater.streams.workflows.deployment_log import DefinitionLog
from headwater.streams.workflows.runnable_code import DeployedGraphs
from headwater.streams.workflows.worker import WorkflowWorker
from tests import workflow_parts
from tests.apps.graphs import doubles
from tests.e2e.workflow_system import Sender
from tests.fakes.engines import ENGINES
from tests.integration.test_graph_worker import until
from tests.workflow_parts import a_client, running, started

#: More than partitions: each has some.
INSTANCES = 12


def definition(name: str, **more: object) -> GraphDeployed:
    document = doubles.to_dict() | {"name": name} | more
    return GraphDeployed(
        name=name,
        document=json.dumps(document),
        digest=graph_of(document).digest,
        app="",
        after="",
        at_ms=now_ms(),
    )


def gateway(topics: str) -> DefinitionLog:
    return DefinitionLog(cluster=Cluster(topics), client_id="tests-gateway")


def a_worker(topics: str, *apps: str) -> WorkflowWorker:
    engine = GraphEngine([doubles.graph()])
    log = DefinitionLog(cluster=Cluster(topics), client_id="tests-worker")
    return workflow_parts.a_worker(
        topics,
        apps=apps,
        engines={**ENGINES, GraphEngine.kind: engine},
        graphs=DeployedGraphs(log, engine.deploy, clock=now_ms),
    )


def test_gateways_that_deploy_at_once_agree_on_the_versions(topics: str):
    async def scenario() -> None:
        gateways = [gateway(topics) for _ in range(3)]
        try:
            result = await asyncio.gather(
                *(
                    item.deploy(definition("at-once", initialNodeRef=ref))
                    for item in gateways
                    for ref in ("start", "double", "tell")
                )
            )
            versions = [item.version for item in result if isinstance(item, Deployed)]
            assert len(versions) == len(result)
            reported = {version.number: version for version in versions}
            assert sorted(reported) == list(range(1, len(reported) + 1))
            for entry in gateways:
                assert (await entry.catch_up()).versions["at-once"] == [
                    reported[number] for number in sorted(reported)
                ]
        finally:
            await asyncio.gather(*(item.stop() for item in gateways))

    asyncio.run(scenario())


@asynccontextmanager
async def system(topics: str, *apps: str) -> AsyncIterator[tuple[WorkflowClient, DefinitionLog]]:
    """A worker, a client, and a gateway's log of definitions."""
    deploying = gateway(topics)
    async with running(a_worker(topics, *apps)), started(a_client(topics)) as client:
        try:
            await Sender(client).ready()
            yield client, deploying
        finally:
            await deploying.stop()


async def codes(client: WorkflowClient, prefix: str, seen: Path) -> set[str]:
    """What becomes of creations in all partitions."""
    params = StartRun(json.dumps({"items": [1, 2], "file": str(seen)}))
    names = [f"{prefix}-{number}" for number in range(INSTANCES)]
    replies = await asyncio.gather(*(client.send("redoubled", name, params) for name in names))
    assert len({reply.partition for reply in replies}) > 1
    return {reply.code for reply in replies}


async def the_names_of_apps_are_theirs(client: WorkflowClient, deploying: DefinitionLog) -> None:
    started = StartRun('{"items": [], "file": ""}')
    # Sent again until the worker is there, and perhaps carried out twice.
    reply = await Sender(client).send("doubles", "d", started)
    assert reply.code in {"", INSTANCE_EXISTS}
    for name in ("doubles", "beside"):
        refused = await deploying.deploy(definition(name))
        assert isinstance(refused, NotDeployed)
        assert refused.code == GRAPH_OF_APP
    newest = deploying.fold.newest("doubles")
    assert newest is not None
    assert newest.app == "tests.apps.graphs"


def test_what_was_deployed_is_what_the_next_instance_is_made_from(topics: str, tmp_path: Path):
    seen, total = tmp_path / "seen", tmp_path / "seen.total"

    async def scenario() -> None:
        apps = ("tests.e2e.workflow_app", "tests.apps.graphs")
        async with system(topics, *apps) as (client, deploying):
            await the_names_of_apps_are_theirs(client, deploying)
            assert isinstance(await deploying.deploy(definition("redoubled")), Deployed)
            assert await codes(client, "first", seen) == {""}
            schema = {"type": "object", "required": ["more"]}
            await deploying.deploy(definition("redoubled", inputSchema=schema))
            assert await codes(client, "second", seen) == {INVALID_PARAMS}
            # Tasks run where they are, and instances that there were go on as they had begun.
            await until(lambda: total.exists() and total.read_text() == "6")
            await until(lambda: len(seen.read_text().splitlines()) == 2 * INSTANCES)

    asyncio.run(scenario())


def test_an_app_may_have_tasks_alone(topics: str, tmp_path: Path):
    """Its host is started again, too, when it has died."""
    nodes = [{"ref": "a", "task": "note", "inputMapping": {"file": "input.file"}}]
    graph = definition("noting", nodes=nodes, initialNodeRef="a", transitions=[])

    async def scenario() -> None:
        apps = ("tests.e2e.workflow_app", "tests.apps.only_tasks")
        async with system(topics, *apps) as (client, deploying):
            assert isinstance(await deploying.deploy(graph), Deployed)
            for name in ("n-1", "n-2"):
                noted = tmp_path / name
                started = StartRun(json.dumps({"file": str(noted)}))
                assert (await client.send("noting", name, started)).code == ""
                await until(lambda noted=noted: noted.exists() and noted.read_text())
                os.kill(int(noted.read_text()), signal.SIGKILL)

    asyncio.run(scenario())
