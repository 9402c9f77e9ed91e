"""Append operations of API keys: an entry is durable before its response is sent.

A caller that no longer waits does not withdraw its entry, because the operation has happened.
Entries that are queued while Kafka is unavailable are appended when it is back; those in flight may
or may not be in the log, as the error to their caller stated.
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

#: The only partition of the topic: it has one order, so that one hash covers all earlier entries.
PARTITION: Final = 0
#: Bytes that are held while Kafka is unavailable: some 8,000 entries.
_HELD_BYTES_MAX: Final = 8 * 1024 * 1024


class _Entry:
    """An entry to append."""

    __slots__ = ("durable", "record")

    def __init__(self, record: Outgoing) -> None:
        self.record = record
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class AuditLog:
    """The topic `audit` for the gateway."""

    def __init__(self, *, cluster: Cluster, append_timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = append_timeout_s
        # Without a linger: the caller has waited for its operation already.
        self._commit = GroupCommit[_Entry](
            Producers(cluster, "headwater-gateway-audit"),
            AUDIT,
            settled=_settled,
            held_bytes_max=_HELD_BYTES_MAX,
            linger_s=0,
        )

    async def start(self) -> None:
        """Start in the background; Kafka may be unavailable now or later."""
        await self._commit.start()

    async def stop(self) -> None:
        """Disconnect, within seconds even if Kafka stalls."""
        await self._commit.stop()

    async def append(self, record: OperationAudited) -> None:
        """Append an entry; return when it is durable.

        Raises:
            Overloaded: There will be no entry.
            NotYetReadable: There will be no entry.
            BrokerUnavailable: It may be in the log all the same, or be appended later.
        """
        if not self._commit.partitions:
            raise BrokerUnavailable(
                f"expected the topic {AUDIT} at {self._cluster}, found no connection yet, or no "
                "such topic; `headwater topics create` creates the topics"
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
            continue  # No caller waits any more.
        if error is None:
            entry.durable.set_result(None)
        else:
            entry.durable.set_exception(error)
