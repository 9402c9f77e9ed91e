"""The outbox of a worker: commands to instances, records for topics, replies to clients."""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from headwater.processors.runs.decisions import Rejection
from headwater.schemas.codec import encode
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.failures import RECORD_TOO_LARGE
from headwater.schemas.history import CommandSent, Post, ReplySent, instance_key
from headwater.schemas.topics import (
    DEAD_LETTERS,
    MAX_VALUE_BYTES,
    WORKFLOW_COMMANDS,
    WORKFLOW_REPLIES,
)
from headwater.streams.engine.effects import Queued, command_of, refusal_notice
from headwater.streams.engine.turns import Answers, Partition
from headwater.streams.kafka.append_queues import PartitionQueues
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import ProcessingFailure, dead_letter
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.workflows.publishing import Publishing

log = logging.getLogger(__name__)

#: Longest time to stop a producer, in seconds.
_STOP_S: Final = 2.0


class _PendingCommand(NamedTuple):
    """A command to be sent.

    Attributes:
        make: Returns the command.
        sent: Called when it is durable.
        partition: Partition of the sending instance, or of the refused command.
    """

    make: Callable[[], CommandSent]
    sent: Callable[[], None]
    partition: int


class Outbox:
    """Sends the posts of a worker's instances.

    The commands of an instance are sent in order, and so are its records for one topic. The
    instance is informed up to which post all are acknowledged. A topic or partition that cannot be
    written to does not delay others.

    Args:
        cluster: The cluster.
        client_id: Client id of its producers.
        clock: Returns the time in Unix milliseconds.
        sent: Called with (partition, instance key, number of a post) when that post and all posts
            before it are durable.
        may_release: Returns whether posts of a partition may be sent.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        clock: Callable[[], int],
        sent: Callable[[int, str, int], None],
        may_release: Callable[[int], bool],
    ) -> None:
        self._commands = PartitionQueues[_PendingCommand](
            cluster=cluster,
            client_id=client_id,
            topic=WORKFLOW_COMMANDS,
            what="commands of workflows have to wait",
            records=self._records,
            appended=lambda waiting: waiting.sent(),
            ready=lambda waiting: may_release(waiting.partition),
        )
        self._dead_letters = PartitionQueues[Outgoing](
            cluster=cluster,
            client_id=client_id,
            topic=DEAD_LETTERS,
            what="dead letters have to wait",
            records=lambda letters: letters,
            appended=lambda _: None,
        )
        self._publishing = Publishing(cluster=cluster, sent=self._done, may_release=may_release)
        self._clock = clock
        self._sent = sent
        #: Numbers of posts, and whether they are durable, by partition and instance.
        self._open: dict[int, dict[str, dict[int, bool]]] = defaultdict(dict)

    def queue(self, partition: int, queued: Queued) -> None:
        """Queue posts of an instance."""
        self._open[partition].setdefault(queued.key, {}).update(
            (post.number, False) for post in queued.posts
        )
        records = [post for post in queued.posts if post.command is None]
        if records:
            self._publishing.queue(partition, queued.key, records)
        for post in queued.posts:
            if post.command is not None:
                self._send_post(partition, queued.key, post)

    def _send_post(self, partition: int, sender: str, post: Post) -> None:
        key = instance_key(post.workflow or "", post.instance_id or "")
        make = partial(command_of, sender, post, self._clock())
        sent = partial(self._done, partition, sender, post.number)
        self._queue(key, _PendingCommand(make, sent, partition))

    def deliver(
        self, partition: int, commands: Sequence[CommandSent], sent: Callable[[], None]
    ) -> None:
        """Send commands of a partition that no instance posted.

        Args:
            partition: Partition that they come from.
            commands: The commands.
            sent: Called for each one that is durable.
        """
        for command in commands:
            key = instance_key(command.workflow, command.instance_id)
            self._queue(key, _PendingCommand(partial(_identity, command), sent, partition))

    def _queue(self, key: str, pending: _PendingCommand) -> None:
        self._commands.add(partition_of(key.encode(), self._commands.count), pending)

    def park(self, record: Incoming, error: HeadwaterError) -> None:
        """Send a command that cannot be decoded to the dead letters."""
        failure = ProcessingFailure("workflows", error.code, error.message, error)
        parked = dead_letter(record, failure, now_ms=self._clock())
        self._dead_letters.add(parked.partition, parked)

    def forget(self, partition: int) -> None:
        """Drop the posts of a partition that was released; its next owner sends them."""
        self._open.pop(partition, None)
        self._commands.drop(lambda waiting: waiting.partition == partition)
        self._publishing.forget(partition)

    async def connect(self) -> None:
        """Connect. Must be called before anything is queued.

        Raises:
            BrokerUnavailable: Kafka is not available.
        """
        await self._commands.connect()

    async def run(self) -> None:
        """Run until an unexpected error occurs, and raise it."""
        await asyncio.gather(self._commands.run(), self._dead_letters.run())

    async def stop(self) -> None:
        """Stop. Posts that are not durable are sent by the next owner."""
        await self._publishing.stop()
        await asyncio.gather(self._commands.stop(_STOP_S), self._dead_letters.stop(_STOP_S))

    def _done(self, partition: int, key: str, number: int) -> None:
        """Record a durable post. The instance is informed when all before it are durable, too."""
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

    def _records(self, waiting: Sequence[_PendingCommand]) -> list[Outgoing]:
        records = []
        for pending in waiting:
            sent, value = self._sendable(pending.make())
            if sent is not None:
                key = instance_key(sent.workflow, sent.instance_id).encode()
                partition = partition_of(key, self._commands.count)
                records.append(Outgoing(WORKFLOW_COMMANDS, partition, key, value))
        return records

    def _sendable(self, command: CommandSent) -> tuple[CommandSent | None, bytes]:
        """Return a command and its encoding, or a refusal for its sender if it is too large.

        Decisions never lead to such a command, but Kafka would never accept it, and all others
        would wait.
        """
        value = encode(command)
        if len(value) <= MAX_VALUE_BYTES:
            return command, value
        what = f"{command.workflow}/{command.instance_id}"
        message = f"expected a command of at most {MAX_VALUE_BYTES} bytes, found {len(value)}"
        log.error(
            "the command %s to %s is dropped: %s",
            *(command.command_id, what, message),
            extra={"instance": what},
        )
        refused = Rejection(RECORD_TOO_LARGE, message)
        notice = refusal_notice(command, refused, None, self._clock())
        return notice, b"" if notice is None else encode(notice)


def _identity(command: CommandSent) -> CommandSent:
    return command


# -- replies

#: Longest time to stop a producer, in seconds.
_REPLIES_STOP_S: Final = 2.0


@dataclass(slots=True, eq=False)
class _Open:
    """Outcomes of commands, and how many of their records are not durable yet."""

    answers: Answers
    left: int


@dataclass(slots=True, eq=False)
class _Reply:
    """A reply to be sent, and the outcomes that it belongs to."""

    to: int
    reply: ReplySent
    open: _Open


class Replies:
    """Sends outcomes. Those for one receiver are in the order of the commands of a partition.

    When all up to a command are acknowledged, the partition is informed: its next owner replies
    again only from there on. Replies without a valid partition are skipped. Nothing is sent for a
    partition while `may_release` returns False for its number.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        outbox: Outbox,
        may_release: Callable[[int], bool],
    ) -> None:
        self._outbox = outbox
        self._replies = PartitionQueues[_Reply](
            cluster=cluster,
            client_id=client_id,
            topic=WORKFLOW_REPLIES,
            what="replies have to wait",
            records=_records,
            appended=lambda sent: self._sent(sent.open),
            ready=lambda reply: may_release(reply.open.answers.partition.number),
        )
        #: Outcomes of each partition in order, and futures of callers that wait for those before.
        self._open: defaultdict[Partition, deque[_Open | asyncio.Future[None]]] = defaultdict(deque)

    def send(self, answers: Answers) -> None:
        """Queue outcomes."""
        addressed = [(to, reply) for to, reply in answers.replies if 0 <= to < self._replies.count]
        outcomes = _Open(answers, len(addressed) + len(answers.notices))
        self._open[answers.partition].append(outcomes)
        for to, reply in addressed:
            self._replies.add(to, _Reply(to, reply, outcomes))
        number = answers.partition.number
        self._outbox.deliver(number, answers.notices, partial(self._sent, outcomes))
        self._note(answers.partition)

    def forget(self, partition: Partition) -> None:
        """Forget a partition that was released. Its next owner sends what was not sent."""
        self._replies.drop(lambda reply: reply.open.answers.partition is partition)
        for item in self._open.pop(partition, ()):
            if isinstance(item, asyncio.Future) and not item.done():
                item.set_result(None)

    async def all_sent(self, partition: Partition) -> None:
        """Wait until all outcomes of a partition so far are sent."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[partition].append(reached)
        self._note(partition)
        await reached

    def _sent(self, outcomes: _Open) -> None:
        outcomes.left -= 1
        self._note(outcomes.answers.partition)

    def _note(self, partition: Partition) -> None:
        """Inform a partition of the outcomes that are sent, if all before them are."""
        queue = self._open.get(partition)
        while queue:
            first = queue[0]
            if isinstance(first, asyncio.Future):
                if not first.done():
                    first.set_result(None)
            elif first.left:
                return
            else:
                partition.replied_to(first.answers.through)
            queue.popleft()

    async def connect(self) -> None:
        """Connect. Must be called before anything is sent.

        Raises:
            BrokerUnavailable: Kafka is not available.
        """
        await self._replies.connect()

    async def run(self) -> None:
        """Run until an unexpected error occurs, and raise it."""
        await self._replies.run()

    async def stop(self) -> None:
        """Stop. Replies that are not durable are sent by the next owner."""
        await self._replies.stop(_REPLIES_STOP_S)


def _records(replies: Sequence[_Reply]) -> list[Outgoing]:
    return [Outgoing(WORKFLOW_REPLIES, reply.to, None, encode(reply.reply)) for reply in replies]
