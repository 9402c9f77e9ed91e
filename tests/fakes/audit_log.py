"""An audit log in memory."""

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.schemas.records import OperationAudited


class MemoryAudit:
    """Keeps entries in a list; `away` makes it a log whose broker does not answer, `full` one that
    holds as much as it may.
    """

    def __init__(self, *, away: bool = False) -> None:
        self.entries: list[OperationAudited] = []
        self.away = away
        self.full = False

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def append(self, record: OperationAudited) -> None:
        if self.away:
            raise BrokerUnavailable("expected an acknowledgement, found none")
        if self.full:
            raise Overloaded("expected room for an entry, found none")
        self.entries.append(decode(encode(record), OperationAudited))
