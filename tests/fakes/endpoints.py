"""The topic of endpoints in memory: the fold is the real one."""

from headwater.processors.endpoints import Endpoint, Endpoints
from headwater.schemas.codec import encode, read_endpoint_record
from headwater.schemas.endpoints import EndpointRecord
from headwater.schemas.errors import BrokerUnavailable


class MemoryEndpoints:
    """A topic; `away` makes it one whose broker does not answer; `reads` counts."""

    def __init__(self) -> None:
        self.records: list[EndpointRecord] = []
        self.erased: list[str] = []
        self.fold = Endpoints()
        self.away = False
        self.reads = 0

    async def catch_up(self) -> Endpoints:
        self._check()
        self.reads += 1
        return self.fold

    async def write(self, record: EndpointRecord) -> Endpoint | None:
        self._check()
        self.records.append(record)
        return self.fold.apply(read_endpoint_record(encode(record)))

    async def erase(self, endpoint_id: str) -> None:
        self._check()
        self.erased.append(endpoint_id)

    async def stop(self) -> None:
        pass

    def _check(self) -> None:
        if self.away:
            raise BrokerUnavailable("expected an answer of memory within 5 s, found none")
