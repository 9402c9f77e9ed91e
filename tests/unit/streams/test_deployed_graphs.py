"""What workers say of the graphs of deployments, when one of them is behind the others."""

import asyncio
import json
from typing import Any, cast

from headwater import GraphWorkflow
from headwater.processors.deployments import Deployments
from headwater.processors.graph.catalogue import Catalogue, Outcome
from headwater.processors.graph.engine import GraphEngine
from headwater.schemas.deployments import (
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    GraphDeployed,
)
from headwater.streams.code_host.apps import Declarations
from headwater.streams.workflows.runnable_code import DeployedGraphs


def workflow(of: str) -> DeployedWorkflow:
    made = GraphWorkflow(
        name="plan",
        initial_node_ref="a",
        nodes=[{"ref": "a", "task": "noop"}],
        output_mapping={"of": json.dumps(of)},
    )
    document, digest = json.dumps(made.to_dict()), made.graph().digest
    return DeployedWorkflow(name="plan", kind=GraphEngine.kind, document=document, digest=digest)


class Log:
    """The topic, in memory."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()

    async def catch_up(self) -> Catalogue:
        return self.catalogue

    async def deploy(self, record: GraphDeployed) -> Outcome:
        return self.catalogue.apply(record)


class NoApps:
    """The hosts of a worker without apps."""

    def kinds(self) -> dict[str, str]:
        return {}

    def declared_by_app(self) -> dict[str, Declarations]:
        return {}

    def number_of(self, _: str) -> None:
        return None

    def number_with(self, _: object) -> int:
        return 0


def after(*activated: str) -> Deployments:
    """The deployments, each named for what its graph is of, after some activations."""
    result = Deployments()
    for of in "ab":
        result.apply(
            DeploymentCreated(
                id=of,
                app="shop",
                digest="",
                size=1,
                offset=0,
                workflows=(workflow(of),),
                by="",
                at_ms=0,
            )
        )
    for name in activated:
        result.apply(DeploymentActivated(id=name, after="", rollback=False, by="", at_ms=0))
    return result


def test_a_worker_that_is_behind_makes_no_version_though_the_newest_is_of_long_ago():
    async def scenario(log: Log) -> None:
        async def look(deployments: Deployments) -> None:
            worker = DeployedGraphs(cast("Any", log), lambda _: None, clock=lambda: 0)
            await worker.start(cast("Any", NoApps()), deployments)

        await look(after("a"))
        # Nobody was there while b was active, but for one that is slow.
        await look(after("a", "b", "a"))
        await look(after("a", "b"))

    log = Log()
    asyncio.run(scenario(log))
    assert [item.digest for item in log.catalogue.versions["plan"]] == [workflow("a").digest]
