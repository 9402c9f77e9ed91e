"""The client of Terra's API: paced, with time limits, and tried again where that may help.

What is asked of Terra twice changes nothing there but the number of deliveries, and those are told
apart from copies by what they change. So everything may be sent again whose answer is lost.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import date
from typing import Any, Final, Self, TypeVar

import httpx
import msgspec

from headwater.gateway.terra.access import TerraAccess
from headwater.gateway.terra.answers import (
    Accepted,
    LabAccepted,
    Page,
    Subscriptions,
    TerraUser,
    WidgetSession,
)
from headwater.gateway.terra.errors import TerraFailed, TerraRefused
from headwater.gateway.terra.pace import Pace, backoff_s, is_passing, retry_after_s
from headwater.schemas.errors import PARSE_ERRORS

A = TypeVar("A")

#: The types that are asked for, in this order.
DATA_TYPES: Final = ("activity", "sleep", "daily", "body")

#: A request for data is only noted by Terra; a lab report has to be sent first.
_TIMEOUT: Final = httpx.Timeout(15.0, connect=5.0)
_UPLOAD_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0)
#: Seconds until an answer is there whole, from when all was sent: those above are for each piece.
_WHOLE_S: Final = 60.0
#: Attempts at a request; whoever needs more, tries again later.
_ATTEMPTS: Final = 4
#: A server that asks for more patience than this is asked again by whoever needs it, later.
_PATIENCE_S: Final = 60.0
_CONNECTIONS: Final = 16
_PER_PAGE: Final = 500
#: 500 users each: more than that, and the server pages in circles.
_PAGES_MAX: Final = 10_000
#: How much of an answer that nobody expected is shown.
_SHOWN: Final = 200


class Terra:
    """Terra's API.

    Shape:  `async with Terra(...) as terra`. The clock is steady, in seconds; `wall_s` is Unix
            time; `draw` gives numbers in [0, 1).
    Errors: TerraNotConfigured, TerraFailed and TerraRefused, from every request.
    """

    def __init__(
        self,
        access: TerraAccess,
        *,
        draw: Callable[[], float],
        wall_s: Callable[[], float],
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        attempts: int = _ATTEMPTS,
    ) -> None:
        self._access = access
        self._draw = draw
        self._wall_s = wall_s
        self._sleep = sleep
        self._attempts = attempts
        self._pace = Pace(access.rate)
        self._http = httpx.AsyncClient(
            base_url=access.api.rstrip("/") + "/",
            headers={"dev-id": access.dev_id, "x-api-key": access.api_key},
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=_CONNECTIONS),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections."""
        await self._http.aclose()

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
        return await self._ask("POST", self._access.widget_path, WidgetSession, json=body)

    async def subscriptions(self, reference_id: str) -> tuple[TerraUser, ...]:
        """The connections that Terra has for one of our users.

        Terra lists those of all users, so every page is read.
        """
        found: list[TerraUser] = []
        number: int | None = 0
        for _ in range(_PAGES_MAX):
            query = {"page": number, "per_page": _PER_PAGE}
            answer = await self._ask("GET", "/subscriptions", Subscriptions, params=query)
            page = answer.data or Page(answer.users or ())
            found += (user for user in page.results if user.reference_id == reference_id)
            number = page.next
            if number is None:
                return tuple(found)
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
        accepted = await self._ask("GET", f"/{kind}", Accepted, params=query)
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
            "POST",
            "/lab-reports",
            params={"reference_id": reference_id},
            data={"reference_id": reference_id},
            files={self._access.lab_field: (name, content, content_type)},
            timeout=_UPLOAD_TIMEOUT,
        )
        return self._read(answer, LabAccepted).upload_id, answer.text

    async def _ask(self, method: str, path: str, kind: type[A], **more: Any) -> A:  # noqa: ANN401
        return self._read(await self._send(method, path, **more), kind)

    def _read(self, answer: httpx.Response, kind: type[A]) -> A:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except PARSE_ERRORS as error:
            raise TerraFailed(
                f"expected {kind.__name__} from {_place(answer.request)}, found "
                f"{answer.text[:_SHOWN]!r}: {error}",
                answer.status_code,
            ) from error

    async def _send(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401
        """Sends a request until it is answered with success, as often as that may help."""
        self._access.require()
        repeats = 0
        while True:
            asked: float | None = None
            await self._sleep(self._pace.turn_s(_steady_s()))
            try:
                answer = await self._answered(method, path.lstrip("/"), **more)
            except (httpx.RequestError, TimeoutError) as error:
                failed = TerraFailed(
                    f"expected an answer from {method} {self._access.api}{path}, found none: "
                    f"{str(error) or type(error).__name__}"
                )
            else:
                if answer.is_success:
                    return answer
                failed = _failure(answer)
                asked = retry_after_s(answer.headers.get("retry-after", ""), self._wall_s())
            if asked is not None:
                # For every request, this one among them.
                self._pace.hold(_steady_s() + min(asked, _PATIENCE_S))
            repeats += 1
            hopeless = isinstance(failed, TerraRefused) or (asked or 0.0) > _PATIENCE_S
            if hopeless or repeats >= self._attempts:
                raise failed
            await self._sleep(backoff_s(repeats - 1, self._draw()))

    async def _answered(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401
        """The answer to a request; a slow line may send that for as long as it sends any of it.

        Errors: httpx.RequestError; TimeoutError.
        """
        async with asyncio.timeout(None) as whole:

            async def trace(event: str, _: object) -> None:
                if event.endswith("receive_response_headers.started"):
                    whole.reschedule(_steady_s() + _WHOLE_S)

            return await self._http.request(method, path, extensions={"trace": trace}, **more)


def _steady_s() -> float:
    return asyncio.get_running_loop().time()


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
