"""Records that an operator has said to pass over: written once, read by every part at its start.

A record that cannot be read, and that looks as if a later release had written it, holds up its
partition. If no release of ours did write it, only a person can know that. What the person says is
a record of the topic `skipped`, so it holds for every part and for ever; the bytes are a dead
letter first. Parts that wait are restarted: what they hold in memory was read without the mark.
"""

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import msgspec

from headwater.schemas import newer
from headwater.schemas.codec import fault_of
from headwater.schemas.errors import UndecodableRecord
from headwater.schemas.newer import Place
from headwater.schemas.topics import SKIPPED, TOPICS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import dead_letter
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, place_of
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: All marks lie in one partition: there are few, and everybody reads them all.
_PARTITION: Final = 0
_VALUES: Final = {topic.name: (topic.value, *topic.others) for topic in TOPICS if topic.value}


class Mark(msgspec.Struct, frozen=True):
    """What an operator has said of a record (topic `skipped`, JSON)."""

    topic: str
    partition: int
    offset: int
    #: What is wrong with the record, for people.
    fault: str
    at_ms: int


async def pass_over_skipped(cluster: Cluster) -> None:
    """Has this process pass over all records that are marked; waits for Kafka."""
    places: list[Place] = []

    async def read() -> None:
        places.clear()
        async with aclosing(read_partition(cluster, [SKIPPED], _PARTITION)) as batches:
            async for records in batches:
                marks = [msgspec.json.decode(record.value or b"", type=Mark) for record in records]
                places.extend(Place(mark.topic, mark.partition, mark.offset) for mark in marks)

    await Retrying(log, "waiting for Kafka to learn which records are skipped").until_done(read)
    for place in set(places) - newer.skipped():
        log.warning("%s/%d@%d is passed over, as an operator has said", *place)
    newer.skip(places)


async def find(cluster: Cluster, place: Place) -> tuple[Incoming, str]:
    """A record that may be skipped, and what is wrong with it.

    Errors: UndecodableRecord if there is none, or if it can be read; BrokerUnavailable.
    """
    at = f"{place.topic}/{place.partition}@{place.offset}"
    schemas = _VALUES.get(place.topic)
    if schemas is None:
        raise UndecodableRecord(f"expected a topic whose records Headwater decodes, found {at}")
    found = await _first(cluster, place)
    if found is None or found.offset != place.offset:
        raise UndecodableRecord(f"expected a record at {at}, found none")
    faults = [fault_of(found.value, schema) for schema in schemas]
    if None in faults:
        raise UndecodableRecord(
            f"expected a record that cannot be read at {at}, found a "
            f"{schemas[faults.index(None)]}: it holds up nothing"
        )
    return found, str(faults[0])


async def _first(cluster: Cluster, place: Place) -> Incoming | None:
    """The first record from a place on."""
    reading = read_partition(cluster, [place.topic], place.partition, start=place.offset)
    async with aclosing(reading) as batches:
        async for records in batches:
            return records[0]
    return None


async def mark_skipped(
    cluster: Cluster, record: Incoming, fault: str, clock: Callable[[], int]
) -> None:
    """Makes a dead letter of a record, and has everybody pass over it from their next start on.

    Errors: BrokerUnavailable; to say it again does no harm.
    """
    now_ms = clock()
    letter = dead_letter(record, stage="operator", reason="skipped", detail=fault, now_ms=now_ms)
    mark = Mark(record.topic, record.partition, record.offset, fault, now_ms)
    key = place_of(record).encode()
    appender = Appender(cluster=cluster, client_id="headwater-skip")
    try:
        await appender.append([letter])
        await appender.append([Outgoing(SKIPPED, _PARTITION, key, msgspec.json.encode(mark))])
    finally:
        await appender.stop()
