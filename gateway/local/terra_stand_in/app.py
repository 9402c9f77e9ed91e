"""The stand-in's HTTP application: Terra's API under /v2, the widget, and control routes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from litestar import Litestar, Request, Response, Router, get, post
from litestar.datastructures import State

from headwater.gateway.local.terra_stand_in.api import api_routes
from headwater.gateway.local.terra_stand_in.error_injection import ErrorInjector, InjectedError
from headwater.gateway.local.terra_stand_in.people import People, Person
from headwater.gateway.local.terra_stand_in.posting import Posting
from headwater.gateway.local.terra_stand_in.setup import StandIn
from headwater.gateway.local.terra_stand_in.widget import Widget, widget_routes

#: Path of the control routes, to which injected errors do not apply.
CONTROL: Final = "/stand-in"

#: A lab report of up to 10 MiB, and the rest of its form.
_BODY_BYTES_MAX: Final = 11 * 1024 * 1024

_Req = Request[Any, Any, State]


def create_stand_in(
    setup: StandIn, clock: Callable[[], int], first: Iterable[InjectedError] = ()
) -> Litestar:
    """Create the application; it posts deliveries while it is served.

    Args:
        setup: Configuration.
        clock: Returns Unix milliseconds.
        first: Errors to inject from the start.
    """
    people, injector = People(setup.file), ErrorInjector(first)
    people.connect(setup.people)
    posting = Posting(
        people,
        injector,
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

    async def inject_error(request: _Req) -> Response[Any] | None:
        path = request.url.path
        error = None if path.startswith(CONTROL) else injector.next_for(path, request.url.query)
        if error is None:
            return None
        people.count("requests that were failed")
        # Closing a connection with unread bytes resets it, and the response may be lost.
        await request.body()
        if error.kind == "stall":
            await asyncio.sleep(error.seconds)
        headers = {} if error.retry_after is None else {"retry-after": error.retry_after}
        content = {"title": "injected error", "detail": "the stand-in was requested to fail"}
        return Response(content, status_code=error.status, headers=headers)

    return Litestar(
        route_handlers=[
            api_routes(setup, people, posting, widget, clock),
            widget_routes(widget),
            _control_routes(people, injector),
        ],
        lifespan=[posts],
        before_request=inject_error,
        openapi_config=None,
        logging_config=None,
        request_max_body_size=_BODY_BYTES_MAX,
    )


def _control_routes(people: People, injector: ErrorInjector) -> Router:
    @post("/faults", status_code=200)
    async def fail(request: _Req) -> dict[str, Any]:
        injector.add(msgspec.json.decode(await request.body(), type=InjectedError))
        return {"ok": True}

    @post("/faults/clear", status_code=200)
    async def work() -> dict[str, Any]:
        injector.clear()
        return {"ok": True}

    @post("/people", status_code=200)
    async def connect(request: _Req) -> dict[str, Any]:
        people.connect(msgspec.json.decode(await request.body(), type=list[Person]))
        return {"ok": True, "people": people.number()}

    @get("/")
    async def look() -> dict[str, Any]:
        return {
            "stand_in": "This is a stand-in for Terra; nothing here is real.",
            "people": people.number(),
            "waiting": people.waiting(),
            "counts": people.counts(),
        }

    return Router(CONTROL, route_handlers=[fail, work, connect, look])
