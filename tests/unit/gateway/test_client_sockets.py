"""The client over real sockets: what httpx2 says when a server is away, or breaks off."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.gateway.client.answers import ConnectionFailedError, OutcomeUnknownError
from headwater.gateway.client.client import Client, ClientDependencies
from tests.unit.gateway.workflow_network import described, message, stands

DESCRIBED = json.dumps(described()).encode()
END = message("end", 9, stands("complete"))


def whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    length = str(len(body)).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %b\r\n\r\n%b" % (
        kind, length, body,
    )  # fmt: skip


def piece(body: bytes) -> bytes:
    """A stream that breaks off after a piece."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + f"{len(body):x}\r\n".encode() + body + b"\r\n"


def with_server(answers: list[bytes], deed: Callable[[Client], Awaitable[Any]]) -> tuple[Any, int]:
    """Answers one connection after the other, and closes each; None of them is answered twice."""

    async def run() -> tuple[Any, int]:
        asked = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            await reader.readuntil(b"\r\n\r\n")
            answer = answers[asked]
            asked += 1
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/api/workflows"
        dependencies = ClientDependencies(sleep=lambda _: asyncio.sleep(0))
        async with server, Client(url, dependencies=dependencies, timeout="5 seconds") as client:
            return await deed(client), asked

    return asyncio.run(run())


def order(client: Client):
    return client.workflow("order").get("order-1")


def test_a_read_is_repeated_when_the_server_breaks_off():
    result, requested = with_server(
        [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", whole(DESCRIBED)],
        lambda client: order(client).status(),
    )
    assert (result.status, requested) == ("active", 3)


def test_an_event_is_not_sent_again_when_the_server_breaks_off():
    async def send(client: Client) -> None:
        with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
            await order(client).send_event("go")

    assert with_server([b""], send) == (None, 1)


def test_a_stream_goes_on_after_it_broke():
    async def follow(client: Client) -> list[str]:
        return [item.id async for item in order(client).follow()]

    first = message("status", 7, stands("waiting"))
    assert with_server([piece(first), b"", piece(END)], follow) == (["7", "9"], 3)


def test_nobody_at_all_is_said_in_a_line():
    async def ask() -> None:
        dependencies = ClientDependencies(sleep=lambda _: asyncio.sleep(0))
        async with Client("http://127.0.0.1:1/api/workflows", dependencies=dependencies) as client:
            await order(client).send_event("go")

    with pytest.raises(ConnectionFailedError, match="start it with `headwater up`"):
        asyncio.run(ask())
