"""Messages between a process and its evaluator: four bytes of length, then msgpack."""

from typing import Final

import msgspec

from headwater.processors.task_runner import TaskRequest, TaskResponse

LENGTH_BYTES: Final = 4
#: Instead of a response: the process is ready. Other numbers are the signal that killed it.
READY: Final = 0

encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(TaskRequest).decode
decode_response: Final = msgspec.msgpack.Decoder(TaskResponse | int).decode


def framed(message: TaskRequest | TaskResponse | int) -> bytes:
    """Return a message as it is written to a pipe."""
    body = encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
