"""The topic of endpoints."""

from headwater.processors.endpoints import Endpoint, Endpoints
from headwater.schemas.codec import encode, read_endpoint_record
from headwater.schemas.endpoints import (
    EndpointCreated,
    EndpointDeleted,
    EndpointRecord,
    EndpointSecretSet,
    EndpointStateSet,
)
from headwater.schemas.topics import ENDPOINTS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import FoldedTopic

#: Ends of the keys of records: one replaces the earlier one with its key.
_KEY_ENDS = {
    EndpointCreated: "",
    EndpointDeleted: "",
    EndpointSecretSet: ".secret",
    EndpointStateSet: ".state",
}


class EndpointLog(FoldedTopic[Endpoints, Endpoint | None]):
    """Follows the endpoints, and appends to them. Connects on first use."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        super().__init__(ENDPOINTS, Endpoints(), _apply, cluster=cluster, client_id=client_id)

    async def write(self, record: EndpointRecord) -> Endpoint | None:
        """Append a record. Return the endpoint that it changed, when it is durable.

        Raises:
            BrokerUnavailable: It may have been appended.
        """
        key = record.id + _KEY_ENDS[type(record)]
        return await self.append(key, encode(record), replaces=True)

    async def erase(self, endpoint_id: str) -> None:
        """Remove what the log still has of a deleted endpoint, with its secrets.

        Raises:
            BrokerUnavailable: It may have been appended.
        """
        for end in (".secret", ".state"):
            await self.append_to(ENDPOINTS, endpoint_id + end, None, replaces=True)


def _apply(endpoints: Endpoints, value: bytes | None) -> Endpoint | None:
    return endpoints.apply(read_endpoint_record(value))
