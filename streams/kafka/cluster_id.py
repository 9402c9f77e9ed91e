"""The id that Kafka assigns to a cluster once, whatever its addresses are."""

from headwater.streams.kafka.clients import admin_client
from headwater.streams.kafka.cluster import Cluster


async def cluster_id(cluster: Cluster) -> str:
    """Return the id of a cluster.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with admin_client(cluster) as admin:
        return str((await admin.describe_cluster())["cluster_id"])
