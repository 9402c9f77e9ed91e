"""The client of Terra's API: in turns, with time limits, and tried again where that may help.

A `Retry-After` of Terra's holds the user or connection that the request was about, and nobody else.

What is asked of Terra twice changes nothing there but the number of deliveries, and those are told
apart from copies by what they change. So everything may be sent again whose answer is lost.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import date
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar

import httpx
import msgspec

from headwater.gateway.terra.access import TerraAccess
from headwater.gateway.terra.answers import (
    Accepted,
    LabAccepted,
    Page,
    Subscriptions,
    WidgetSession,
)
from headwater.gateway.terra.errors import TerraFailed, TerraRefused
from headwater.gateway.terra.fair_queue import ACCOUNT, FLIGHTS, Lane, Party, QueueFull, Turns
from headwater.gateway.terra.listing import Listing, SharedListing, read_listing
from headwater.gateway.terra.pace import backoff_s, is_passing, retry_after_s
from headwater.gateway.terra.scheduler import Scheduler
from headwater.schemas.errors import PARSE_ERRORS

A = TypeVar("A")

#: The types that are asked for, in this order.
DATA_TYPES: Final = ("activity", "sleep", "daily", "body")

#: A request for data is only noted by Terra; a lab report has to be sent first.
_TIMEOUTS: Final = {
    Lane.DATA: httpx.Timeout(15.0, connect=5.0),
    Lane.LABS: httpx.Timeout(60.0, connect=5.0),
}
#: Seconds until an answer is there whole, from when all was sent: those above are for each piece.
_WHOLE_S: Final = 60.0
#: Attempts at a request; whoever needs more, tries again later.
_ATTEMPTS: Final = 4
#: A server that asks for more patience than this is asked again by whoever needs it, later.
_PATIENCE_S: Final = 60.0
_PER_PAGE: Final = 500
#: 500 users each: more than that, and the server pages in circles.
_PAGES_MAX: Final = 10_000
#: How much of an answer that nobody expected is shown.
_SHOWN: Final = 200


class Terra:
    """Terra's API.

    Use it as `async with Terra(...) as terra`, within one event loop.

    Args:
        access: Where Terra is.
        draw: Returns numbers in [0, 1).
        wall_s: Unix time, in seconds.
        sleep: Waits before a request is repeated.
        attempts: Attempts at a request.
        haste: How many times faster than the event loop's the clock of turns runs, for tests.

    Raises:
        TerraNotConfigured: From every request; TerraFailed and TerraRefused, too.
    """

    def __init__(
        self,
        access: TerraAccess,
        *,
        draw: Callable[[], float],
        wall_s: Callable[[], float],
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        attempts: int = _ATTEMPTS,
        haste: float = 1.0,
    ) -> None:
        self._access = access
        self._draw = draw
        self._wall_s = wall_s
        self._sleep = sleep
        self._attempts = attempts
        self._haste = haste
        self._turns = Turns(access.rate)
        self._scheduler = Scheduler(self._turns, self._steady_s, haste)
        # A connection for each request that may be under way: none waits for one within httpx.
        self._http = {
            lane: httpx.AsyncClient(
                base_url=access.api.rstrip("/") + "/",
                headers={"dev-id": access.dev_id, "x-api-key": access.api_key},
                timeout=_TIMEOUTS[lane],
                limits=httpx.Limits(max_connections=connections),
            )
            for lane, connections in FLIGHTS.items()
        }
        self._listing = SharedListing(self._list_subscriptions, wall_s, self._steady_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections."""
        await self._listing.close()
        for client in self._http.values():
            await client.aclose()

    def require(self) -> None:
        """Sees that Terra can be asked at all.

        Errors: TerraNotConfigured.
        """
        self._access.require()

    async def widget_session(
        self,
        reference_id: str,
        *,
        providers: tuple[str, ...] = (),
        success_url: str | None = None,
        failure_url: str | None = None,
    ) -> WidgetSession:
        """Begins a session in which a user of ours connects a wearable."""
        wanted = {
            "reference_id": reference_id,
            "providers": ",".join(providers) or None,
            "auth_success_redirect_url": success_url,
            "auth_failure_redirect_url": failure_url,
        }
        body = {name: value for name, value in wanted.items() if value is not None}
        party = Party(Lane.DATA, "user", reference_id)
        return await self._ask(party, "POST", self._access.widget_path, WidgetSession, json=body)

    async def subscriptions(self) -> Listing:
        """Return the connections that Terra has for all users, as of at most a minute ago.

        Terra lists those of all users, so all callers share one read of its pages.
        """
        self._access.require()
        return await self._listing.get()

    async def _list_subscriptions(self, listed_s: float) -> Listing:
        entries: list[msgspec.Raw] = []
        number: int | None = 0
        for _ in range(_PAGES_MAX):
            query = {"page": number, "per_page": _PER_PAGE}
            answer = await self._ask(ACCOUNT, "GET", "/subscriptions", Subscriptions, params=query)
            page = answer.data or Page(answer.users or ())
            entries += page.results
            number = page.next
            if number is None:
                return read_listing(entries, listed_s)
        raise TerraFailed(f"expected an end of /subscriptions, found none after {_PAGES_MAX} pages")

    async def request_data(self, kind: str, user_id: str, start: date, end: date) -> str:
        """Asks for the data of a connection; it comes as deliveries.

        Shape:  kind is one of DATA_TYPES; gives Terra's reference of the request.
        """
        query = {
            "user_id": user_id,
            "start_date": start.isoformat(),
            "end_date": end.isoformat(),
            "to_webhook": "true",
            "with_samples": "false",
        }
        party = Party(Lane.DATA, "connection", user_id)
        accepted = await self._ask(party, "GET", f"/{kind}", Accepted, params=query)
        if accepted.status == "error":
            raise TerraRefused(
                f"expected Terra to take a request for {kind}, found an error: {accepted.message}"
            )
        return accepted.reference

    async def upload_lab_report(
        self, reference_id: str, *, name: str, content_type: str, content: bytes
    ) -> tuple[str, str]:
        """Gives Terra a lab report to read.

        Shape:  gives Terra's id of the upload, and its whole answer as text.
        """
        answer = await self._send(
            Party(Lane.LABS, "user", reference_id),
            "POST",
            "/lab-reports",
            params={"reference_id": reference_id},
            data={"reference_id": reference_id},
            files={self._access.lab_field: (name, content, content_type)},
        )
        return self._read(answer, LabAccepted).upload_id, answer.text

    async def _ask(
        self,
        party: Party,
        method: str,
        path: str,
        kind: type[A],
        **more: Any,  # noqa: ANN401 (what httpx takes)
    ) -> A:
        return self._read(await self._send(party, method, path, **more), kind)

    def _read(self, answer: httpx.Response, kind: type[A]) -> A:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except PARSE_ERRORS as error:
            raise TerraFailed(
                f"expected {kind.__name__} from {_place(answer.request)}, found "
                f"{answer.text[:_SHOWN]!r}: {error}",
                answer.status_code,
            ) from error

    async def _send(
        self,
        party: Party,
        method: str,
        path: str,
        **more: Any,  # noqa: ANN401 (what httpx takes)
    ) -> httpx.Response:
        """Send a request until it is answered with success, as often as that may help."""
        self._access.require()
        repeats = 0
        while True:
            retry_s: float | None = None
            self._refuse_held(party, method, path)
            try:
                async with self._scheduler.turn(party):
                    answer = await self._answered(party.lane, method, path.lstrip("/"), **more)
            except QueueFull:
                raise TerraFailed(
                    f"expected fewer requests that wait for their turn, for {party.kind} "
                    f"{party.name} or for all; try again later"
                ) from None
            except (httpx.RequestError, TimeoutError) as error:
                failed = TerraFailed(
                    f"expected an answer from {method} {self._access.api}{path}, found none: "
                    f"{str(error) or type(error).__name__}"
                )
            else:
                if answer.is_success:
                    return answer
                failed = _failure(answer)
                retry_s = retry_after_s(answer.headers.get("retry-after", ""), self._wall_s())
            if retry_s is not None:
                self._hold(party, retry_s)
            repeats += 1
            if isinstance(failed, TerraRefused) or repeats >= self._attempts:
                raise failed
            if (retry_s or 0.0) > _PATIENCE_S:
                raise failed
            await self._sleep(backoff_s(repeats - 1, self._draw()))

    def _hold(self, party: Party, retry_s: float) -> None:
        if party == ACCOUNT:
            # All users would wait for as long.
            retry_s = min(retry_s, _PATIENCE_S)
        now_s = self._steady_s()
        self._turns.hold(party, now_s + retry_s, now_s)

    def _refuse_held(self, party: Party, method: str, path: str) -> None:
        """Refuse a request that would wait for longer than anybody does.

        Raises:
            TerraFailed: Terra has asked for that.
        """
        held_s = self._turns.held_s(party, self._steady_s())
        if held_s > _PATIENCE_S:
            raise TerraFailed(
                f"{method} {self._access.api}{path} was not sent: Terra has asked to wait for "
                f"another {held_s:.0f} s with requests of this {party.kind}",
                HTTPStatus.TOO_MANY_REQUESTS,
            )

    async def _answered(
        self,
        lane: Lane,
        method: str,
        path: str,
        **more: Any,  # noqa: ANN401 (what httpx takes)
    ) -> httpx.Response:
        """Return the answer to a request; a slow line may send it for as long as it sends any.

        Raises:
            httpx.RequestError: There is none.
            TimeoutError: It did not come whole in time.
        """
        async with asyncio.timeout(None) as whole:
            loop = asyncio.get_running_loop()

            async def trace(event: str, _: object) -> None:
                if event.endswith("receive_response_headers.started"):
                    whole.reschedule(loop.time() + _WHOLE_S)

            extensions = {"trace": trace}
            return await self._http[lane].request(method, path, extensions=extensions, **more)

    def _steady_s(self) -> float:
        return asyncio.get_running_loop().time() * self._haste


def _failure(answer: httpx.Response) -> TerraFailed:
    kind = TerraFailed if is_passing(answer.status_code) else TerraRefused
    return kind(
        f"expected success from {_place(answer.request)}, found {answer.status_code} "
        f"{answer.reason_phrase}: {_said(answer)}",
        answer.status_code,
    )


def _place(request: httpx.Request) -> str:
    return f"{request.method} {request.url.copy_with(query=None)}"


def _said(answer: httpx.Response) -> str:
    """What Terra says of a refusal: its documents call that `detail` or `message`."""
    try:
        document: object = json.loads(answer.content)
    except PARSE_ERRORS:
        document = None
    if isinstance(document, Mapping):
        for name in ("detail", "message"):
            if isinstance(document.get(name), str):
                return str(document[name])[:_SHOWN]
    return " ".join(answer.text[:_SHOWN].split()) or "no reason given"
