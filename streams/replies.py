"""Tells those who sent commands what became of them."""

import asyncio
import logging
from typing import Final

from schemas.errors import BrokerUnavailable
from schemas.history import ReplySent
from streams.ownership import OwnedPartition
from streams.workflow_log import WorkflowLog

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class Replies:
    """Sends outcomes, in the order of the commands of each partition.

    A partition's `replied` moves when they are acknowledged: an owner that takes it over replies
    again from there on.
    """

    def __init__(self, workflow_log: WorkflowLog) -> None:
        self._log = workflow_log
        self._queue: asyncio.Queue[tuple[OwnedPartition, int, list[tuple[int, ReplySent]]]]
        self._queue = asyncio.Queue()

    def send(
        self, partition: OwnedPartition, through: int, replies: list[tuple[int, ReplySent]]
    ) -> None:
        """Takes replies.

        Shape:  (partition, offset of the last command among them, (reply_to, reply) each).
        """
        self._queue.put_nowait((partition, through, replies))

    async def run(self) -> None:
        """Sends until it is cancelled."""
        while True:
            groups = [await self._queue.get()]
            while not self._queue.empty():
                groups.append(self._queue.get_nowait())
            await self._send([reply for _, _, replies in groups for reply in replies])
            for partition, through, _ in groups:
                partition.replied = max(partition.replied, through + 1)

    async def _send(self, replies: list[tuple[int, ReplySent]]) -> None:
        told = False
        while True:
            try:
                await self._log.reply(replies)
            except BrokerUnavailable as error:
                if not told:
                    log.warning("replies have to wait: %s", error)
                told = True
                await asyncio.sleep(_RETRY_S)
            else:
                return
