"""The topic of graph definitions, for processes that run, show or deploy graphs."""

from headwater.processors.graph.catalogue import Catalogue, Outcome
from headwater.schemas.codec import decode, encode
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.topics import GRAPH_DEFINITIONS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import FoldedTopic


class DefinitionLog(FoldedTopic[Catalogue, Outcome]):
    """Follows the topic, and deploys definitions. Connects on first use."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        super().__init__(
            GRAPH_DEFINITIONS, Catalogue(), _apply, cluster=cluster, client_id=client_id
        )

    async def deploy(self, record: GraphDeployed) -> Outcome:
        """Deploy a definition. Return the outcome when it is durable.

        Raises:
            BrokerUnavailable: It may have been deployed. It is safe to deploy it again.
        """
        return await self.append(record.name, encode(record))


def _apply(catalogue: Catalogue, value: bytes | None) -> Outcome:
    return catalogue.apply(decode(value, GraphDeployed))
