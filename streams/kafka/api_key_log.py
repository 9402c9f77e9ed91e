"""The topic of API keys."""

from headwater.processors.api_keys import ApiKey, ApiKeys
from headwater.schemas.api_keys import ApiKeyRecord, ApiKeyUsed
from headwater.schemas.codec import encode, read_api_key_record
from headwater.schemas.topics import API_KEYS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import FoldedTopic


class ApiKeyLog(FoldedTopic[ApiKeys, ApiKey | None]):
    """Follows the API keys, and appends to them. Connects on first use."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        super().__init__(API_KEYS, ApiKeys(), _apply, cluster=cluster, client_id=client_id)

    async def write(self, record: ApiKeyRecord) -> ApiKey | None:
        """Append a record. Return the key that it changed, when it is durable.

        Raises:
            BrokerUnavailable: It may have been appended.
        """
        return await self.append(record.id, encode(record))

    async def record_use(self, record: ApiKeyUsed) -> None:
        """Append the time of the last use of a key, which replaces the earlier one.

        Raises:
            BrokerUnavailable: It may have been appended.
        """
        await self.append_to(API_KEYS, record.id, encode(record), replaces=True)


def _apply(keys: ApiKeys, value: bytes | None) -> ApiKey | None:
    return keys.apply(read_api_key_record(value))
