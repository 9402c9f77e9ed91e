"""Replaying deliveries: appends them to `webhooks` once more, with a mark.

Intake lets a record with a mark pass, though it is a copy. What it does to rows is nothing that has
not been done; what is dead or waits may come to more.
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


class Again(NamedTuple):
    """A delivery to replay: where it may lie, and whether it has had its effects on workflows."""

    event_id: str
    places: tuple[tuple[int, int], ...]
    has_had_effects: bool


class DeliveryReplay:
    """Appends deliveries again; connects when it is first used."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._appender = Appender(cluster=cluster, client_id="headwater-replay")

    async def again(self, deliveries: Collection[Again], replay_id: str) -> int:
        """Appends deliveries once more; returns of how many the log has the bytes.

        Errors: BrokerUnavailable; then some were appended, and all may be again.
        """
        left = {each.event_id: each for each in deliveries}
        for turn in range(max((len(each.places) for each in deliveries), default=0)):
            # Compaction keeps the last record of an id: who is not at one place is at the next.
            places = [each.places[turn] for each in left.values() if turn < len(each.places)]
            async with aclosing(iter_records_at(self._cluster, WEBHOOKS, places)) as batches:
                async for records in batches:
                    appended = [
                        _marked(record, left.pop(_id(record)), replay_id)
                        for record in records
                        if record.value is not None and _id(record) in left
                    ]
                    await self._appender.append_or_stop(appended)
        return len(deliveries) - len(left)

    async def stop(self) -> None:
        """Disconnects."""
        await self._appender.stop()


def _id(record: Incoming) -> str:
    return (record.key or b"").decode(errors="replace")


def _marked(record: Incoming, again: Again, replay_id: str) -> Outgoing:
    headers = [*original(record), (REPLAY_OF, replay_id.encode())]
    if again.has_had_effects:
        headers.append((NO_EFFECTS, _YES))
    return Outgoing(WEBHOOKS, record.partition, record.key, record.value, headers)
