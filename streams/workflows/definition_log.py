"""The topic of graph definitions: followed by whoever runs, shows or deploys graphs."""

from headwater.processors.graph.catalogue import Catalogue, Outcome
from headwater.schemas.codec import decode, encode
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.topics import GRAPH_DEFINITIONS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import FoldedTopic


class DefinitionLog:
    """Follows the topic, and deploys; connects when first used."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        #: What was read so far.
        self.catalogue = Catalogue()
        self._topic = FoldedTopic[Outcome](
            GRAPH_DEFINITIONS, self._apply, cluster=cluster, client_id=client_id
        )

    async def stop(self) -> None:
        """Disconnects."""
        await self._topic.stop()

    async def catch_up(self) -> Catalogue:
        """All that was deployed before the call, and perhaps more.

        Errors: BrokerUnavailable; NotYetReadable, for what a newer release has deployed.
        """
        await self._topic.catch_up()
        return self.catalogue

    def _apply(self, value: bytes | None) -> Outcome:
        return self.catalogue.apply(decode(value, GraphDeployed))

    async def deploy(self, record: GraphDeployed) -> Outcome:
        """Deploys a definition; says what came of it once it is durable.

        Errors: BrokerUnavailable, when it may have been deployed: to say it again does no harm.
        """
        return await self._topic.append(record.name, encode(record))
