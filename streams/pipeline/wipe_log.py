"""Order wipes: append a delivery `user_wiped` to every partition of `webhooks`, after its fence."""

from collections.abc import Callable
from hashlib import sha256

import msgspec

from headwater.processors.wipes import SOURCE, TYPE, WipeOrder
from headwater.schemas.codec import encode
from headwater.schemas.records import WebhookReceived
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.kafka.records import Outgoing

#: The hexadecimal digits of an event id.
_ID_CHARS = 32


class WipeLog:
    """Orders wipes. A wipe that has been ordered is carried out, whichever processes crash."""

    def __init__(self, *, cluster: Cluster, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._appender = Appender(cluster=cluster, client_id="headwater-wipes")
        self._offsets = Offsets(cluster, "headwater-wipes")

    async def start(self) -> None:
        """Do nothing: the first order connects."""

    async def stop(self) -> None:
        """Disconnect."""
        await self._offsets.stop()
        await self._appender.stop()

    async def order(self, user_id: str, wipe_id: str) -> int:
        """Order a wipe; return, when it is durable, how many partitions carry it out.

        Raises:
            BrokerUnavailable: Some partitions may have it; the call can be repeated safely.
        """
        partitions = range(await self.partitions())
        ends = [await self._offsets.ends([WEBHOOKS], partition) for partition in partitions]
        fence = tuple(end[WEBHOOKS] for end in ends)
        body = msgspec.json.encode(WipeOrder(wipe_id, user_id, fence))
        now_ms = self._clock()
        await self._appender.append_or_stop(
            [_record(wipe_id, user_id, body, partition, now_ms) for partition in partitions]
        )
        return len(partitions)

    async def partitions(self) -> int:
        """Return how many partitions carry out each wipe.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        return await self._appender.partitions(WEBHOOKS)


def _record(wipe_id: str, user_id: str, body: bytes, partition: int, now_ms: int) -> Outgoing:
    event_id = sha256(f"{TYPE}\0{wipe_id}\0{partition}".encode()).hexdigest()[:_ID_CHARS]
    delivery = WebhookReceived(
        event_id=event_id,
        request_id=wipe_id,
        source=SOURCE,
        type=TYPE,
        subject=user_id,
        sent_at_ms=now_ms,
        updated_at_ms=0,
        received_at_ms=now_ms,
        body=body,
    )
    return Outgoing(WEBHOOKS, partition, event_id.encode(), encode(delivery))
