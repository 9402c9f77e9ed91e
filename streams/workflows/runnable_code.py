"""The code that a worker can run: that of its apps and deployments, and workflows without code."""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from headwater.processors.deployments import Deployments
from headwater.schemas.history import CommandSent
from headwater.streams.engine.code import Code
from headwater.streams.workflows.deployed_code import DeployedCode
from headwater.streams.workflows.deployed_graphs import DeployedGraphs
from headwater.streams.workflows.hosts import Hosts


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
        if self._deployed is None:
            return Code(*of_apps)
        return Code(*of_apps, self._deployments(), self._deployed.host_of)
