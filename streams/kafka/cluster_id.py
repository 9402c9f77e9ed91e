"""Which cluster it is: the id that Kafka gives a cluster once, whatever its addresses are."""

from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.cluster import Cluster


async def cluster_id(cluster: Cluster) -> str:
    """The id of a cluster.

    Errors: BrokerUnavailable.
    """
    admin = AIOKafkaAdminClient(**cluster.options())
    try:
        await admin.start()
        found: dict[str, Any] = await admin.describe_cluster()
    except (KafkaError, OSError) as error:
        raise BrokerUnavailable(
            f"expected Kafka at {cluster}, found: {error!r}; is the broker up?"
        ) from error
    finally:
        await admin.close()
    return str(found["cluster_id"])
