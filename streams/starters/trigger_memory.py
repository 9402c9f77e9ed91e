"""Which deliveries of a partition of `events` were there before.

A stage of the pipeline that dies between appending and committing appends the same deliveries once
more, under new offsets. Rows do not mind; a signal would be sent twice. So of copies the first
counts, as far back as copies can lie apart: what a stage had under way, which is at most what it
did within the second before its last commit, and what others wrote until it was replaced.
"""

from collections.abc import Iterator
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.schemas.codec import decode
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.records import WebhookAdmitted
from headwater.streams.kafka.records import Incoming

#: Deliveries that are remembered of a partition; some 10 MB.
SEEN_MAX: Final = 50_000
#: Records that are read again by whoever takes a partition: while nobody was there, the pipeline
#: may have been away, too, and then little lies between copies.
LOOK_BACK: Final = 5_000

_POLL_MS: Final = 1_000


class Seen:
    """The first offsets of the deliveries of one partition."""

    def __init__(self, limit: int = SEEN_MAX) -> None:
        self._limit = limit
        self._first: dict[str, int] = {}

    def is_copy(self, event_id: str, offset: int) -> bool:
        """Takes note of a delivery; tells whether it was there at a lower offset."""
        first = self._first.setdefault(event_id, offset)
        if len(self._first) > self._limit:
            del self._first[next(iter(self._first))]
        return first < offset


async def look_back(bootstrap: str, where: TopicPartition, end: int) -> Seen:
    """What a partition holds right before an offset.

    Errors: KafkaError, OSError.
    """
    seen = Seen()
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        await consumer.start()
        consumer.assign([where])
        first = (await consumer.beginning_offsets([where]))[where]
        # A topic that was made anew may end before what the group remembers of the old one.
        end = min(end, (await consumer.end_offsets([where]))[where])
        consumer.seek(where, max(first, end - LOOK_BACK))
        while await consumer.position(where) < end:
            fetched = await consumer.getmany(timeout_ms=_POLL_MS)
            for event_id, offset in _deliveries(fetched.get(where, [])):
                if offset < end:
                    seen.is_copy(event_id, offset)
    finally:
        await consumer.stop()
    return seen


def _deliveries(records: list[Incoming]) -> Iterator[tuple[str, int]]:
    for record in records:
        try:
            yield decode(record.value, WebhookAdmitted).event_id, record.offset
        except (UndecodableRecord, UnknownSchema):
            continue  # Whoever was to process it has made a dead letter of it.
