"""Which cluster it is: the id that Kafka gives a cluster once, whatever its addresses are."""

from headwater.streams.kafka.clients import admin_of
from headwater.streams.kafka.cluster import Cluster


async def cluster_id(cluster: Cluster) -> str:
    """The id of a cluster.

    Errors: BrokerUnavailable.
    """
    async with admin_of(cluster) as admin:
        return str((await admin.describe_cluster())["cluster_id"])
