"""Appends what was done by those who have a key: an entry is durable before its answer goes out.

An entry is not taken back by who no longer waits for it: what it tells of has been done. What is
queued while Kafka is away is appended when it is back; what was under way may be in the log or not,
as its caller was told.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from headwater.schemas.audit import OperationAudited
from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.topics import AUDIT
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.group_commit import GroupCommit
from headwater.streams.kafka.producers import Producers
from headwater.streams.kafka.records import Outgoing

#: Where all of the topic lies: one order, so that one hash vouches for all before it.
PARTITION: Final = 0
#: Bytes that are held while Kafka is away: some 8,000 entries.
_HELD_BYTES_MAX: Final = 8 * 1024 * 1024


class _Entry:
    """An entry on its way."""

    __slots__ = ("durable", "record")

    def __init__(self, record: Outgoing) -> None:
        self.record = record
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class AuditLog:
    """The topic `audit`, as the gateway sees it."""

    def __init__(self, *, cluster: Cluster, append_timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = append_timeout_s
        # Without a linger: whoever waits has waited for the operation already.
        self._commit = GroupCommit[_Entry](
            Producers(cluster, "headwater-gateway-audit"),
            AUDIT,
            settled=_settled,
            held_bytes_max=_HELD_BYTES_MAX,
            linger_s=0,
        )

    async def start(self) -> None:
        """Starts in the background; Kafka may be away, now or later."""
        await self._commit.start()

    async def stop(self) -> None:
        """Disconnects, within seconds even if Kafka stalls."""
        await self._commit.stop()

    async def append(self, record: OperationAudited) -> None:
        """Appends an entry; returns when it is durable.

        Errors: Overloaded, NotYetReadable; there will be no entry. BrokerUnavailable; it may be in
                the log all the same, or come there.
        """
        if not self._commit.partitions:
            raise BrokerUnavailable(
                f"expected the topic {AUDIT} at {self._cluster}, found no connection yet, or no "
                "such topic; `headwater topics create` makes the topics"
            )
        key = record.project_id.encode()
        entry = _Entry(Outgoing(AUDIT, PARTITION, key, encode(record)))
        self._commit.add([entry])
        try:
            async with asyncio.timeout(self._timeout_s):
                await entry.durable
        except TimeoutError:
            raise BrokerUnavailable(
                f"expected an acknowledgement of {self._cluster} within {self._timeout_s} s, "
                "found none"
            ) from None


def _settled(entries: Sequence[_Entry], error: BrokerUnavailable | None) -> None:
    for entry in entries:
        if entry.durable.done():
            continue  # Nobody waits any more.
        if error is None:
            entry.durable.set_result(None)
        else:
            entry.durable.set_exception(error)
