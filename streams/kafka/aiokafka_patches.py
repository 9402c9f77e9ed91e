"""Mends two faults of aiokafka's, by which what reads or writes stops for good without a word.

Broken connections, on uvloop: a connection that the broker has dropped may be written to once more
before aiokafka has seen its end. The transports of asyncio let that pass; those of uvloop raise
RuntimeError. aiokafka takes it for a bug, and ends the task that fetches, or sends, for good:
`getmany` gives nothing ever after, and nobody is told. Here it becomes what it is: a connection
that is broken, and made again.

Stopping a consumer: it cancels the fetches that are under way, and one that was resting after a
failure lets its CancelledError out. So `stop` ends whoever awaits it as if that had been cancelled,
and the connections stay open. Here it waits for these fetches, and goes on.
"""

import asyncio
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError

_SEND: Final = AIOKafkaConnection.send
_CLOSE: Final = Fetcher.close


def mend() -> None:
    """Makes it so for all of this process; calling it again changes nothing."""
    AIOKafkaConnection.send = _send  # type: ignore[method-assign]
    Fetcher.close = _close  # type: ignore[method-assign]


def _send(self: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:  # noqa: ANN401 (as aiokafka has it)
    try:
        return _SEND(self, request, expect_response)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        self.close(reason=CloseReason.CONNECTION_BROKEN)
        raise KafkaConnectionError(
            f"Connection at {self.host}:{self.port} broken: {error}"
        ) from error


async def _close(self: Fetcher) -> None:
    self._fetch_task.cancel()  # first, for it begins fetches
    await asyncio.wait([self._fetch_task])
    for fetch in self._pending_tasks:
        fetch.cancel()
    if self._pending_tasks:
        await asyncio.wait(self._pending_tasks)
    self._pending_tasks.clear()
    await _CLOSE(self)  # type: ignore[no-untyped-call]
