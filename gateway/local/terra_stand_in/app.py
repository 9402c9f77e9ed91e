"""The stand-in's HTTP application: Terra's API under /v2, the widget, and control routes.

Source: Terra's OpenAPI document, version 2026.07.17.1.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec
from litestar import Litestar, Request, Response, Router, delete, get, post
from litestar.datastructures import State, UploadFile

from headwater.gateway.local.terra_stand_in import deliveries
from headwater.gateway.local.terra_stand_in.deliveries import KINDS, SeededValues, records_of
from headwater.gateway.local.terra_stand_in.people import People, Person, StandIn
from headwater.gateway.local.terra_stand_in.posting import ErrorInjector, InjectedError, Posting
from headwater.gateway.local.terra_stand_in.widget import Widget, widget_routes

_PER_PAGE: Final = 500
#: Maximum number of days in a synchronous response.
_SYNCHRONOUS_MAX: Final = 100

_ApiRequest = Request[Any, Any, State]
_Answer = Response[Any]


class _Refused(Exception):
    """An error response of Terra."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.title = status, title


class Api:
    """Implements the requests of Terra's API."""

    def __init__(
        self,
        setup: StandIn,
        people: People,
        posting: Posting,
        widget: Widget,
        clock: Callable[[], int],
    ) -> None:
        self._setup = setup
        self._people = people
        self._posting = posting
        self._widget = widget
        self._clock = clock

    async def begin_session(self, request: _ApiRequest) -> dict[str, Any]:
        """POST /auth/generateWidgetSession."""
        try:
            options = msgspec.json.decode(await request.body() or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise _Refused(400, "bad request", f"expected a JSON object: {error}") from error
        return self._widget.begin(options)

    def subscriptions(self, request: _ApiRequest) -> dict[str, Any]:
        """GET /subscriptions, complete or by page."""
        number = request.query_params.get("page")
        if number is None:
            people = self._people.page(-1, 0)
            return {"users": [person.as_user() for person in people]}
        page = _integer(number, "page", 0)
        size = _integer(request.query_params.get("per_page", str(_PER_PAGE)), "per_page", 1)
        people = self._people.page(size, page * size)
        last = max(0, (self._people.number() - 1) // size)
        return {
            "data": {
                "next": page + 1 if page < last else None,
                "max_page": last,
                "results": [person.as_user() for person in people],
            }
        }

    def user_info(self, request: _ApiRequest) -> Any:  # noqa: ANN401, an object or an array
        """GET /userInfo, by connection or by reference id."""
        if "reference_id" in request.query_params:
            people = self._people.of_reference(request.query_params["reference_id"])
            return [person.as_user() for person in people]
        person = self._person(request)
        return {"status": "success", "is_authenticated": True, "user": person.as_user()}

    def deauthenticate(self, request: _ApiRequest) -> dict[str, Any]:
        """DELETE /auth/deauthenticateUser."""
        self._widget.disconnect(self._person(request))
        return {"status": "success"}

    def data(self, kind: str, request: _ApiRequest) -> dict[str, Any]:
        """GET /{type}: data in the response, or as deliveries."""
        person = self._person(request)
        last = self._day(request, "end_date", datetime.fromtimestamp(self._now_s(), UTC).date())
        first = self._day(request, "start_date", None)
        if first > last:
            raise _Refused(400, "bad request", "invalid start_date: it is after end_date")
        if request.query_params.get("to_webhook", "true").lower() == "false":
            return self._synchronous(kind, person, first, last)
        number = self._people.count("requests for data")
        reference = SeededValues(self._setup.seed, "request").id_of(str(number))
        if self._setup.data:
            posts = deliveries.data(kind, person, first, last, reference)
            self._people.post(posts, self._clock())
            self._posting.wake_up()
        large = (last - first).days > deliveries.LARGE_DAYS
        more = {"message": "Large request submitted"} if large else {}
        user = person.as_user()
        status = {"status": "processing", "type": "request_processing"}
        return {**status, "reference": reference, "trace_id": reference, "user": user, **more}

    async def upload(self, request: _ApiRequest) -> dict[str, Any]:
        """POST /lab-reports."""
        form = await request.form()
        file = form.get(self._setup.lab_field)
        if not isinstance(file, UploadFile):
            raise _Refused(400, "bad request", "No Files Provided")
        reference = request.query_params.get("reference_id") or form.get("reference_id")
        number = self._people.count("lab reports")
        upload_id = f"upl_{SeededValues(self._setup.seed, 'upload').id_of(str(number))[:8]}{number}"
        day = datetime.fromtimestamp(self._now_s(), UTC).date()
        if self._setup.lab_shape == "untyped":
            report = deliveries.untyped_lab_report(self._setup.seed, upload_id, day)
        else:
            report = deliveries.lab_report(self._setup.seed, upload_id, reference, day)
        self._people.post([report], self._clock() + round(self._setup.lab_delay_s * 1_000))
        return {"upload_id": upload_id, "current_status": "processing"}

    def _synchronous(self, kind: str, person: Person, first: date, last: date) -> dict[str, Any]:
        if (last - first).days > _SYNCHRONOUS_MAX:
            raise _Refused(400, "bad request", f"expected {_SYNCHRONOUS_MAX} days at most")
        days = map(date.fromordinal, range(first.toordinal(), last.toordinal() + 1))
        seed, user_id, provider = self._setup.seed, person.user_id, person.provider
        records = [
            record for day in days for record in records_of(kind, seed, user_id, provider, day)
        ]
        return {"status": "success", "type": kind, "user": person.as_user(), "data": records}

    def _person(self, request: _ApiRequest) -> Person:
        user_id = request.query_params.get("user_id", "")
        if not user_id:
            raise _Refused(400, "bad request", "user_id is missing")
        person = self._people.person(user_id)
        if person is None:
            raise _Refused(404, "not found", "user not found")
        return person

    def _day(self, request: _ApiRequest, name: str, default: date | None) -> date:
        text = request.query_params.get(name, "")
        if not text and default is not None:
            return default
        try:
            if text.isdigit() and len(text) == 10:
                return datetime.fromtimestamp(int(text), UTC).date()
            return date.fromisoformat(text)
        except ValueError:
            raise _Refused(400, "bad request", f"invalid {name}") from None

    def _now_s(self) -> float:
        return self._clock() / 1_000


def _integer(text: str, name: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise _Refused(400, "bad request", f"invalid {name}")
    return int(text)


def api_routes(
    setup: StandIn, people: People, posting: Posting, widget: Widget, clock: Callable[[], int]
) -> Router:
    """Return the router for /v2."""
    api = Api(setup, people, posting, widget, clock)

    @post(sorted({"/auth/generateWidgetSession", setup.widget_path}), status_code=200)
    async def begin_session(request: _ApiRequest) -> dict[str, Any]:
        return await api.begin_session(request)

    @get("/subscriptions")
    async def subscriptions(request: _ApiRequest) -> dict[str, Any]:
        return api.subscriptions(request)

    @get("/userInfo")
    async def user_info(request: _ApiRequest) -> Any:  # noqa: ANN401
        return api.user_info(request)

    @delete("/auth/deauthenticateUser", status_code=200)
    async def deauthenticate(request: _ApiRequest) -> dict[str, Any]:
        return api.deauthenticate(request)

    @get([f"/{kind}" for kind in KINDS])
    async def data(request: _ApiRequest) -> dict[str, Any]:
        return api.data(request.url.path.rpartition("/")[2], request)

    @post("/lab-reports", status_code=202)
    async def upload(request: _ApiRequest) -> dict[str, Any]:
        return await api.upload(request)

    return Router(
        "/v2",
        route_handlers=[begin_session, subscriptions, user_info, deauthenticate, data, upload],
        guards=[_require_credentials],
        exception_handlers={_Refused: _refusal},
    )


async def _require_credentials(connection: Any, _handler: Any) -> None:  # noqa: ANN401, as Litestar calls it
    """Require Terra's credentials; any values are accepted."""
    if not (connection.headers.get("dev-id") and connection.headers.get("x-api-key")):
        raise _Refused(401, "unauthorized", "dev-id or x-api-key headers are missing")


def _refusal(request: _ApiRequest, refused: _Refused) -> _Answer:
    """Return a problem document in Terra's format."""
    problem = {
        "type": "about:blank",
        "title": refused.title,
        "instance": request.url.path,
        "detail": str(refused),
    }
    return Response(problem, status_code=refused.status, media_type="application/problem+json")


# -- the application

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
