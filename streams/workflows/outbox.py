"""Sends what instances have queued: commands to other instances, records to topics.

Commands of one instance are sent in their order, records of one instance to one topic, too; an
instance is told how far its posts are acknowledged by Kafka. A topic that cannot be written to
holds up no other.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headwater.processors.replay.sizes import RECORD_TOO_LARGE
from headwater.processors.runs.decisions import Rejection
from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError
from headwater.schemas.history import Command, CommandSent, Post, instance_key
from headwater.schemas.topics import MAX_RECORD_BYTES, WORKFLOW_COMMANDS
from headwater.streams.engine.effects import Queued
from headwater.streams.engine.refusal_notices import back_to_sender
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.dead_letters import dead_letter
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.workflows.publishing import Publishing

log = logging.getLogger(__name__)

_RETRY_S: Final = 2.0
#: What a record may have, leaving room for its key and the envelope of its Kafka batch.
_LARGEST: Final = MAX_RECORD_BYTES - 64 * 1024


class _Waiting(NamedTuple):
    """A command that is to be sent, the partition of its sender, and its number there."""

    partition: int
    sender: str
    post: Post
    command: Command


class Posting:
    """The post office of a worker.

    Shape:  `sent` is called with (instance key, number of a post) when that one and those before it
            are durable.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        client_id: str,
        clock: Callable[[], int],
        sent: Callable[[str, int], None],
    ) -> None:
        self._appender = Appender(bootstrap=bootstrap, client_id=client_id)
        self._publishing = Publishing(bootstrap=bootstrap, sent=self._done)
        self._clock = clock
        self._sent = sent
        self._waiting: list[_Waiting] = []
        #: Numbers of posts and whether they are durable, by partition and instance.
        self._open: dict[int, dict[str, dict[int, bool]]] = defaultdict(dict)
        self._letters: list[Outgoing] = []
        self._stirred = asyncio.Event()

    def queue(self, partition: int, queued: Queued) -> None:
        """Takes posts of an instance."""
        self._open[partition].setdefault(queued.key, {}).update(
            (post.number, False) for post in queued.posts
        )
        records = [post for post in queued.posts if post.command is None]
        if records:
            self._publishing.queue(partition, queued.key, records)
        self._waiting += [
            _Waiting(partition, queued.key, post, post.command)
            for post in queued.posts
            if post.command is not None
        ]
        self._stirred.set()

    async def deliver(self, commands: Sequence[CommandSent]) -> None:
        """Sends commands that no outbox holds; returns when they are durable.

        Errors: BrokerUnavailable.
        """
        await self._append(await self._records(commands))

    def park(self, record: Incoming, error: HeadwaterError) -> None:
        """Takes a command that cannot be read, for the dead letters."""
        letter = dead_letter(
            record,
            stage="workflows",
            reason=error.code,
            detail=error.message,
            now_ms=self._clock(),
            error=error,
        )
        self._letters.append(letter)
        self._stirred.set()

    def forget(self, partition: int) -> None:
        """Drops the posts of a partition that has another owner now, who will send them."""
        self._open.pop(partition, None)
        self._waiting = [each for each in self._waiting if each.partition != partition]
        self._publishing.forget(partition)

    async def run(self) -> None:
        """Sends until it is cancelled."""
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                await self._round()
        finally:
            await self._publishing.stop()
            await self._appender.stop(within_s=_RETRY_S)

    async def _round(self) -> None:
        letters, self._letters = self._letters, []
        waiting, self._waiting = self._waiting, []
        try:
            commands = await self._records([self._command(each) for each in waiting])
            await self._append(letters + commands)
        except BrokerUnavailable as error:
            self._letters = letters + self._letters
            # Those of partitions that were given up meanwhile are sent twice, which does no harm.
            self._waiting = waiting + self._waiting
            log.warning("what workflows send has to wait: %s", error)
            await asyncio.sleep(_RETRY_S)
            self._stirred.set()
        else:
            for each in waiting:
                self._done(each.partition, each.sender, each.post.number)

    def _done(self, partition: int, key: str, number: int) -> None:
        """Takes note of a durable post; the instance is told when all before it are, too."""
        posts = self._open[partition].get(key, {})
        if number in posts:
            posts[number] = True
        through = None
        for first, durable in list(posts.items()):
            if not durable:
                break
            through = first
            del posts[first]
        if not posts:
            self._open[partition].pop(key, None)
        if through is not None:
            self._sent(key, through)

    async def _append(self, records: Sequence[Outgoing]) -> None:
        try:
            await self._appender.append(records)
        except BrokerUnavailable:
            # Of no more use now; a topic that is not there is no fault of the producer's.
            await self._appender.stop(within_s=_RETRY_S)
            raise

    def _command(self, waiting: _Waiting) -> CommandSent:
        post = waiting.post
        return CommandSent(
            command_id=f"{waiting.sender}#{post.number}",
            workflow=post.workflow or "",
            instance_id=post.instance_id or "",
            sent_at_ms=self._clock(),
            reply_to=-1,
            command=waiting.command,
        )

    async def _records(self, commands: Sequence[CommandSent]) -> list[Outgoing]:
        count = await self._appender.partitions(WORKFLOW_COMMANDS)
        records = []
        for command in commands:
            sent, value = self._sendable(command)
            if sent is not None:
                key = instance_key(sent.workflow, sent.instance_id).encode()
                records.append(Outgoing(WORKFLOW_COMMANDS, partition_of(key, count), key, value))
        return records

    def _sendable(self, command: CommandSent) -> tuple[CommandSent | None, bytes]:
        """The command and its bytes; in place of one that is too large, what tells its sender.

        No decision leads to such a one; but Kafka would refuse it for good, and all behind it wait.
        """
        value = encode(command)
        if len(value) <= _LARGEST:
            return command, value
        what = f"{command.workflow}/{command.instance_id}"
        fault = f"expected a command of at most {_LARGEST} bytes, found {len(value)}"
        log.error("what %s sends to %s is dropped: %s", command.command_id, what, fault)
        refused = Rejection(RECORD_TOO_LARGE, fault)
        back = back_to_sender(command, refused, None, self._clock())
        return back, b"" if back is None else encode(back)
