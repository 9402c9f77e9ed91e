"""Replay deliveries: append them to `webhooks` again, with a mark.

Intake processes a record with that mark although it is a duplicate. Its rows do not change; a dead
or parked delivery may be processed successfully this time.
"""

from collections.abc import Collection
from contextlib import aclosing
from typing import Final, NamedTuple

from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import NO_EFFECTS, REPLAY_OF, original
from headwater.streams.kafka.record_lookup import iter_records_at
from headwater.streams.kafka.records import Incoming, Outgoing

_YES: Final = b"true"


class DeliveryToReplay(NamedTuple):
    """A delivery to replay.

    Attributes:
        event_id: Its id.
        positions: Partitions and offsets where its record may be.
        has_had_effects: Whether its effects on workflows have happened.
    """

    event_id: str
    positions: tuple[tuple[int, int], ...]
    has_had_effects: bool


class DeliveryReplay:
    """Appends deliveries again; connects at first use."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._appender = Appender(cluster=cluster, client_id="headwater-replay")

    async def replay(self, deliveries: Collection[DeliveryToReplay], replay_id: str) -> int:
        """Append deliveries again; return how many of them are still in the log.

        Raises:
            BrokerUnavailable: Some were appended; all may be appended again.
        """
        pending = {delivery.event_id: delivery for delivery in deliveries}
        for turn in range(max((len(delivery.positions) for delivery in deliveries), default=0)):
            # Compaction keeps the last record of an id: try one position after the other.
            positions = [
                delivery.positions[turn]
                for delivery in pending.values()
                if turn < len(delivery.positions)
            ]
            async with aclosing(iter_records_at(self._cluster, WEBHOOKS, positions)) as batches:
                async for records in batches:
                    appended = [
                        _marked(record, pending.pop(_id(record)), replay_id)
                        for record in records
                        if record.value is not None and _id(record) in pending
                    ]
                    await self._appender.append_or_stop(appended)
        return len(deliveries) - len(pending)

    async def stop(self) -> None:
        """Disconnect."""
        await self._appender.stop()


def _id(record: Incoming) -> str:
    return (record.key or b"").decode(errors="replace")


def _marked(record: Incoming, delivery: DeliveryToReplay, replay_id: str) -> Outgoing:
    headers = [*original(record), (REPLAY_OF, replay_id.encode())]
    if delivery.has_had_effects:
        headers.append((NO_EFFECTS, _YES))
    return Outgoing(WEBHOOKS, record.partition, record.key, record.value, headers)
