"""Session with a server, shared by a client's handles: transport, written positions and ids."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeVar

import httpx

from headwater.gateway.client.answers import StreamItem, read, value_of
from headwater.gateway.client.errors import UnavailableError
from headwater.gateway.client.event_stream import EventStream, Message
from headwater.gateway.client.paths import path
from headwater.gateway.client.positions import Positions
from headwater.gateway.client.requests import (
    HttpAnswer,
    Query,
    Request,
    encoded_query,
    idempotency_key,
)
from headwater.gateway.client.retries import Repeat
from headwater.gateway.client.transport import Transport, unreached
from headwater.schemas.answers import STREAMED
from headwater.schemas.failures import ClientError, CommandRefusedError

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

    def gateway_path(self, *segments: str) -> str:
        """Return a path of the gateway outside of the workflow service.

        Raises:
            ValueError: The base URL is not that of a gateway.
        """
        gateway, *service = self.transport.url.rsplit("/", 2)
        if service != ["api", "workflows"]:
            raise ValueError(
                "expected a base URL that ends in /api/workflows, as a gateway's does, found "
                f"{self.transport.url}"
            )
        return gateway + path(*segments)

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

    async def write(
        self,
        path: str,
        body: str,
        *,
        repeat: Repeat,
        instance: str | None = None,
        key: str | None = None,
        query: Query | None = None,
    ) -> HttpAnswer:
        """Write; later reads wait for the outcome.

        Args:
            path: Path below the base URL.
            body: JSON text.
            repeat: Whether it is safe to repeat.
            instance: workflow/id that is written to, if only one.
            key: Idempotency key, under which a repeated request is applied once.
            query: Query parameters.

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
        )
        try:
            answer = await self.transport.send(request)
        except CommandRefusedError as error:
            self._positions.note(error.position, instance)
            raise
        self._positions.note(answer.position, instance)
        return answer

    async def follow(
        self, path: str, instance: str, last_id: str = ""
    ) -> AsyncGenerator[StreamItem[Any]]:
        """Yield the items of a stream until its end, reconnecting as needed.

        Raises:
            ClientError: The stream cannot be opened again.
        """
        seen = encoded_query({"min_position": self._positions.seen(instance)})
        request = Request(method="GET", path=path, repeat=Repeat.READ, query=seen)
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
            except httpx.RequestError as error:
                problem = unreached(self.transport.url, str(error) or type(error).__name__)
                if opened and isinstance(error, httpx.ReadTimeout):
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
