"""What a worker can run: workflows of its apps, those that need no host, and what is deployed."""

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
        hosts: Of the apps.
        without_host: Workflows that need no code, with their kinds.
        graphs: Deployed graphs, or None where they are not followed.
        deployed: Deployed code, or None where it is not followed.
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
        self._followed = [each for each in (graphs, deployed) if each is not None]

    async def start(self, changed: Callable[[], None]) -> None:
        """Read what is deployed; `changed` is called whenever that changes."""
        if self._deployed is not None:
            await self._deployed.start(self._hosts, changed)
        if self._graphs is not None:
            await self._graphs.start(self._hosts, self._deployments())

    def follow(
        self, hosts_in_use: Callable[[], Collection[int]]
    ) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what follows changes until it is cancelled."""
        if self._deployed is not None:
            yield self._deployed.run(hosts_in_use)
            if self._graphs is not None:
                yield self._graphs.follow(self._deployed.activated)

    async def stop(self) -> None:
        """Follow nothing any more."""
        await asyncio.gather(*(each.stop() for each in self._followed))

    async def before_deciding(self, commands: Sequence[CommandSent]) -> None:
        """Read what is deployed as far as these commands need it."""
        await asyncio.gather(*(each.before(commands) for each in self._followed))

    def workflows(self) -> Mapping[str, str]:
        """What may be started; grows with what is deployed."""
        deployed = {} if self._graphs is None else self._graphs.kinds
        return ChainMap(self._hosts.kinds(), self._without_host, deployed)

    def _deployments(self) -> Deployments:
        return Deployments() if self._deployed is None else self._deployed.deployments

    def code(self) -> Code:
        """What owners decide by."""
        deployed = {} if self._graphs is None else self._graphs.hosts
        numbers = ChainMap(self._hosts.numbers(), deployed)
        params, limits = self._hosts.params(), self._hosts.concurrency()
        of_apps = (self.workflows(), params, limits, numbers)
        if self._deployed is None:
            return Code(*of_apps)
        return Code(*of_apps, self._deployments(), self._deployed.host_of)
