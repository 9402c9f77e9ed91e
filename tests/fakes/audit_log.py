"""An audit log in memory."""

import asyncio

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.schemas.records import OperationAudited


class MemoryAudit:
    """Keeps entries in lists: all of them, the attempts, and the results (`entries`).

    `away` makes it a log whose broker does not answer, `full` one that holds as much as it may.
    `away_after` makes it go away once that many entries were stored.
    """

    def __init__(self, *, away: bool = False) -> None:
        self.log: list[OperationAudited] = []
        self.entries: list[OperationAudited] = []
        self.attempts: list[OperationAudited] = []
        self.away = away
        self.full = False
        self.away_after: int | None = None
        self.stored = asyncio.Event()

    def clear(self) -> None:
        for entries in (self.log, self.entries, self.attempts):
            entries.clear()
        self.away = self.full = False
        self.away_after = None
        self.stored = asyncio.Event()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def append(self, record: OperationAudited) -> None:
        if self.away or (self.away_after is not None and len(self.log) >= self.away_after):
            raise BrokerUnavailable("expected an acknowledgement, found none")
        if self.full:
            raise Overloaded("expected room for an entry, found none")
        stored = decode(encode(record), OperationAudited)
        self.log.append(stored)
        self.stored.set()
        (self.attempts if stored.result == "attempted" else self.entries).append(stored)
