"""Session with a server: transport, ids, positions of its writes, and event streams."""

import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import httpx2

from headwater.gateway.client.answers import (
    StreamItem,
    UnavailableError,
    UnexpectedAnswerError,
    read,
    value_of,
)
from headwater.gateway.client.requests import (
    HttpAnswer,
    Query,
    Repeat,
    Request,
    encoded_query,
    idempotency_key,
    path,
)
from headwater.gateway.client.transport import Transport, unreached
from headwater.schemas.answers import STREAMED
from headwater.schemas.failures import ClientError, CommandRefusedError

#: After writes to this many other instances, the rows have caught up with an instance's writes.
_INSTANCES_MAX: Final = 10_000
#: Positions of one read: more would make the URL longer than servers accept.
_READ_POSITIONS_MAX: Final = 100
_POSITION: Final = re.compile(r"([a-z-]+/\d+)@(\d+)")


class Positions:
    """Latest written position of every instance, and of every partition of the log.

    The answer to a write names the position of its outcome in the log. A read that carries the
    position is answered from rows that include the outcome.
    """

    def __init__(self) -> None:
        self._by_instance: OrderedDict[str, str] = OrderedDict()
        self._offsets: OrderedDict[str, int] = OrderedDict()

    def note(self, header: str, instance: str | None) -> None:
        """Record the positions of an answer; that of a batch has several."""
        positions = _POSITION.findall(header)
        for partition, offset in positions:
            self._offsets[partition] = max(self._offsets.get(partition, -1), int(offset))
            self._offsets.move_to_end(partition)
        if instance is not None and len(positions) == 1:
            # Two writes at a time may be answered in either order: keep the greater offset.
            self._by_instance[instance] = f"{positions[0][0]}@{self._offsets[positions[0][0]]}"
            self._by_instance.move_to_end(instance)
            if len(self._by_instance) > _INSTANCES_MAX:
                self._by_instance.popitem(last=False)

    def seen(self, instance: str | None) -> str | None:
        """Return the positions that a read of an instance, or of many, has to wait for.

        An instance of a batch may be in any of the batch's partitions.
        """
        if instance is not None and instance in self._by_instance:
            return self._by_instance[instance]
        latest = list(self._offsets.items())[-_READ_POSITIONS_MAX:]
        return ",".join(f"{partition}@{offset}" for partition, offset in latest) or None


# -- server-sent events

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
#: A message holds a step with its result, at most 1 MiB; in JSON a character may take six bytes.
_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024


class Message(NamedTuple):
    """A message of a stream; `id` is that of the latest message that had one."""

    event: str
    id: str
    data: str


class EventStream:
    """Parser of the stream of one connection.

    Lines are split here and not by httpx2, which splits where Python does: also at U+2028 and
    others that JSON does not escape.
    """

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


# -- session

T = TypeVar("T")

#: Delay before a stream that ended at once is opened again.
_REOPEN_S: Final = 0.25


class Session:
    """Session with a server."""

    def __init__(self, transport: Transport, new_id: Callable[[], str]) -> None:
        self.transport = transport
        self.new_id = new_id
        self._positions = Positions()

    def sibling_path(self, *segments: str) -> str:
        """Return a path of the server outside of the workflows: next to /workflows."""
        return self.transport.url.rpartition("/")[0] + path(*segments)

    @property
    def gateway(self) -> str:
        """URL of the gateway, for its routes outside of the workflow service.

        Raises:
            ValueError: The base URL is not that of a gateway.
        """
        gateway, *service = self.transport.url.rsplit("/", 2)
        if service != ["api", "workflows"]:
            raise ValueError(
                "expected a base URL that ends in /api/workflows, as a gateway's does, found "
                f"{self.transport.url}"
            )
        return gateway

    def gateway_path(self, *segments: str) -> str:
        """Return a path of the gateway outside of the workflow service, as `gateway`."""
        return self.gateway + path(*segments)

    async def send(self, request: Request, kind: type[T]) -> T:
        """Send a request of routes whose answers are current; return the answer as a value.

        Raises:
            ClientError: The request failed.
        """
        return value_of(await self.transport.send(request), kind)

    async def read(
        self,
        path: str,
        kind: type[T],
        query: Query | None = None,
        *,
        body: str | None = None,
        instance: str | None = None,
    ) -> T:
        """Read, including what this session wrote. A request with a body is posted.

        Args:
            path: Path below the base URL.
            kind: Type of the answer; str is the text as it is, any other type is JSON.
            query: Query parameters.
            body: JSON text.
            instance: workflow/id, where only its writes matter.

        Raises:
            ClientError: The request failed.
        """
        parameters = encoded_query(
            {**(query or {}), "min_position": self._positions.seen(instance)}
        )
        request = Request(
            method="GET" if body is None else "POST",
            path=path,
            repeat=Repeat.READ,
            query=parameters,
            body=None if body is None else body.encode(),
        )
        answer = await self.transport.send(request)
        if issubclass(kind, str):
            return kind(answer.body, "utf-8")
        return value_of(answer, kind)

    async def write(  # noqa: PLR0913 (one parameter per part of a request)
        self,
        path: str,
        body: str,
        *,
        repeat: Repeat,
        instance: str | None = None,
        key: str | None = None,
        query: Query | None = None,
        waits_s: float = 0.0,
    ) -> HttpAnswer:
        """Write; later reads wait for the outcome.

        Args:
            path: Path below the base URL.
            body: JSON text.
            repeat: Whether it is safe to repeat.
            instance: workflow/id that is written to, if only one.
            key: Idempotency key, under which a repeated request is applied once.
            query: Query parameters.
            waits_s: Seconds that the server may take on top of the usual timeout.

        Raises:
            ClientError: The request failed.
            ValueError: The key is invalid.
        """
        headers = {} if key is None else {"idempotency-key": idempotency_key(key)}
        request = Request(
            method="POST",
            path=path,
            repeat=repeat,
            query=encoded_query(query or {}),
            body=body.encode(),
            headers=headers,
            waits_s=waits_s,
        )
        try:
            answer = await self.transport.send(request)
        except CommandRefusedError as error:
            self._positions.note(error.position, instance)
            raise
        self._positions.note(answer.position, instance)
        return answer

    def follow_instance(
        self, path: str, instance: str, last_id: str = "", names: Iterable[str] = ()
    ) -> AsyncGenerator[StreamItem[Any]]:
        """Yield the items of an instance's stream, as `follow` does, or only those of `names`."""
        query: Query = {
            "min_position": self._positions.seen(instance),
            "names": ",".join(names) or None,
        }
        encoded = encoded_query(query)
        request = Request(method="GET", path=path, repeat=Repeat.READ, query=encoded)
        return self.follow(request, last_id)

    async def follow(self, request: Request, last_id: str = "") -> AsyncGenerator[StreamItem[Any]]:
        """Yield the items of a stream until its end, reconnecting as needed.

        Raises:
            ClientError: The stream cannot be opened again.
        """
        failures = 0
        while True:
            stream, opened = EventStream(last_id), False
            problem: ClientError = unreached(self.transport.url, "the stream ended too early")
            try:
                async with self.transport.stream(request, last_id) as chunks:
                    opened = True
                    async for chunk in chunks:
                        failures = 0
                        for message in stream.feed(chunk):
                            last_id = message.id
                            yield self._item(message)
                            if message.event == "end":
                                return
            except UnavailableError as error:
                problem = error
            except httpx2.RequestError as error:
                problem = unreached(self.transport.url, str(error) or type(error).__name__)
                if opened and isinstance(error, httpx2.ReadTimeout):
                    failures = -1  # A silent stream is no failure.
            failures += 1
            await self._reopen(failures, stream.retry_ms, problem)

    async def _reopen(self, failures: int, retry_ms: int | None, problem: ClientError) -> None:
        """Wait before a stream is opened again."""
        wait = self.transport.pause(max(0, failures - 1))
        if wait is None:
            raise problem
        await self.transport.sleep(max(wait, _REOPEN_S, (retry_ms or 0) / 1000))

    def _item(self, message: Message) -> StreamItem[Any]:
        kind: Any = STREAMED.get(message.event, Any)
        return StreamItem(message.event, message.id, read(message.data, kind, self.transport.url))
