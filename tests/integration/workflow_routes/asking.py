"""The workflow service as tests ask it, and wait for what comes of it."""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from tests.e2e.system import System
from tests.waiting import pauses_s

KEY = {"authorization": "Bearer dev-workflow-key"}
ASYNC = {"prefer": "respond-async"}
TICK_KEY = {"authorization": "Bearer the-tick-key"}
MISSING = "workflow-history/0@999999"

_NUMBERS = itertools.count(1)


def fresh() -> str:
    """An id that no other test uses."""
    return f"i-{next(_NUMBERS)}"


def base(system: System, gateway: str = "gateway") -> str:
    return f"{system.url(gateway)}/api/workflows"


def of(workflow: str, instance: str = "", verb: str = "") -> str:
    path = f"/workflows/{workflow}/instances"
    return "/".join(part for part in (path, instance, verb) if part)


def problem(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def create(api: httpx2.Client, workflow: str, params: object = None, name: str = "") -> str:
    body = {"id": name or fresh(), "params": params}
    answer = api.post(of(workflow), json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def status(api: httpx2.Client, workflow: str, name: str) -> dict[str, Any]:
    answer = api.get(of(workflow, name))
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["details"])


def until(api: httpx2.Client, workflow: str, name: str, *statuses: str) -> dict[str, Any]:
    deadline, pauses = time.monotonic() + 60, pauses_s()
    while True:
        result = status(api, workflow, name)
        if result["status"] in statuses:
            return result
        assert time.monotonic() < deadline, result
        time.sleep(next(pauses))


def at_once(
    system: System, act: Callable[[httpx2.AsyncClient, httpx2.AsyncClient], Awaitable[None]]
) -> None:
    """Acts with both gateways, in an event loop."""

    async def acts() -> None:
        limits = httpx2.Limits(max_connections=100)
        async with (
            httpx2.AsyncClient(
                base_url=base(system), headers=KEY, timeout=30, limits=limits
            ) as one,
            httpx2.AsyncClient(
                base_url=base(system, "gateway2"), headers=KEY, timeout=30, limits=limits
            ) as two,
        ):
            await act(one, two)

    asyncio.run(acts())


def follow(
    api: httpx2.Client, path: str, *, stop_after: int | None = None, **headers: str
) -> list[tuple[str, str, Any]]:
    """Event, id and data of each message, to the end or a number of them."""
    result: list[tuple[str, str, Any]] = []
    last_id = headers.get("last-event-id", "")
    with api.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            last_id = fields.get("id", last_id)
            if "event" in fields:
                result.append((fields["event"], last_id, json.loads(fields["data"])))
            if len(result) == stop_after:
                break
            fields = {}
    return result
