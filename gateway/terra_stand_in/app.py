"""The stand-in's HTTP application: Terra's API below /v2, the widget, and switches for people."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from litestar import Litestar, Request, Response, Router, get, post
from litestar.datastructures import State

from headwater.gateway.terra_stand_in.api import api_routes
from headwater.gateway.terra_stand_in.error_injection import Fault, Faults
from headwater.gateway.terra_stand_in.people import People, Person
from headwater.gateway.terra_stand_in.posting import Posting
from headwater.gateway.terra_stand_in.setup import StandIn
from headwater.gateway.terra_stand_in.widget import Widget, widget_routes

#: Where the switches are; faults leave them alone.
SWITCHES: Final = "/stand-in"

#: A lab report may have 10 MiB, and the form that holds it some more.
_BODY_BYTES_MAX: Final = 11 * 1024 * 1024

_Req = Request[Any, Any, State]


def create_stand_in(
    setup: StandIn, clock: Callable[[], int], first: Iterable[Fault] = ()
) -> Litestar:
    """The application; it posts for as long as it is served.

    Units:  the clock in Unix milliseconds.
    """
    people, faults = People(setup.file), Faults(first)
    people.connect(setup.people)
    posting = Posting(
        people,
        faults,
        target=setup.target,
        secret=setup.secret,
        seed=setup.seed,
        clock=clock,
    )
    widget = Widget(people, posting, seed=setup.seed, url=setup.url, clock=clock)

    @asynccontextmanager
    async def posts(_: Litestar) -> AsyncIterator[None]:
        running = asyncio.create_task(posting.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            people.close()

    async def fail_as_told(request: _Req) -> Response[Any] | None:
        path = request.url.path
        fault = None if path.startswith(SWITCHES) else faults.of_request(path, request.url.query)
        if fault is None:
            return None
        people.count("requests that were failed")
        # A connection that is closed with bytes unread is reset: the answer may never arrive.
        await request.body()
        if fault.kind == "stall":
            await asyncio.sleep(fault.seconds)
        headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
        content = {"title": "a fault that was asked for", "detail": "the stand-in was told to fail"}
        return Response(content, status_code=fault.status, headers=headers)

    return Litestar(
        route_handlers=[
            api_routes(setup, people, posting, widget, clock),
            widget_routes(widget),
            _switches(people, faults),
        ],
        lifespan=[posts],
        before_request=fail_as_told,
        openapi_config=None,
        logging_config=None,
        request_max_body_size=_BODY_BYTES_MAX,
    )


def _switches(people: People, faults: Faults) -> Router:
    @post("/faults", status_code=200)
    async def fail(request: _Req) -> dict[str, Any]:
        faults.add(msgspec.json.decode(await request.body(), type=Fault))
        return {"ok": True}

    @post("/faults/clear", status_code=200)
    async def work() -> dict[str, Any]:
        faults.clear()
        return {"ok": True}

    @post("/people", status_code=200)
    async def connect(request: _Req) -> dict[str, Any]:
        found = msgspec.json.decode(await request.body(), type=list[Person])
        people.connect(found)
        return {"ok": True, "people": people.number()}

    @get("/")
    async def look() -> dict[str, Any]:
        return {
            "stand_in": "This plays Terra; nothing here is real.",
            "people": people.number(),
            "waiting": people.waiting(),
            "counts": people.counts(),
        }

    return Router(SWITCHES, route_handlers=[fail, work, connect, look])
