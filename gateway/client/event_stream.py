"""Parser of server-sent events, as the HTML standard defines them.

Lines are split here and not by httpx, which splits where Python does: also at U+2028 and others
that JSON does not escape.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.gateway.client.errors import UnexpectedAnswerError

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
#: A message holds a step with its result, at most 1 MiB; in JSON a character may take six bytes.
_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024


class Message(NamedTuple):
    """A message of a stream; `id` is that of the latest message that had one."""

    event: str
    id: str
    data: str


class EventStream:
    """Parser of the stream of one connection."""

    def __init__(self, last_id: str = "") -> None:
        self._last_id = last_id
        self._event = ""
        self._data: list[str] = []
        self._rest = b""
        self._held = 0
        #: Milliseconds until a reconnection, if the server named them.
        self.retry_ms: int | None = None

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Add bytes; yield the messages that they complete.

        Raises:
            UnexpectedAnswerError: A message is too long.
        """
        self._rest += chunk
        # A \r at the end may be the first half of \r\n.
        end = len(self._rest) - self._rest.endswith(b"\r")
        begin = 0
        for line_end in _LINE_END.finditer(self._rest, 0, end):
            message = self._line(self._rest[begin : line_end.start()])
            begin = line_end.end()
            if message is not None:
                yield message
        self._rest = self._rest[begin:]
        if len(self._rest) + self._held > _MESSAGE_BYTES_MAX:
            raise UnexpectedAnswerError(
                f"expected messages of at most {_MESSAGE_BYTES_MAX} bytes, found a longer one"
            )

    def _line(self, line: bytes) -> Message | None:
        if not line:
            return self._whole()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
                self._held += len(line)
            case "id" if "\0" not in value:
                self._last_id = value
            case "retry" if value.isdecimal():
                self.retry_ms = int(value)
        return None

    def _whole(self) -> Message | None:
        event, data = self._event or "message", self._data
        self._event, self._data, self._held = "", [], 0
        return Message(event, self._last_id, "\n".join(data)) if data else None
