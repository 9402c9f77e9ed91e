"""Sends outcomes of commands to clients, and to workflows whose commands were refused."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from headwater.schemas.codec import encode
from headwater.schemas.history import ReplySent
from headwater.schemas.topics import WORKFLOW_REPLIES
from headwater.streams.engine.turns import Answers, Partition
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_queues import PartitionQueues
from headwater.streams.kafka.records import Outgoing
from headwater.streams.workflows.outbox import Outbox

#: Longest time to stop a producer, in seconds.
_STOP_S: Final = 2.0


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
        await self._replies.stop(_STOP_S)


def _records(replies: Sequence[_Reply]) -> list[Outgoing]:
    return [Outgoing(WORKFLOW_REPLIES, reply.to, None, encode(reply.reply)) for reply in replies]
