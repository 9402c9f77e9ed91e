"""Sends the outcomes of commands: to clients, and to workflows whose commands were refused."""

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

#: How long a producer may take to end.
_STOP_S: Final = 2.0


@dataclass(slots=True, eq=False)
class _Open:
    """Outcomes of commands, and how many of their records are not durable yet."""

    answers: Answers
    left: int


@dataclass(slots=True, eq=False)
class _Reply:
    """An outcome on its way, and the others that it belongs to."""

    to: int
    reply: ReplySent
    open: _Open


class Replies:
    """Sends outcomes, those for one receiver in the order of the commands of a partition.

    When all up to one are acknowledged, the partition takes note of it: an owner that takes it over
    replies again from there on. What nobody waits for, or names no partition of the topic, is left
    out. Nothing is sent of a partition while `may_release` is false of its number.
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
        #: Of each partition, in order; and whoever waits for those before.
        self._open: defaultdict[Partition, deque[_Open | asyncio.Future[None]]] = defaultdict(deque)

    def send(self, answers: Answers) -> None:
        """Takes outcomes."""
        wanted = [(to, reply) for to, reply in answers.replies if 0 <= to < self._replies.count]
        opened = _Open(answers, len(wanted) + len(answers.notices))
        self._open[answers.partition].append(opened)
        for to, reply in wanted:
            self._replies.add(to, _Reply(to, reply, opened))
        number = answers.partition.number
        self._outbox.deliver(number, answers.notices, partial(self._sent, opened))
        self._note(answers.partition)

    def forget(self, partition: Partition) -> None:
        """Forget a partition that was given up; its next owner sends what was not sent."""
        self._replies.drop(lambda reply: reply.open.answers.partition is partition)
        for each in self._open.pop(partition, ()):
            if isinstance(each, asyncio.Future) and not each.done():
                each.set_result(None)

    async def all_sent(self, partition: Partition) -> None:
        """Waits until the outcomes of a partition that were given until now are sent."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[partition].append(reached)
        self._note(partition)
        await reached

    def _sent(self, opened: _Open) -> None:
        opened.left -= 1
        self._note(opened.answers.partition)

    def _note(self, partition: Partition) -> None:
        """Has a partition take note of what is sent, as far as all before it is."""
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
        """Connects, before anything is to be sent.

        Errors: BrokerUnavailable.
        """
        await self._replies.connect()

    async def run(self) -> None:
        """Raises the first error that nobody expects."""
        await self._replies.run()

    async def stop(self) -> None:
        """Ends; what is not durable by then is sent by the next owner."""
        await self._replies.stop(_STOP_S)


def _records(replies: Sequence[_Reply]) -> list[Outgoing]:
    return [Outgoing(WORKFLOW_REPLIES, each.to, None, encode(each.reply)) for each in replies]
