"""Tells those who sent commands what became of them: clients, and workflows that have to know."""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from headwater.schemas.history import CommandSent, ReplySent
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.outbox import Outbox
from headwater.streams.workflows.ownership import OwnedPartition

log = logging.getLogger(__name__)


class _Outcomes(NamedTuple):
    """The outcomes of some commands of a partition, the last of which is at `through`."""

    partition: OwnedPartition
    through: int
    replies: Sequence[tuple[int, ReplySent]]
    backs: Sequence[CommandSent]


class Replies:
    """Sends outcomes, in the order of the commands of each partition.

    A partition's `replied` moves when they are acknowledged: an owner that takes it over replies
    again from there on.
    """

    def __init__(self, workflow_log: WorkflowLog, outbox: Outbox) -> None:
        self._log = workflow_log
        self._outbox = outbox
        self._queue: asyncio.Queue[_Outcomes] = asyncio.Queue()

    def send(
        self,
        partition: OwnedPartition,
        through: int,
        replies: Sequence[tuple[int, ReplySent]],
        backs: Sequence[CommandSent] = (),
    ) -> None:
        """Takes outcomes.

        Shape:  (partition, offset of the last command among them, (reply_to, reply) each, what is
                sent back to workflows whose commands were refused).
        """
        self._queue.put_nowait(_Outcomes(partition, through, replies, backs))

    async def run(self) -> None:
        """Sends until it is cancelled."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._send(
                [reply for each in batch for reply in each.replies],
                [back for each in batch for back in each.backs],
            )
            for each in batch:
                each.partition.replied = max(each.partition.replied, each.through + 1)

    async def _send(self, replies: list[tuple[int, ReplySent]], backs: list[CommandSent]) -> None:
        retrying = Retrying(log, "replies have to wait")
        await retrying.until_done(lambda: self._log.reply(replies))
        if backs:
            await retrying.until_done(lambda: self._outbox.deliver(backs))
