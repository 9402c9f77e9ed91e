"""The graphs that were deployed, as a worker runs them: beside what its apps declare."""

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import partial

from headwater.processors.deployments import Deployments
from headwater.processors.graph.catalogue import Catalogue, Version
from headwater.processors.graph.definition import DefinitionInvalid, digest, read_definition
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.state import KIND
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.history import CommandSent, RestartRun, creates
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.definition_log import DefinitionLog
from headwater.streams.workflows.hosts import Hosts

log = logging.getLogger(__name__)


class DeployedGraphs:
    """Makes new runs from what is deployed, and tells which host has the tasks.

    A name that an app declares is the app's: its workers make runs from what they have loaded, and
    publish it when they start, so that others see it and nobody deploys over it.

    Shape:  `deploy` makes new runs of a graph's name from it, from then on.
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
        #: The kinds of the runs of deployed graphs, by their names: grows while partitions use it.
        self.kinds: dict[str, str] = {}
        #: The numbers of the hosts that have the tasks of deployed graphs, by their digests.
        self.hosts: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._declared: Collection[str] = ()
        self._hosts: Hosts

    async def start(self, hosts: Hosts, deployments: Deployments) -> None:
        """Publishes what apps declare, and learns all that is deployed; waits for Kafka.

        Shape:  of the deployments the active one has its graphs published, too.
        """
        self._hosts = hosts
        self._declared = hosts.kinds().keys()
        await self._publish_all(deployments)
        await self._catch_up()

    async def follow(self, activated: Callable[[int], Awaitable[Deployments]]) -> None:
        """Publishes the graphs of each deployment that is activated, until it is cancelled.

        Shape:  activated waits until there were more activations than so many.
        """
        moves = 0
        while True:
            deployments = await activated(moves)
            moves = deployments.moves
            await self._publish_all(deployments)

    async def _publish_all(self, deployments: Deployments) -> None:
        """Says what new runs are made from: the active deployment comes before apps."""
        retrying = Retrying(log, "graphs of apps and deployments cannot be published yet")
        for record in self._to_say(deployments):
            await retrying.until_done(partial(self._publish, record))

    def _to_say(self, deployments: Deployments) -> Iterator[GraphDeployed]:
        """What the active deployment has or has no more, and then what the apps have beside it."""
        active, graphs = deployments.active, deployments.graphs()
        for name, graph in graphs.items():
            assert active is not None  # noqa: S101, there are none before the first activation
            if graph is not None:
                yield self._record(active.app, name, graph.document, deployments.moves, active.id)
            elif name not in self._declared:
                yield self._record("", name, None, deployments.moves, active.id)
        for app, declared in self._hosts.declared_by_app().items():
            for name in declared.workflows:
                if graphs.get(name) is None:
                    # Activations are of no account for a name that no deployment ever had.
                    moves = deployments.moves if name in graphs else 0
                    yield self._record(app, name, declared.graphs.get(name), moves)

    def _record(
        self, app: str, name: str, document: str | None, moves: int, deployment: str = ""
    ) -> GraphDeployed:
        found = "" if document is None else digest(read_definition(document))
        return GraphDeployed(
            name=name,
            document=document or "",
            digest=found,
            app=app,
            after="",
            at_ms=self._clock(),
            moves=moves,
            deployment=deployment,
        )

    async def _publish(self, record: GraphDeployed) -> None:
        """Says something, unless it is known."""
        catalogue = await self._log.catch_up()
        if not catalogue.has(record):
            # The fold leaves it out if somebody has said more meanwhile.
            await self._log.deploy(record)

    async def stop(self) -> None:
        """Disconnects."""
        await self._log.stop()

    # -- before commands are decided

    async def before(self, commands: Iterable[CommandSent]) -> None:
        """Waits until all is known that was deployed before commands came that begin runs of it.

        So whoever hears that a version is deployed, and then creates an instance, gets this version
        or a later one, whichever gateway and worker they reach.
        """
        if any(self._needs(each) for each in commands):
            await self._catch_up()

    def _needs(self, sent: CommandSent) -> bool:
        command = sent.command
        begins = creates(command) or isinstance(command, RestartRun)
        return begins and sent.workflow not in self._declared

    async def _catch_up(self) -> None:
        retrying = Retrying(log, "new runs of deployed graphs have to wait")
        self._take(await retrying.until_done(self._log.catch_up))

    def _take(self, catalogue: Catalogue) -> None:
        for name, versions in catalogue.versions.items():
            new = versions[self._seen.get(name, 0) :]
            if not new:
                continue
            self._seen[name] = len(versions)
            for version in new:
                self.hosts[version.digest] = self._host_of(version)
            deployed = [version for version in new if not version.app]
            # A name of an app that is not here is not run, as its workflows of code are not. One of
            # a deployment is ready for the way back.
            of_app = name in catalogue.apps and name not in catalogue.deployments
            if deployed and name not in self._declared and not of_app:
                self._make_ready(deployed[-1])

    def _host_of(self, version: Version) -> int:
        number = self._hosts.number_of(version.app)
        if number is not None:
            return number
        nodes = json.loads(version.document)["nodes"]
        return self._hosts.number_with({each["task"] for each in nodes if each.get("task")})

    def _make_ready(self, version: Version) -> None:
        try:
            self._deploy(graph_of(version.document))
        except DefinitionInvalid as fault:
            # A release with other rules deployed it. None are begun of an older version instead.
            log.error(  # noqa: TRY400
                "version %d of the graph %s cannot be run: %s", version.number, version.name, fault
            )
            self.kinds.pop(version.name, None)
        else:
            self.kinds[version.name] = KIND
