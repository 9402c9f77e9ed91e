"""Records that an operator has marked to be skipped: written once, read by every part at its start.

A record that cannot be read, and that looks as if a later release had written it, holds up its
partition. If no release of ours did write it, only a person can know that. The mark is a record of
the topic `skipped`, so it holds for every part; the bytes are a dead letter first. Parts that wait
are restarted: what they hold in memory was read without the mark. A record that can be read is only
marked when the operator insists: it may be one that a part cannot process.
"""

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import msgspec

from headwater.schemas import newer
from headwater.schemas.codec import decode, decode_problem, encode
from headwater.schemas.errors import HeadwaterError, UndecodableRecord
from headwater.schemas.failures import INTERNAL
from headwater.schemas.history import CommandSent, ReplySent
from headwater.schemas.newer import RecordPosition
from headwater.schemas.topics import SKIPPED, TOPICS, WORKFLOW_COMMANDS, WORKFLOW_REPLIES
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
    places: list[RecordPosition] = []

    async def read() -> None:
        places.clear()
        async with aclosing(read_partition(cluster, [SKIPPED], _PARTITION)) as batches:
            async for records in batches:
                marks = [msgspec.json.decode(record.value or b"", type=Mark) for record in records]
                places.extend(
                    RecordPosition(mark.topic, mark.partition, mark.offset) for mark in marks
                )

    await Retrying(log, "waiting for Kafka to learn which records are skipped").until_done(read)
    for place in set(places) - newer.skipped():
        log.warning("%s/%d@%d is passed over, as an operator has said", *place)
    newer.skip(places)


async def find(
    cluster: Cluster, place: RecordPosition, *, force: bool = False
) -> tuple[Incoming, str]:
    """Return a record that may be skipped, and what is wrong with it.

    Args:
        cluster: Where it is.
        place: Its topic, partition and offset.
        force: Whether it may also be one that can be read.

    Raises:
        UndecodableRecord: There is no such record, or it can be read.
        BrokerUnavailable: No broker answered.
    """
    at = f"{place.topic}/{place.partition}@{place.offset}"
    schemas = _VALUES.get(place.topic)
    if schemas is None:
        raise UndecodableRecord(f"expected a topic whose records Headwater decodes, found {at}")
    found = await _first(cluster, place)
    if found is None or found.offset != place.offset:
        raise UndecodableRecord(f"expected a record at {at}, found none")
    faults = [decode_problem(found.value, schema) for schema in schemas]
    if None not in faults:
        return found, str(faults[0])
    kind = schemas[faults.index(None)]
    if not force:
        raise UndecodableRecord(
            f"expected a record that cannot be read at {at}, found a {kind}, which holds up "
            "nothing as a rule; skip it with --force if a part cannot process it"
        )
    return found, f"a {kind} that can be read, skipped by force"


async def _first(cluster: Cluster, place: RecordPosition) -> Incoming | None:
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
        if (reply := _reply(record)) is not None:
            await appender.append([reply])
    finally:
        await appender.stop()


def _reply(record: Incoming) -> Outgoing | None:
    """Return the answer to the sender of a command, if one waits for it."""
    if record.topic != WORKFLOW_COMMANDS or record.value is None:
        return None
    try:
        sent = decode(record.value, CommandSent)
    except HeadwaterError:
        return None
    if sent.reply_to < 0:
        return None
    reply = ReplySent(
        command_id=sent.command_id,
        code=INTERNAL,
        message="an operator has skipped this command: it has no effect",
        status="",
        run_number=0,
        partition=record.partition,
        position=-1,
    )
    return Outgoing(WORKFLOW_REPLIES, sent.reply_to, None, encode(reply))
