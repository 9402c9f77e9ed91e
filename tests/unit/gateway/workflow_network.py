"""A network that answers as it is told, one request after the other, and remembers what was asked.

It stands for sockets and proxies, not for the product: what the service really answers is tested
end to end.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import httpx2

from headwater.gateway.client.client import Client, ClientDependencies

BASE_URL = "http://127.0.0.1:8080/api/workflows"
AT = "2026-11-21T14:00:00Z"

Turn: TypeAlias = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


def answer(value: object, position: str = "", status: int = 200) -> httpx2.Response:
    headers = {"headwater-position": position} if position else {}
    return httpx2.Response(status, json=value, headers=headers)


def problem(status: int, code: str, detail: str = "no", **more: object) -> httpx2.Response:
    headers = {name.replace("_", "-"): value for name, value in more.pop("headers", {}).items()}
    body = {"status": status, "code": code, "detail": detail, **more}
    return httpx2.Response(status, json=body, headers=headers)


def described(status: str = "active", params: object = None, **more: object) -> dict[str, Any]:
    """An instance as the service answers it."""
    meta = {
        "workflowName": "order",
        "runNumber": 0,
        "params": params,
        "createdAt": AT,
        "updatedAt": AT,
        "startedAt": AT,
        "completedAt": None,
        **more.pop("meta", {}),
    }
    return {"id": "order-1", "details": {"status": status, **more}, "meta": meta}


def listed_as(instance_id: str, status: str = "active", **more: object) -> dict[str, Any]:
    """An instance on a page."""
    listed = {"id": instance_id, "details": {"status": status}, "workflowName": "order"}
    return {**listed, "createdAt": AT, "updatedAt": AT, **more}


OF_RUN = {"workflowName": "order", "instanceId": "order-1", "runNumber": 0}
STANDING = {
    "status": "completed",
    "attempts": 1,
    "maxAttempts": 6,
    "timeoutMs": 600_000,
    "nextRetryAt": None,
    "wakeAt": None,
    "waitEventType": None,
    "lastAttemptAt": AT,
}


def current(key: str, type_: str = "do", **more: object) -> dict[str, Any]:
    """What a run stands at, as the service answers it."""
    return {"stepKey": key, "name": key, "type": type_, **STANDING, **more}


def step(key: str, **more: object) -> dict[str, Any]:
    """An entry of a history, as the service answers it."""
    whole = {
        "id": key,
        **OF_RUN,
        "result": key,
        "errorName": None,
        "errorMessage": None,
        "childWorkflowName": None,
        "childInstanceId": None,
        "trimmedBefore": None,
        "createdAt": AT,
        "updatedAt": AT,
        "completedAt": AT,
        "rolledBackAt": None,
        "rollbackFailedAt": None,
    }
    return current(key) | whole | more


def event(payload: object = 1, **more: object) -> dict[str, Any]:
    """An event of a history, as the service answers it."""
    whole = {
        "id": "e",
        **OF_RUN,
        "type": "go",
        "payload": payload,
        "createdAt": AT,
        "deliveredAt": None,
        "consumedByStepKey": None,
    }
    return whole | more


def line(number: int, level: str = "info", **more: object) -> dict[str, Any]:
    """A line of a history, as the service answers it."""
    whole = {
        "id": f"{number:03d}",
        **OF_RUN,
        "stepKey": None,
        "attempt": None,
        "level": level,
        "category": "x",
        "message": f"line {number}",
        "data": None,
        "isReplay": False,
        "createdAt": AT,
    }
    return whole | more


def stands(status: str, **more: object) -> dict[str, Any]:
    """How an instance stands, as a stream tells it."""
    return {"status": status, "runNumber": 0, **more}


def message(event: str, number: int, data: object) -> bytes:
    return f"event: {event}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()


class Stream(httpx2.AsyncByteStream):
    """A body that comes in pieces, and may break off."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def stream(*pieces: bytes | Exception) -> httpx2.Response:
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    return httpx2.Response(200, headers=headers, stream=Stream(*pieces))


class Network(httpx2.AsyncBaseTransport):
    """Answers in the order of its script."""

    def __init__(self, *script: Turn) -> None:
        self.script = list(script)
        self.asked: list[httpx2.Request] = []
        self.slept: list[float] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.asked.append(request)
        assert self.script, f"nobody expected {request.method} {request.url}"
        turn = self.script.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn if isinstance(turn, httpx2.Response) else turn(request)

    def client(self, base_url: str = BASE_URL, **more: object) -> Client:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        ids = iter(f"drawn-{number}" for number in range(1000))
        dependencies = ClientDependencies(sleep=sleep, draw=lambda: 0.5, new_id=lambda: next(ids))
        return Client(base_url, transport=self, dependencies=dependencies, **more)

    @property
    def lines(self) -> list[str]:
        """What was asked: method and path below the base."""
        return [
            f"{one.method} {one.url.raw_path.decode().removeprefix('/api/workflows')}"
            for one in self.asked
        ]

    def body(self, number: int = -1):
        return json.loads(self.asked[number].content)


async def taken(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def queries(requests: Iterable[httpx2.Request]) -> list[dict[str, str]]:
    return [dict(one.url.params) for one in requests]


def do(network: Network, deed: Callable[[Client], Awaitable[Any]], **more: object):
    """Does something with a client."""

    async def run() -> object:
        async with network.client(**more) as client:
            return await deed(client)

    return asyncio.run(run())
