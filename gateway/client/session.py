"""What the handles of a client share: a server, what was written to it, and a source of ids."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeVar

import httpx

from headwater.gateway.client.answers import StreamItem, read, value_of
from headwater.gateway.client.errors import UnavailableError
from headwater.gateway.client.event_stream import EventStream, Message
from headwater.gateway.client.positions import Positions
from headwater.gateway.client.requests import (
    Answered,
    Query,
    Request,
    asked_for,
    idempotency_key,
)
from headwater.gateway.client.retries import Repeat
from headwater.gateway.client.transport import Transport, unreached
from headwater.gateway.paths import path
from headwater.schemas.answers import STREAMED
from headwater.schemas.failures import ClientError, CommandRefusedError

T = TypeVar("T")

#: A stream that ends as soon as it begins is not opened again at once.
_REOPEN_S: Final = 0.25


class Session:
    """A conversation with a server."""

    def __init__(self, transport: Transport, new_id: Callable[[], str]) -> None:
        self.transport = transport
        self.new_id = new_id
        self._positions = Positions()

    def beside(self, *segments: str) -> str:
        """The path of what is not of a workflow: it is beside them, whatever is before those."""
        return self.transport.url.rpartition("/")[0] + path(*segments)

    def of_gateway(self, *segments: str) -> str:
        """The path of what is no part of the workflow service: it is where the gateway is.

        Errors: ValueError, where the service is elsewhere.
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
        """Reads, no earlier than what was written here; a question with a body is posted.

        Shape:  str is the answer as it is; of any other kind it is JSON.
        Errors: every ClientError.
        """
        asked = asked_for({**(query or {}), "min_position": self._positions.seen(instance)})
        request = Request(
            method="GET" if body is None else "POST",
            path=path,
            repeat=Repeat.READ,
            query=asked,
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
    ) -> Answered:
        """Writes; later reads wait for it.

        Shape:  key is an idempotency key, by which a request that is repeated is done once.
        Errors: every ClientError; ValueError for a key that cannot be one.
        """
        headers = {} if key is None else {"idempotency-key": idempotency_key(key)}
        request = Request(
            method="POST",
            path=path,
            repeat=repeat,
            query=asked_for(query or {}),
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
        """What a stream tells until its end, over as many connections as that takes.

        Errors: every ClientError.
        """
        seen = asked_for({"min_position": self._positions.seen(instance)})
        request = Request(method="GET", path=path, repeat=Repeat.READ, query=seen)
        failures = 0
        while True:
            stream, opened = EventStream(last_id), False
            found: ClientError = unreached(self.transport.url, "the stream ended too early")
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
                found = error
            except httpx.RequestError as error:
                found = unreached(self.transport.url, str(error) or type(error).__name__)
                if opened and isinstance(error, httpx.ReadTimeout):
                    failures = -1  # to have nothing to tell is no failure
            failures += 1
            await self._reopen(failures, stream.retry_ms, found)

    async def _reopen(self, failures: int, retry_ms: int | None, found: ClientError) -> None:
        """Waits until a stream is opened again."""
        wait = self.transport.pause(max(0, failures - 1))
        if wait is None:
            raise found
        await self.transport.sleep(max(wait, _REOPEN_S, (retry_ms or 0) / 1000))

    def _item(self, message: Message) -> StreamItem[Any]:
        kind: Any = STREAMED.get(message.event, Any)
        return StreamItem(message.event, message.id, read(message.data, kind, self.transport.url))
