"""The outbox of a worker: what its instances send to other instances, and publish to topics.

The commands of an instance are sent in their order, and so are its records for one topic. An
instance learns up to which of its posts Kafka has acknowledged all. A topic that cannot be written
to delays no other.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headwater.processors.runs.decisions import Rejection
from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError, NotYetReadable
from headwater.schemas.failures import RECORD_TOO_LARGE
from headwater.schemas.history import CommandSent, Post, instance_key
from headwater.schemas.topics import MAX_VALUE_BYTES, WORKFLOW_COMMANDS
from headwater.streams.engine.effects import Queued, command_of
from headwater.streams.engine.refusal_notices import refusal_notice
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import dead_letter
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.publishing import Publishing

log = logging.getLogger(__name__)

#: How long a producer may take to end.
_STOP_S: Final = 2.0


class _Waiting(NamedTuple):
    """A post that is a command, and the partition and key of its sender."""

    partition: int
    sender: str
    post: Post


class Outbox:
    """Sends the posts of a worker's instances.

    Shape:  `sent` is called with (partition, instance key, number of a post) when that one and
            those before it are durable.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        clock: Callable[[], int],
        sent: Callable[[int, str, int], None],
    ) -> None:
        self._appender = Appender(cluster=cluster, client_id=client_id)
        self._publishing = Publishing(cluster=cluster, sent=self._done)
        self._clock = clock
        self._sent = sent
        self._waiting: list[_Waiting] = []
        #: Numbers of posts and whether they are durable, by partition and instance.
        self._open: dict[int, dict[str, dict[int, bool]]] = defaultdict(dict)
        self._dead_letters: list[Outgoing] = []
        self._wake = asyncio.Event()

    def queue(self, partition: int, queued: Queued) -> None:
        """Takes posts of an instance."""
        self._open[partition].setdefault(queued.key, {}).update(
            (post.number, False) for post in queued.posts
        )
        records = [post for post in queued.posts if post.command is None]
        if records:
            self._publishing.queue(partition, queued.key, records)
        self._waiting += [
            _Waiting(partition, queued.key, post)
            for post in queued.posts
            if post.command is not None
        ]
        self._wake.set()

    async def deliver(self, commands: Sequence[CommandSent]) -> None:
        """Sends commands that no outbox holds; returns when they are durable.

        Errors: BrokerUnavailable.
        """
        await self._appender.append_or_stop(await self._records(commands))

    def park(self, record: Incoming, error: HeadwaterError) -> None:
        """Takes a command that cannot be read, for the dead letters."""
        parked = dead_letter(
            record,
            stage="workflows",
            reason=error.code,
            detail=error.message,
            now_ms=self._clock(),
            error=error,
        )
        self._dead_letters.append(parked)
        self._wake.set()

    def forget(self, partition: int) -> None:
        """Drops the posts of a partition that has another owner now, who will send them."""
        self._open.pop(partition, None)
        self._waiting = [each for each in self._waiting if each.partition != partition]
        self._publishing.forget(partition)

    async def run(self) -> None:
        """Sends until it is cancelled."""
        retrying = Retrying(log, "what workflows send has to wait", longest_s=5.0)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await retrying.until_done(self._send_waiting)
        finally:
            await self._publishing.stop()
            await self._appender.stop(within_s=_STOP_S)

    async def _send_waiting(self) -> None:
        """Sends all that waits.

        Errors: BrokerUnavailable, NotYetReadable; then it still waits.
        """
        dead_letters, self._dead_letters = self._dead_letters, []
        waiting, self._waiting = self._waiting, []
        try:
            now_ms = self._clock()
            sent = [command_of(each.sender, each.post, now_ms) for each in waiting]
            commands = await self._records(sent)
            await self._appender.append_or_stop(dead_letters + commands)
        except (BrokerUnavailable, NotYetReadable):
            self._dead_letters = dead_letters + self._dead_letters
            # Those of partitions that were given up meanwhile are sent twice, which does no harm.
            self._waiting = waiting + self._waiting
            raise
        for each in waiting:
            self._done(each.partition, each.sender, each.post.number)

    def _done(self, partition: int, key: str, number: int) -> None:
        """Takes note of a durable post; the instance learns of it when all before it are, too."""
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
            self._sent(partition, key, through)

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
        """The command and its bytes; in place of one that is too large, its refusal for the sender.

        No decision leads to such a one; but Kafka would never take it, and all others would wait.
        """
        value = encode(command)
        if len(value) <= MAX_VALUE_BYTES:
            return command, value
        what = f"{command.workflow}/{command.instance_id}"
        fault = f"expected a command of at most {MAX_VALUE_BYTES} bytes, found {len(value)}"
        log.error("what %s sends to %s is dropped: %s", command.command_id, what, fault)
        refused = Rejection(RECORD_TOO_LARGE, fault)
        back = refusal_notice(command, refused, None, self._clock())
        return back, b"" if back is None else encode(back)
