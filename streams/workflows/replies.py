"""Sends the outcomes of commands: to clients, and to workflows whose commands were refused."""

import asyncio
import logging

from headwater.schemas.history import CommandSent, ReplySent
from headwater.streams.engine.turns import Answers
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.outbox import Outbox

log = logging.getLogger(__name__)


class Replies:
    """Sends outcomes, in the order of the commands of each partition.

    When they are acknowledged the partition takes note of it: an owner that takes it over replies
    again from there on.
    """

    def __init__(self, workflow_log: WorkflowLog, outbox: Outbox) -> None:
        self._log = workflow_log
        self._outbox = outbox
        #: Outcomes, and whoever waits for those before.
        self._queue: asyncio.Queue[Answers | asyncio.Future[None]] = asyncio.Queue()

    def send(self, answers: Answers) -> None:
        """Takes outcomes."""
        self._queue.put_nowait(answers)

    async def all_sent(self) -> None:
        """Waits until the outcomes that were given until now are sent."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(reached)
        await reached

    async def run(self) -> None:
        """Sends until it is cancelled."""
        while True:
            waiting = [await self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            answers = [each for each in waiting if isinstance(each, Answers)]
            await self._send(
                [reply for each in answers for reply in each.replies],
                [notice for each in answers for notice in each.notices],
            )
            for each in waiting:
                if isinstance(each, Answers):
                    each.partition.replied_to(each.through)
                elif not each.done():
                    each.set_result(None)

    async def _send(self, replies: list[tuple[int, ReplySent]], notices: list[CommandSent]) -> None:
        retrying = Retrying(log, "replies have to wait")
        await retrying.until_done(lambda: self._log.reply(replies))
        if notices:
            await retrying.until_done(lambda: self._outbox.deliver(notices))
