"""The log of graph definitions in memory: the fold is the real one."""

from headwater.processors.graph.catalogue import Catalogue, Outcome
from headwater.schemas.definitions import GraphDeployed


class MemoryDefinitions:
    """Deploys at once."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()

    async def catch_up(self) -> Catalogue:
        return self.catalogue

    async def deploy(self, record: GraphDeployed) -> Outcome:
        return self.catalogue.apply(record)

    async def stop(self) -> None:
        pass
