"""Mends a fault of aiokafka's on uvloop, by which consumers and producers stop without a word.

A connection that the broker has dropped may be written to once more before aiokafka has seen its
end. The transports of asyncio let that pass; those of uvloop raise RuntimeError. aiokafka takes it
for a bug, and ends the task that fetches, or sends, for good: `getmany` gives nothing ever after,
and nobody is told. Here it becomes what it is: a connection that is broken, and made again.
"""

from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError

_SEND: Final = AIOKafkaConnection.send


def mend() -> None:
    """Makes it so for all connections of this process; calling it again changes nothing."""
    AIOKafkaConnection.send = _send  # type: ignore[method-assign]


def _send(self: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:  # noqa: ANN401 (as aiokafka has it)
    try:
        return _SEND(self, request, expect_response)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        self.close(reason=CloseReason.CONNECTION_BROKEN)
        raise KafkaConnectionError(
            f"Connection at {self.host}:{self.port} broken: {error}"
        ) from error
