"""Senders who send nothing, or little by little, against the real server: others are served.

Loopback has many addresses, so one machine can be several senders.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages
import pytest

from headwater.gateway.api import listening, server
from headwater.gateway.api.body_limits import READS_MAX
from headwater.gateway.api.front import front_of
from headwater.gateway.api.listening import listen
from headwater.gateway.local.demo_day import terra_signature
from headwater.streams.clock import now_ms
from tests.unit.gateway.memory_app import memory_app, memory_workflows

BODY = b'{"type":"daily","user":{"user_id":"terra-1","reference_id":"user_1"},"data":[]}'
LARGE = 10 * 1024 * 1024
WORKFLOWS = "/api/workflows/workflows/order/instances"
#: Longer than a good sender ever waits here, shorter than any slow one is waited for.
SOON_S = 60
LATE_S = 600


@pytest.fixture(autouse=True)
def slow_senders_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than usual: on a busy machine an answer at once may take as long as a slow sender."""
    monkeypatch.setattr("headwater.gateway.api.app.READ_S", LATE_S)
    monkeypatch.setattr(server, "_HEAD_TIMEOUT_MS", LATE_S * 1_000)
    monkeypatch.setattr(listening, "_UNREAD_TIMEOUT_MS", LATE_S * 1_000)


class Connection:
    """A connection to the server, written and read as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def port(self) -> int:
        """The server's."""
        return int(self._writer.get_extra_info("peername")[1])

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int:
        """The status of the answer; what else the head says is passed over."""
        line = await self._reader.readline()
        return int(line.split()[1]) if line else 0

    async def rest(self) -> bytes:
        return await self._reader.read()

    def close(self) -> None:
        self._writer.close()


Connect = Callable[[str], Awaitable[Connection]]


@asynccontextmanager
async def served() -> AsyncIterator[Connect]:
    """The real application on a free port; connections come from the address that is asked for."""
    app = memory_app(clock=now_ms, workflows=memory_workflows())
    free = listen("127.0.0.1", 0)
    port = free.getsockname()[1]
    gateway = server.server_of(front_of(app), free)
    serving = asyncio.create_task(gateway.serve())
    async with AsyncExitStack() as connections:

        async def connect(address: str) -> Connection:
            async with asyncio.timeout(SOON_S):
                while True:
                    try:
                        pair = await asyncio.open_connection(
                            "127.0.0.1", port, local_addr=(address, 0)
                        )
                        break
                    except ConnectionRefusedError:
                        await asyncio.sleep(0.01)
            connection = Connection(*pair)
            connections.callback(connection.close)
            return connection

        try:
            yield connect
        finally:
            await connections.aclose()
            gateway.stop()
            await serving


def head(path: str, length: int, *, signature: str | None = None) -> bytes:
    signature = signature or terra_signature("dev-terra-secret", BODY, now_ms() // 1000)
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n"
        f"content-type: application/json\r\nauthorization: Bearer dev-workflow-key\r\n"
        f"terra-signature: {signature}\r\n\r\n"
    ).encode()


async def answer_to_a_good_sender(connect: Connect, address: str) -> int:
    async with asyncio.timeout(SOON_S):
        connection = await connect(address)
        await connection.send(head("/webhooks/terra", len(BODY)) + BODY)
        return await connection.status()


@pytest.mark.parametrize("path", ["/webhooks/terra", WORKFLOWS])
def test_heads_without_bodies_keep_nobody_out(path: str) -> None:
    async def whole() -> None:
        async with served() as connect:
            silent = [await connect("127.0.0.2") for _ in range(1_100)]
            for connection in silent:
                await connection.send(head(path, 100))
            refused = await asyncio.wait_for(silent[0].status(), SOON_S)
            assert refused in {429, 503}
            assert await answer_to_a_good_sender(connect, "127.0.0.3") == 200
            assert await answer_to_a_good_sender(connect, "127.0.0.2") == 200

    asyncio.run(whole())


@pytest.mark.parametrize("path", ["/webhooks/terra", WORKFLOWS])
def test_a_body_that_never_comes_is_answered_in_time(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.gateway.api.app.READ_S", 0.2)

    async def whole() -> None:
        async with served() as connect:
            connection = await connect("127.0.0.2")
            await connection.send(head(path, 100))
            async with asyncio.timeout(SOON_S):
                assert await connection.status() == 408
                # The connection is closed too: what it would bring is no request.
                assert b"retry-after" in await connection.rest()

    asyncio.run(whole())


@pytest.mark.parametrize("path", ["/webhooks/terra", WORKFLOWS])
def test_large_bodies_that_come_slowly_keep_nobody_out(path: str) -> None:
    async def whole() -> None:
        async with served() as connect:
            slow = [await connect("127.0.0.2") for _ in range(7)]
            answers = [asyncio.create_task(connection.status()) for connection in slow]
            for connection in slow:
                await connection.send(head(path, LARGE) + b" " * (LARGE - 1))
            async with asyncio.timeout(SOON_S):
                done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            # A body over the limit of its route is refused at once.
            assert {answer.result() for answer in done} <= {413, 429, 503}
            assert await answer_to_a_good_sender(connect, "127.0.0.3") == 200
            for answer in answers:
                answer.cancel()

    asyncio.run(whole())


def test_a_signature_that_cannot_be_right_is_refused_without_its_body() -> None:
    async def whole() -> None:
        async with served() as connect:
            connection = await connect("127.0.0.2")
            stale = terra_signature("dev-terra-secret", BODY, now_ms() // 1000 - 3600)
            await connection.send(head("/webhooks/terra", LARGE, signature=stale))
            async with asyncio.timeout(SOON_S):
                assert await connection.status() == 401

    asyncio.run(whole())


def test_a_length_that_no_record_could_hold_is_refused_like_any_other() -> None:
    async def whole() -> None:
        async with served() as connect:
            for length in (2**63, 2**63 - 1, 2**62):
                connection = await connect("127.0.0.2")
                await connection.send(head("/webhooks/terra", length))
                async with asyncio.timeout(SOON_S):
                    assert await connection.status() == 413

    asyncio.run(whole())


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_TIMEOUT_MS", 300)

    async def whole() -> None:
        async with served() as connect:
            silent, begun, idle = [await connect("127.0.0.2") for _ in range(3)]
            await begun.send(b"POST / HTTP/1.1\r\nhost: ")
            await idle.send(head("/webhooks/terra", len(BODY)) + BODY)
            async with asyncio.timeout(SOON_S):
                for connection in (silent, begun, idle):
                    await connection.rest()

    asyncio.run(whole())


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_UNREAD_TIMEOUT_MS", 500)
    requested = b"GET /schema/assets/swagger-ui-bundle.js HTTP/1.1\r\nhost: localhost\r\n\r\n"

    async def whole() -> None:
        async with served() as connect:
            port = (await connect("127.0.0.2")).port
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                deaf.connect(("127.0.0.1", port))
                deaf.sendall(requested * 8)  # More than the kernel holds for a connection.
                here = deaf.getsockname()
                async with asyncio.timeout(SOON_S):
                    for open_ in (True, False):
                        while waits_for(here) != open_:  # noqa: ASYNC110 (the kernel tells nobody)
                            await asyncio.sleep(0)

    asyncio.run(whole())


def waits_for(address: tuple[str, int]) -> bool:
    """Whether a connection to an address is open here."""
    return any(one.raddr == address for one in psutil.Process().net_connections("tcp"))


def test_there_is_room_for_more_connections_than_can_be_read_at_once() -> None:
    assert server._connections() > 4 * READS_MAX
