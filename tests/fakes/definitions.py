"""The log of graph definitions in memory: the fold is the real one."""

from headwater.processors.graph.catalogue import Catalogue, Outcome
from headwater.schemas.deployments import GraphDeployed
from headwater.schemas.errors import BrokerUnavailable


class MemoryDefinitions:
    """Deploys at once; `away` makes it a log whose broker does not answer."""

    def __init__(self, *, away: bool = False) -> None:
        self.catalogue = Catalogue()
        self._away = away

    async def catch_up(self) -> Catalogue:
        self._check()
        return self.catalogue

    async def deploy(self, record: GraphDeployed) -> Outcome:
        self._check()
        return self.catalogue.apply(record)

    async def stop(self) -> None:
        pass

    def _check(self) -> None:
        if self._away:
            raise BrokerUnavailable("expected an answer of memory within 5 s, found none")
