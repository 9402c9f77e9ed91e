"""The code that a worker can run: of its apps and deployments, deployed graphs, and no code."""

import asyncio
import json
import logging
from collections import ChainMap
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any

from headwater.processors.deployments import Deployments
from headwater.processors.graph.catalogue import Catalogue, Version
from headwater.processors.graph.definition import DefinitionInvalid, digest, read_definition
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.state import KIND
from headwater.schemas.deployments import GraphDeployed
from headwater.schemas.history import CommandSent, RestartRun, creates
from headwater.streams.engine.code import Code
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.deployed_code import DeployedCode
from headwater.streams.workflows.deployment_log import DefinitionLog
from headwater.streams.workflows.hosts import Hosts

log = logging.getLogger(__name__)


class DeployedGraphs:
    """Creates new runs from deployed graphs, and determines which host has their tasks.

    A name that an app declares belongs to the app: its workers create runs from the code they have
    loaded. They publish the declaration when they start, so that other processes see it and no
    client deploys a graph under that name.

    Args:
        definitions: Log of definitions.
        deploy: Called with a graph that new runs of its name are created from.
        clock: Returns the time in Unix milliseconds.
    """

    def __init__(
        self,
        definitions: DefinitionLog,
        deploy: Callable[[Graph], None],
        *,
        clock: Callable[[], int],
    ) -> None:
        self._log = definitions
        self._deploy = deploy
        self._clock = clock
        #: Kinds of the runs of deployed graphs, by name. Grows while partitions use it.
        self.kinds: dict[str, str] = {}
        #: Numbers of the hosts that have the tasks of deployed graphs, by digest.
        self.hosts: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._declared: Collection[str] = ()
        self._hosts: Hosts

    async def start(self, hosts: Hosts, deployments: Deployments) -> None:
        """Publish the declarations of apps, and read what is deployed, waiting for Kafka.

        Graphs of the active deployment are published, too.
        """
        self._hosts = hosts
        self._declared = hosts.kinds().keys()
        await self._publish_all(deployments)
        await self._catch_up()

    async def follow(self, activated: Callable[[int], Awaitable[Deployments]]) -> None:
        """Publish the graphs of every deployment that is activated, until it is cancelled.

        Args:
            activated: Waits until there were more activations than this number.
        """
        moves = 0
        while True:
            deployments = await activated(moves)
            moves = deployments.moves
            await self._publish_all(deployments)

    async def _publish_all(self, deployments: Deployments) -> None:
        """Publish what new runs are created from. The active deployment comes before apps."""
        retrying = Retrying(log, "graphs of apps and deployments cannot be published yet")
        for record in self._declarations(deployments):
            await retrying.until_done(partial(self._publish, record))

    def _declarations(self, deployments: Deployments) -> Iterator[GraphDeployed]:
        """Yield the graphs that the active deployment has or removed, then those of apps."""
        active, graphs = deployments.active, deployments.graphs()
        for name, graph in graphs.items():
            assert active is not None  # noqa: S101, graphs exist only after an activation
            if graph is not None:
                yield self._record(active.app, name, graph.document, deployments.moves, active.id)
            elif name not in self._declared:
                yield self._record("", name, None, deployments.moves, active.id)
        for app, declared in self._hosts.declared_by_app().items():
            for name in declared.workflows:
                if graphs.get(name) is None:
                    # Activations do not matter for a name that no deployment ever had.
                    moves = deployments.moves if name in graphs else 0
                    yield self._record(app, name, declared.graphs.get(name), moves)

    def _record(
        self, app: str, name: str, document: str | None, moves: int, deployment: str = ""
    ) -> GraphDeployed:
        digest_ = "" if document is None else digest(read_definition(document))
        return GraphDeployed(
            name=name,
            document=document or "",
            digest=digest_,
            app=app,
            after="",
            at_ms=self._clock(),
            moves=moves,
            deployment=deployment,
        )

    async def _publish(self, record: GraphDeployed) -> None:
        """Publish a record unless it is known already."""
        catalogue = await self._log.catch_up()
        if not catalogue.has(record):
            # The fold skips it if a later record was published meanwhile.
            await self._log.deploy(record)

    async def stop(self) -> None:
        """Disconnect."""
        await self._log.stop()

    # -- before commands are decided

    async def before_deciding(self, commands: Iterable[CommandSent]) -> None:
        """Wait until all versions deployed before these commands are known, if they need them.

        A client that learns that a version is deployed, and then creates an instance, thus gets
        this version or a later one, whichever gateway and worker process the request.
        """
        if any(self._may_start_run(command) for command in commands):
            await self._catch_up()

    def _may_start_run(self, sent: CommandSent) -> bool:
        command = sent.command
        begins = creates(command) or isinstance(command, RestartRun)
        return begins and sent.workflow not in self._declared

    async def _catch_up(self) -> None:
        retrying = Retrying(log, "new runs of deployed graphs wait")
        self._apply(await retrying.until_done(self._log.catch_up))

    def _apply(self, catalogue: Catalogue) -> None:
        for name, versions in catalogue.versions.items():
            new = versions[self._seen.get(name, 0) :]
            if not new:
                continue
            self._seen[name] = len(versions)
            for version in new:
                self.hosts[version.digest] = self._host_of(version)
            deployed = [version for version in new if not version.app]
            # A graph of an app that is not served here is not run here, like the app's workflows of
            # code. One under a name of a deployment is kept for a rollback of that.
            of_app = name in catalogue.apps and name not in catalogue.deployments
            if deployed and name not in self._declared and not of_app:
                self._make_ready(deployed[-1])

    def _host_of(self, version: Version) -> int:
        number = self._hosts.number_of(version.app)
        if number is not None:
            return number
        nodes = json.loads(version.document)["nodes"]
        return self._hosts.number_with({node["task"] for node in nodes if node.get("task")})

    def _make_ready(self, version: Version) -> None:
        try:
            self._deploy(graph_of(version.document))
        except DefinitionInvalid as error:
            # Deployed by a release with other rules. No older version is used instead.
            log.error(  # noqa: TRY400
                "version %d of the graph %s cannot be run: %s", version.number, version.name, error
            )
            self.kinds.pop(version.name, None)
        else:
            self.kinds[version.name] = KIND


# -- code of apps and deployments


class RunnableCode:
    """The code of a worker.

    Args:
        hosts: Hosts of the apps.
        without_host: Kinds of workflows that need no code.
        graphs: Deployed graphs; None if they are not followed.
        deployed: Deployed code; None if it is not followed.
    """

    def __init__(
        self,
        hosts: Hosts,
        without_host: Mapping[str, str],
        graphs: DeployedGraphs | None,
        deployed: DeployedCode | None,
    ) -> None:
        self._hosts, self._without_host = hosts, dict(without_host)
        self._graphs, self._deployed = graphs, deployed
        self._followed = [source for source in (graphs, deployed) if source is not None]

    async def start(self, changed: Callable[[], None]) -> None:
        """Read what is deployed. `changed` is called whenever that changes."""
        if self._deployed is not None:
            await self._deployed.start(self._hosts, changed)
        if self._graphs is not None:
            await self._graphs.start(self._hosts, self._deployments())

    def follow(
        self, hosts_in_use: Callable[[], Collection[int]]
    ) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield coroutines that follow changes until they are cancelled."""
        if self._deployed is not None:
            yield self._deployed.run(hosts_in_use)
            if self._graphs is not None:
                yield self._graphs.follow(self._deployed.activated)

    async def stop(self) -> None:
        """Stop following."""
        await asyncio.gather(*(source.stop() for source in self._followed))

    async def before_deciding(self, commands: Sequence[CommandSent]) -> None:
        """Read what is deployed as far as these commands need it."""
        await asyncio.gather(*(source.before_deciding(commands) for source in self._followed))

    def workflows(self) -> Mapping[str, str]:
        """Return the kinds of workflows that can be started. Grows with what is deployed."""
        deployed = {} if self._graphs is None else self._graphs.kinds
        return ChainMap(self._hosts.kinds(), self._without_host, deployed)

    def _deployments(self) -> Deployments:
        return Deployments() if self._deployed is None else self._deployed.deployments

    def code(self) -> Code:
        """Return the code for owners' decisions."""
        deployed = {} if self._graphs is None else self._graphs.hosts
        numbers = ChainMap(self._hosts.numbers(), deployed)
        params, limits = self._hosts.params(), self._hosts.concurrency()
        of_apps = (self.workflows(), params, limits, numbers)
        latest = self._hosts.declared.latest
        if self._deployed is None:
            return Code(*of_apps, latest=latest)
        return Code(*of_apps, self._deployments(), self._deployed.host_of, latest)
