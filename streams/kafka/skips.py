"""Records that an operator has marked to be skipped; processes read the marks at their start.

A record that cannot be decoded, and that looks as if a later release had written it, blocks its
partition. If none of our releases wrote it, only a person can know that. The mark is a record of
the topic `skipped`, so that it applies to all processes; a dead letter keeps the bytes. Blocked
processes have to be restarted: what they have in memory was read without the mark. A record that
can be decoded is marked only if the operator insists: it may be one that a process cannot handle.
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
from headwater.streams.kafka.dead_letters import ProcessingFailure, dead_letter
from headwater.streams.kafka.growth_marks import is_growth
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, position_of
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: All marks are in one partition: there are few, and all processes read all of them.
_PARTITION: Final = 0
_VALUES: Final = {topic.name: (topic.value, *topic.others) for topic in TOPICS if topic.value}


class SkipMark(msgspec.Struct, frozen=True):
    """An operator's mark on a record (topic `skipped`, JSON)."""

    topic: str
    partition: int
    offset: int
    #: What is wrong with the record, for people.
    fault: str
    at_ms: int


async def load_skips(cluster: Cluster) -> None:
    """Make this process skip all marked records; waits for Kafka."""
    positions: list[RecordPosition] = []

    async def read() -> None:
        positions.clear()
        async with aclosing(read_partition(cluster, [SKIPPED], _PARTITION)) as batches:
            async for records in batches:
                for record in records:
                    if is_growth(record):
                        continue
                    mark = msgspec.json.decode(record.value or b"", type=SkipMark)
                    positions.append(RecordPosition(mark.topic, mark.partition, mark.offset))

    await Retrying(log, "waiting for Kafka to learn which records are skipped").until_done(read)
    for position in set(positions) - newer.skipped():
        log.warning("%s/%d@%d is skipped, as an operator marked it", *position)
    newer.skip(positions)


async def find_skippable(
    cluster: Cluster, position: RecordPosition, *, force: bool = False
) -> tuple[Incoming, str]:
    """Return a record that may be skipped, and what is wrong with it.

    Args:
        cluster: The cluster.
        position: Topic, partition and offset of the record.
        force: Whether to accept a record that can be decoded.

    Raises:
        UndecodableRecord: There is no such record, or it can be decoded.
        BrokerUnavailable: No broker answered.
    """
    text = f"{position.topic}/{position.partition}@{position.offset}"
    schemas = _VALUES.get(position.topic)
    if schemas is None:
        raise UndecodableRecord(f"expected a topic that Headwater decodes, found {text}")
    record = await _first(cluster, position)
    if record is None or record.offset != position.offset:
        raise UndecodableRecord(f"expected a record at {text}, found none")
    problems = [decode_problem(record.value, schema) for schema in schemas]
    if None not in problems:
        return record, str(problems[0])
    kind = schemas[problems.index(None)]
    if not force:
        raise UndecodableRecord(
            f"expected a record that cannot be read at {text}, found a {kind}, which usually "
            "blocks nothing; skip it with --force if a process cannot handle it"
        )
    return record, f"a {kind} that can be read, skipped by force"


async def _first(cluster: Cluster, position: RecordPosition) -> Incoming | None:
    """Return the first record at or after a position."""
    reading = read_partition(cluster, [position.topic], position.partition, start=position.offset)
    async with aclosing(reading) as batches:
        async for records in batches:
            return records[0]
    return None


async def mark_skipped(
    cluster: Cluster, record: Incoming, problem: str, clock: Callable[[], int]
) -> None:
    """Make a dead letter of a record, and mark it: all processes skip it from their next start on.

    Raises:
        BrokerUnavailable: The call can be repeated safely.
    """
    now_ms = clock()
    letter = dead_letter(record, ProcessingFailure("operator", "skipped", problem), now_ms=now_ms)
    mark = SkipMark(record.topic, record.partition, record.offset, problem, now_ms)
    key = position_of(record).encode()
    appender = Appender(cluster=cluster, client_id="headwater-skip")
    try:
        await appender.append([letter])
        await appender.append([Outgoing(SKIPPED, _PARTITION, key, msgspec.json.encode(mark))])
        if (reply := _reply(record)) is not None:
            await appender.append([reply])
    finally:
        await appender.stop()


def _reply(record: Incoming) -> Outgoing | None:
    """Return the reply to the sender of a command, if it waits for one."""
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
