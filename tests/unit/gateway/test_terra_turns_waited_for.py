"""Terra's client against a local server: what one caller meets holds no other."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import date
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headwater.gateway.builtin.terra.answers import (
    ConnectionList,
    SharedConnectionList,
    TerraFailed,
    parse_connection_list,
)
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.settings.terra import TerraAccess

DAY = date(2026, 11, 22)
#: Longer than anything takes that does not wait for a pause; shorter than the pauses.
SOON_S = 60.0

Answer = tuple[int, dict[str, str], object]


class Server:
    """Answers requests as a test says, and remembers them."""

    def __init__(self, answer: Callable[[str, dict[str, str]], Answer | Awaitable[Answer]]) -> None:
        self._answer = answer
        self.port = 0
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._connections: set[asyncio.Task[Any]] = set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        while line := (await reader.readline()).decode():
            length = 0
            while (header := await reader.readline()) not in (b"\r\n", b""):
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            await reader.readexactly(length)
            target = urlsplit(line.split()[1])
            query = {name: values[0] for name, values in parse_qs(target.query).items()}
            self.asked.append((target.path, query))
            result = self._answer(target.path, query)
            status, headers, body = await result if isinstance(result, Awaitable) else result
            content = json.dumps(body).encode()
            head = {"content-length": str(len(content)), **headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + content)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def ended(self) -> None:
        """Returns when all clients have closed their connections."""
        await asyncio.gather(*self._connections)


@asynccontextmanager
async def served(
    answer: Callable[[str, dict[str, str]], Answer | Awaitable[Answer]],
    rate: float = 1_000.0,
    attempts: int = 1,
    **more: str,
) -> AsyncIterator[tuple[Server, Terra]]:
    server = Server(answer)
    listening = await asyncio.start_server(server.take, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server.port = port
    api = f"http://127.0.0.1:{port}"
    access = TerraAccess(api=api, dev_id="d", api_key="k", rate=rate, **more)
    terra = Terra(access, draw=lambda: 0.0, wall_s=time.time, attempts=attempts)
    async with listening:
        async with terra:
            yield server, terra
        await server.ended()


def acts(act: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(SOON_S):
            await act()

    asyncio.run(whole())


OK: Answer = (200, {}, {"status": "processing", "reference": "r", "upload_id": "u"})


def test_a_429_of_one_connection_holds_no_other_and_no_lab_report():
    def answer(_: str, query: dict[str, str]) -> Answer:
        throttled = query.get("user_id") == "a"
        return (429, {"retry-after": "2400"}, {}) if throttled else OK

    async def act() -> None:
        async with served(answer) as (server, terra):
            with pytest.raises(TerraFailed, match="answered 429"):
                await terra.request_data("daily", "a", DAY, DAY)
            await terra.request_data("daily", "b", DAY, DAY)
            await terra.upload_lab_report("user_b", name="a", content_type="b", content=b"c")
            before = len(server.asked)
            with pytest.raises(TerraFailed, match="Terra has asked to wait") as caught:
                await terra.request_data("daily", "a", DAY, DAY)
            assert caught.value.status == 429
            assert len(server.asked) == before

    acts(act)


def test_a_session_to_connect_may_begin_on_another_host():
    session = {"url": "https://here.example", "session_id": "s"}

    async def act() -> None:
        async with served(lambda *_: (200, {}, session)) as (other, _):
            path = f"http://127.0.0.1:{other.port}/api/widget/session"
            async with served(lambda *_: OK, widget_path=path) as (server, terra):
                begun = await terra.widget_session("user_a")
                assert (begun.url, begun.session_id) == (session["url"], "s")
                await terra.request_data("daily", "a", DAY, DAY)
                assert [path for path, _ in server.asked] == ["/daily"]
            assert [path for path, _ in other.asked] == ["/api/widget/session"]

    acts(act)


def test_callers_that_are_cancelled_give_their_turns_back():
    async def act() -> None:
        async with served(lambda *_: OK, rate=1.0) as (server, terra):
            await terra.request_data("daily", "first", DAY, DAY)
            waiting = [
                asyncio.create_task(terra.request_data("daily", f"c-{number}", DAY, DAY))
                for number in range(500)
            ]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            # Five hundred turns are five hundred seconds; this one has to wait for its own alone.
            await terra.request_data("daily", "last", DAY, DAY)
            assert [query["user_id"] for _, query in server.asked] == ["first", "last"]

    acts(act)


def test_a_lab_report_does_not_wait_for_connections_that_hang():
    hanging = asyncio.Event

    async def act() -> None:
        let_go = hanging()

        async def answer(path: str, _: dict[str, str]) -> Answer:
            if path != "/lab-reports":
                await let_go.wait()
            return OK

        async with served(answer) as (server, terra):
            tasks = [
                asyncio.create_task(terra.request_data("daily", f"c-{number}", DAY, DAY))
                for number in range(40)
            ]
            await terra.upload_lab_report("user_b", name="a", content_type="b", content=b"c")
            let_go.set()
            await asyncio.gather(*tasks)
            assert len(server.asked) == 41

    acts(act)


def entries(*users: object) -> Answer:
    return 200, {}, {"data": {"results": [*users], "next": None}}


GARMIN: dict[str, Any] = {"user_id": "t-1", "provider": "GARMIN", "reference_id": "user_a"}


def test_one_read_of_the_list_is_for_all_who_want_it():
    async def act() -> None:
        async with served(lambda *_: entries(GARMIN)) as (server, terra):
            leaving = asyncio.create_task(terra.subscriptions())
            await asyncio.sleep(0)
            leaving.cancel()
            result = await asyncio.gather(*(terra.subscriptions() for _ in range(100)))
            assert all(item is result[0] for item in result)
            assert await terra.subscriptions() is result[0]
            assert [path for path, _ in server.asked] == ["/subscriptions"]

    acts(act)


def test_a_list_is_used_for_a_minute_from_the_beginning_of_its_read():
    now_s = 0.0

    async def read(listed_s: float) -> ConnectionList:
        nonlocal now_s
        now_s += 20.0
        return parse_connection_list([], listed_s)

    async def act() -> None:
        nonlocal now_s
        shared = SharedConnectionList(read, lambda: now_s, lambda: now_s)
        first = await shared.get()
        now_s = 59.0
        assert await shared.get() is first
        now_s = 60.0
        assert (await shared.get()).listed_s == 60.0

    acts(act)


def test_a_list_that_cannot_be_read_is_not_asked_for_by_each_caller_anew():
    async def act() -> None:
        async with served(lambda *_: (500, {}, {})) as (server, terra):
            for _ in range(20):
                with pytest.raises(TerraFailed, match="answered 500"):
                    await terra.subscriptions()
            assert len(server.asked) == 1

    acts(act)


def test_entries_that_cannot_be_read_spoil_no_other():
    strange = [
        {"user_id": "t-2", "provider": None},
        {"user_id": "t-3", "provider": "OURA", "scopes": []},
        {"user_id": "t-4", "provider": "OURA", "reference_id": 7},
    ]

    async def act() -> None:
        async with served(lambda *_: entries(*strange, GARMIN)) as (_, terra):
            listing = await terra.subscriptions()
        assert [item.user_id for item in listing.of("user_a")] == ["t-1"]
        assert listing.unreadable == {"t-2", "t-3", "t-4"}
        assert [listing.lacks(name) for name in ("t-1", "t-2", "t-9")] == [False, False, True]

    acts(act)


def test_with_an_entry_without_an_id_nothing_is_known_to_be_missing():
    async def act() -> None:
        async with served(lambda *_: entries({"provider": "OURA"}, GARMIN)) as (_, terra):
            listing = await terra.subscriptions()
        assert (listing.nameless, listing.lacks("t-9")) == (1, False)

    acts(act)
