"""The topic of API keys in memory: the fold is the real one."""

from headwater.processors.api_keys import ApiKey, ApiKeys
from headwater.schemas.api_keys import ApiKeyRecord, ApiKeyUsed
from headwater.schemas.codec import encode, read_api_key_record
from headwater.schemas.errors import BrokerUnavailable


class MemoryApiKeys:
    """A topic; gateways that share `records` each have a copy of it.

    `away` makes it a topic whose broker does not answer.
    """

    def __init__(self, records: list[bytes] | None = None) -> None:
        self.records: list[bytes] = [] if records is None else records
        self.fold = ApiKeys()
        self.away = False
        self.read = 0

    async def catch_up(self) -> ApiKeys:
        self._check()
        while self.read < len(self.records):
            self._apply()
        return self.fold

    def _apply(self) -> ApiKey | None:
        self.read += 1
        return self.fold.apply(read_api_key_record(self.records[self.read - 1]))

    async def write(self, record: ApiKeyRecord) -> ApiKey | None:
        self._check()
        self.records.append(encode(record))
        changed = None
        while self.read < len(self.records):
            changed = self._apply()
        return changed

    async def record_use(self, record: ApiKeyUsed) -> None:
        self._check()
        self.records.append(encode(record))

    async def stop(self) -> None:
        pass

    def _check(self) -> None:
        if self.away:
            raise BrokerUnavailable("expected an answer of memory within 5 s, found none")
