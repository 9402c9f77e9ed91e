"""Records that an operator marks to be skipped, on a real broker."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import UndecodableRecord
from headwater.schemas.history import CommandSent, PauseRun, ReplySent, instance_key
from headwater.schemas.newer import RecordPosition
from headwater.schemas.topics import DEAD_LETTERS, SKIPPED, WORKFLOW_COMMANDS, WORKFLOW_REPLIES
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import REASON, text_header
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.skips import SkipMark, find_skippable, mark_skipped

_WHERE = 1


async def put(cluster: Cluster, sent: CommandSent) -> RecordPosition:
    appender = Appender(cluster=cluster, client_id="tests")
    key = instance_key(sent.workflow, sent.instance_id).encode()
    try:
        record = Outgoing(WORKFLOW_COMMANDS, _WHERE, key, encode(sent))
        (offset,) = await appender.acknowledged(await appender.send([record]))
    finally:
        await appender.stop()
    return RecordPosition(WORKFLOW_COMMANDS, _WHERE, offset)


async def records(cluster: Cluster, topic: str, partition: int) -> list[Incoming]:
    async with aclosing(read_partition(cluster, [topic], partition)) as batches:
        return [record async for batch in batches for record in batch]


def test_a_command_that_can_be_read_is_skipped_by_force_and_its_sender_is_answered(topics: str):
    cluster = Cluster(topics)
    sent = CommandSent(
        command_id="cmd-poison",
        workflow="order",
        instance_id="o-1",
        sent_at_ms=now_ms(),
        reply_to=2,
        command=PauseRun(),
    )

    async def skipped() -> None:
        position = await put(cluster, sent)
        with pytest.raises(UndecodableRecord, match=r"found a command_sent.*--force"):
            await find_skippable(cluster, position)
        record, fault = await find_skippable(cluster, position, force=True)
        await mark_skipped(cluster, record, fault, now_ms)
        marks = [
            msgspec.json.decode(record.value or b"", type=SkipMark)
            for record in await records(cluster, SKIPPED, 0)
        ]
        assert position in [
            RecordPosition(mark.topic, mark.partition, mark.offset) for mark in marks
        ]
        (letter,) = [
            item
            for item in await records(cluster, DEAD_LETTERS, _WHERE)
            if item.value == record.value
        ]
        assert text_header(letter, REASON) == "skipped"
        replies = [
            decode(record.value, ReplySent)
            for record in await records(cluster, WORKFLOW_REPLIES, 2)
        ]
        (reply,) = [reply for reply in replies if reply.command_id == sent.command_id]
        assert (reply.code, reply.position) == ("INTERNAL", -1)
        assert "an operator has skipped this command" in reply.message

    asyncio.run(skipped())
