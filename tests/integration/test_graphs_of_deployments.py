"""Graphs and tasks of deployments: runs end on theirs, whoever is killed meanwhile."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import GraphWorkflow
from headwater.processors.code.engine import ReplayEngine
from headwater.processors.graph.catalogue import Deployed, NotDeployed, Version
from headwater.processors.graph.engine import GraphEngine
from headwater.schemas.deployments import DeployedWorkflow, GraphDeployed
from headwater.schemas.failures import GRAPH_OF_APP, INSTANCE_EXISTS, MIGRATION_REFUSED
from headwater.schemas.history import RetryRun, SendEvent, StartRun
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.deployment_log import DefinitionLog
from tests.deployed_apps import APP, Deployer, deploying
from tests.e2e.workflow_system import Sender, Story, WorkflowSystem, opened, play
from tests.integration.test_deployed_code import began_on, host_of

_CODE = """
from pathlib import Path

from headwater import NonRetryableError, GraphWorkflow, task, workflow


@task("say")
async def say(input):
    if Path({broken!r}).exists():
        raise NonRetryableError("it is broken")
    return {{"said": {version!r}}}


@workflow("gate")
async def gate(event, step):
    await step.wait_for_event("go", type="go", timeout="1 hour")
    return {version!r}


made = GraphWorkflow(**{definition!r})
"""

_GATE_ALONE = """
from headwater import workflow


@workflow("gate")
async def gate(event, step):
    return None
"""


def say(ref: str) -> dict[str, object]:
    # A host that is killed costs an attempt.
    retries = {"limit": 9, "delay": "100 ms", "backoff": "constant"}
    mapping = {f"state.{ref}": "result.said"}
    return {"ref": ref, "task": "say", "retries": retries, "output_mapping": mapping}


def definition(name: str, version: str) -> dict[str, object]:
    """Two tasks, and between them a child that waits; the output says the version, too."""
    return {
        "name": name,
        "initial_node_ref": "first",
        "nodes": [
            say("first"),
            {"ref": "gate", "subworkflow": "gate", "output_mapping": {"state.gate": "result"}},
            say("last"),
        ],
        "transitions": [
            {"ref": "t1", "from_node_ref": "first", "to_node_ref": "gate"},
            {"ref": "t2", "from_node_ref": "gate", "to_node_ref": "last"},
        ],
        "output_mapping": {
            "said": "[state.first, state.gate, state.last]",
            "of": json.dumps(version),
        },
    }


def graph(name: str, version: str) -> GraphWorkflow:
    return GraphWorkflow(**definition(name, version))  # type: ignore[arg-type]


def code(name: str, version: str, of: str, broken: Path) -> str:
    return _CODE.format(version=version, definition=definition(name, of), broken=str(broken))


_GATE = DeployedWorkflow(name="gate", kind=ReplayEngine.kind)


async def deploy(
    deployer: Deployer, name: str, version: str, of: str, broken: Path = Path("/nowhere/broken")
) -> str:
    made = graph(name, of)
    workflows = (
        _GATE,
        DeployedWorkflow(
            name=name,
            kind=GraphEngine.kind,
            document=json.dumps(made.to_dict()),
            digest=made.graph().digest,
        ),
    )
    source = code(name, version, of, broken)
    return await deployer.deploy(source, workflows=workflows)


@pytest.fixture(scope="module")
def shared(scratch: Path) -> Iterator[WorkflowSystem]:
    directory = scratch / "graphs-of-deployments"
    directory.mkdir()
    with opened(WorkflowSystem(directory, "headwater")) as system:
        yield system


@pytest.fixture
def system(shared: WorkflowSystem) -> Iterator[WorkflowSystem]:
    """The topics are those of all tests: each has a graph of its own."""
    yield shared
    for name in list(shared.parts):
        shared.kill(name)


async def create(client: Sender, *keys: str) -> None:
    for key in keys:
        workflow, _, name = key.partition("/")
        reply = await client.send(workflow, name, StartRun("{}"))
        assert reply.code in {"", INSTANCE_EXISTS}, reply


def gates(story: Story, *keys: str) -> list[str]:
    """The children of runs."""
    parents = {key.partition("/")[2] for key in keys}
    result = [key for key in story.by_instance if key.startswith("gate/")]
    return [key for key in result if key.removeprefix("gate/").rsplit("-", 3)[0] in parents]


async def go(client: Sender, story: Story, *keys: str) -> None:
    for key in gates(story, *keys):
        await client.send("gate", key.removeprefix("gate/"), SendEvent(f"{key}-go", "go", "null"))


async def versions(log: DefinitionLog, name: str) -> list[Version]:
    return (await log.catch_up()).versions.get(name, [])


async def told(log: DefinitionLog, name: str, *digests: str) -> None:
    """Waits until these are the versions."""

    async with asyncio.timeout(60):
        while [version.digest for version in await versions(log, name)] != list(digests):  # noqa: ASYNC110 (nobody would set an event)
            await asyncio.sleep(0.1)


async def are_versions(log: DefinitionLog, name: str, *expected: str) -> None:
    """What was activated are versions of the graph, and its name is the app's."""
    result = [version.digest for version in await versions(log, name)]
    assert result == [graph(name, of).graph().digest for of in expected]
    by_hand = GraphDeployed(name=name, document="{}", digest="", app="", after="", at_ms=0)
    refused = await log.deploy(by_hand)
    assert isinstance(refused, NotDeployed)
    assert (refused.code, (await versions(log, name))[0].app) == (GRAPH_OF_APP, APP)


def over_http(name: str, of: str) -> GraphDeployed:
    """A graph of the same name that somebody deploys by itself."""
    made = GraphWorkflow(
        name=name,
        initial_node_ref="a",
        nodes=[{"ref": "a", "task": "noop"}],
        output_mapping={"of": json.dumps(of)},
    )
    return GraphDeployed(
        name=name,
        document=json.dumps(made.to_dict()),
        digest=made.graph().digest,
        app="",
        after="",
        at_ms=now_ms(),
    )


async def waiting(system: WorkflowSystem, story: Story, *keys: str) -> None:
    await system.until(story, lambda: len(gates(story, *keys)) == len(keys), "the children of runs")


async def kill_any_host(system: WorkflowSystem, story: Story, deployment: str) -> None:
    def there() -> list[int]:
        result = (host_of(system, worker, deployment) for worker in ("one", "two"))
        return [item for item in result if item is not None]

    await system.until(story, lambda: bool(there()), f"a host of {deployment}")
    for entry in there():
        os.kill(entry, signal.SIGKILL)


def ended_on(story: Story, keys: list[str], version: str, of: str, deployment: str) -> None:
    said = {"said": [version] * 3, "of": of}
    assert [story.output(key) for key in keys] == [said] * len(keys)
    assert [began_on(story, key) for key in keys] == [[deployment]] * len(keys)
    assert {began_on(story, key)[0] for key in gates(story, *keys)} == {deployment}


def test_runs_of_graphs_stay_on_their_definition_and_its_tasks(system: WorkflowSystem):
    # More than partitions: each has some.
    old, new = ([f"kept/{which}-{n}" for n in range(6)] for which in ("old", "new"))

    async def act(story: Story, client: Sender) -> None:
        log = DefinitionLog(cluster=Cluster(system.bootstrap), client_id="tests-graphs")
        async with deploying(system.bootstrap) as deployer:
            first = await deploy(deployer, "kept", "1", "A")
            second = await deploy(deployer, "kept", "2", "B")
            await deployer.activate(first)
            system.start("one")
            system.start("two")
            await create(client, *old)
            await waiting(system, story, *old)
            await deployer.activate(second)
            await create(client, *new)
            await waiting(system, story, *new)
            # A host is there where something moves, and comes back after that.
            await go(client, story, *old[:3])
            await kill_any_host(system, story, first)
            system.kill("two")
            await go(client, story, *old[3:], *new)
            await system.until(story, lambda: all(map(story.ended, old + new)), "their ends")
            ended_on(story, old, "1", "A", first)
            ended_on(story, new, "2", "B", second)
            await are_versions(log, "kept", "A", "B")
        await log.stop()

    play(system, act)


def test_a_run_of_a_graph_is_retried_where_its_definition_is(
    system: WorkflowSystem, tmp_path: Path
):
    broken, key = tmp_path / "broken", "retried/late"

    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            first = await deploy(deployer, "retried", "1", "A")
            second = await deploy(deployer, "retried", "2", "B", broken)
            mended = await deploy(deployer, "retried", "3", "B", broken)
            await deployer.activate(first)
            await deployer.activate(second)
            system.start("one")
            broken.touch()
            await create(client, key)
            await system.until(story, lambda: story.ended(key), "its failure")
            await deployer.activate(first, rollback=True)
            # The active one has another definition: it fails again, on its own.
            assert (await client.send("retried", "late", RetryRun())).code == ""
            await system.until(
                story,
                lambda: began_on(story, key) == [second] * 2 and story.ended(key),
                "its second failure",
            )
            broken.unlink()
            await deployer.activate(mended)
            elsewhere = RetryRun(deployment=first)
            assert (await client.send("retried", "late", elsewhere)).code == MIGRATION_REFUSED
            moved = RetryRun(deployment="active")
            assert (await client.send("retried", "late", moved)).code == ""
            await waiting(system, story, key)
            await deployer.activate(first)
            await go(client, story, key)
            await system.until(story, lambda: story.ended(key), "its end")
            assert story.output(key) == {"said": ["3"] * 3, "of": "B"}
            assert began_on(story, key) == [second, second, mended]

    play(system, act)


#: The name that is given back.
GIVEN = "given-back"


def test_a_graph_deployed_over_http_is_there_again_when_a_deployment_gives_its_name_back(
    system: WorkflowSystem,
):
    h, i, a = *(over_http(GIVEN, of) for of in "HI"), graph(GIVEN, "A").graph().digest

    async def act(story: Story, client: Sender) -> None:
        log = DefinitionLog(cluster=Cluster(system.bootstrap), client_id="tests-graphs")

        async def ends_with(key: str, of: str) -> None:
            await create(client, key)
            await system.until(story, lambda: story.ended(key), f"the end of {key}")
            assert (story.output(key), began_on(story, key)) == ({"of": of}, ["app"])

        async with deploying(system.bootstrap) as deployer:
            without = await deployer.deploy(_GATE_ALONE, workflows=(_GATE,))
            taking = await deploy(deployer, GIVEN, "1", "A")
            await deployer.activate(without)
            assert isinstance(await log.deploy(h), Deployed)
            system.start("one")
            await ends_with(f"{GIVEN}/before", "H")
            await deployer.activate(taking)
            await told(log, GIVEN, h.digest, a)
            assert isinstance(await log.deploy(i), NotDeployed)
            # Who has never seen it run knows it, too.
            system.kill("one")
            await deployer.activate(without, rollback=True)
            system.start("two")
            await ends_with(f"{GIVEN}/after", "H")
            await told(log, GIVEN, h.digest, a, h.digest)
            assert isinstance(await log.deploy(i), Deployed)
            # And so it is for the next, though nobody starts anew.
            await deployer.activate(taking)
            await told(log, GIVEN, h.digest, a, h.digest, i.digest, a)
            await deployer.activate(without)
            await ends_with(f"{GIVEN}/again", "I")
            await told(log, GIVEN, h.digest, a, h.digest, i.digest, a, i.digest)
        await log.stop()

    play(system, act)
