"""The client of Terra's API, with fair scheduling, timeouts and retries.

A `Retry-After` of Terra blocks only the user or connection of the request.

Repeating a request has no effect in Terra except further deliveries, which are idempotent. So a
request may be sent again if its response was lost.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import date
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar

import httpx2
import msgspec

from headwater.gateway.builtin.terra.answers import (
    Accepted,
    ConnectionList,
    LabAccepted,
    Page,
    SharedConnectionList,
    Subscriptions,
    TerraFailed,
    TerraRefused,
    WidgetSession,
    parse_connection_list,
)
from headwater.gateway.builtin.terra.scheduler import (
    ACCOUNT,
    CONCURRENT,
    FairQueue,
    Lane,
    Party,
    QueueFull,
    RequestScheduler,
    backoff_s,
    is_retryable,
    retry_after_s,
)
from headwater.gateway.settings.terra import TerraAccess
from headwater.processors.trace_context import current_context
from headwater.schemas.errors import PARSE_ERRORS

A = TypeVar("A")

#: Types of data that are requested, in this order.
DATA_TYPES: Final = ("activity", "sleep", "daily", "body")

#: Terra acknowledges a request for data immediately; a lab report must be uploaded first.
_TIMEOUTS: Final = {
    Lane.DATA: httpx2.Timeout(15.0, connect=5.0),
    Lane.LABS: httpx2.Timeout(60.0, connect=5.0),
}
#: Seconds from the end of the request to the end of the response; the timeouts above apply to every
#: piece of it.
_WHOLE_S: Final = 60.0
#: Attempts of a request; after these, the caller must retry later.
_ATTEMPTS: Final = 4
#: The longest Retry-After that the client waits for; with a longer one, the caller must retry.
_PATIENCE_S: Final = 60.0
_PER_PAGE: Final = 500
#: Pages of 500 users: if there are more, the server's paging does not end.
_PAGES_MAX: Final = 10_000
#: Characters of an unexpected response in error messages.
_SHOWN: Final = 200


class Terra:
    """Terra's API.

    Use it as `async with Terra(...) as terra`, within one event loop.

    Args:
        access: Address and credentials.
        draw: Returns random numbers in [0, 1).
        wall_s: Returns Unix seconds.
        sleep: Waits before a request is repeated.
        attempts: Attempts of a request.
        speedup: How many times faster than the event loop's clock the scheduler's clock runs, for
            tests.

    Raises:
        TerraNotConfigured: From every request, if credentials are missing.
        TerraFailed: From every request, if Terra did not return a usable response.
        TerraRefused: From every request, if Terra refused it.
    """

    def __init__(
        self,
        access: TerraAccess,
        *,
        draw: Callable[[], float],
        wall_s: Callable[[], float],
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        attempts: int = _ATTEMPTS,
        speedup: float = 1.0,
    ) -> None:
        self._access = access
        self._draw = draw
        self._wall_s = wall_s
        self._sleep = sleep
        self._attempts = attempts
        self._speedup = speedup
        self._queue = FairQueue(access.rate)
        self._scheduler = RequestScheduler(self._queue, self._steady_s, speedup)
        # One connection per concurrent request, so that none waits within httpx2.
        self._http = {
            lane: httpx2.AsyncClient(
                base_url=access.api.rstrip("/") + "/",
                headers={"dev-id": access.dev_id, "x-api-key": access.api_key},
                timeout=_TIMEOUTS[lane],
                limits=httpx2.Limits(max_connections=connections),
            )
            for lane, connections in CONCURRENT.items()
        }
        self._connections = SharedConnectionList(self._list_subscriptions, wall_s, self._steady_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._connections.close()
        for client in self._http.values():
            await client.aclose()

    def require(self) -> None:
        """Check that the credentials are set.

        Raises:
            TerraNotConfigured: Some are missing.
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
        """Start a session in which a user connects a wearable."""
        options = {
            "reference_id": reference_id,
            "providers": ",".join(providers) or None,
            "auth_success_redirect_url": success_url,
            "auth_failure_redirect_url": failure_url,
        }
        body = {name: value for name, value in options.items() if value is not None}
        party = Party(Lane.DATA, "user", reference_id)
        return await self._ask(party, "POST", self._access.widget_path, WidgetSession, json=body)

    async def subscriptions(self) -> ConnectionList:
        """Return Terra's connections of all users, at most a minute old.

        Terra cannot list those of one user, so all callers share one read of the pages.
        """
        self._access.require()
        return await self._connections.get()

    async def _list_subscriptions(self, listed_s: float) -> ConnectionList:
        entries: list[msgspec.Raw] = []
        number: int | None = 0
        for _ in range(_PAGES_MAX):
            query = {"page": number, "per_page": _PER_PAGE}
            answer = await self._ask(ACCOUNT, "GET", "/subscriptions", Subscriptions, params=query)
            page = answer.data or Page(answer.users or ())
            entries += page.results
            number = page.next
            if number is None:
                return parse_connection_list(entries, listed_s)
        raise TerraFailed(f"the pages of /subscriptions did not end after {_PAGES_MAX} pages")

    async def request_data(self, kind: str, user_id: str, start: date, end: date) -> str:
        """Request the data of a connection, which arrives as deliveries.

        Args:
            kind: One of DATA_TYPES.
            user_id: Terra's id of the connection.
            start: First day.
            end: Last day, inclusive.

        Returns:
            Terra's reference of the request.
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
                f"Terra answered a request for {kind} with an error: {accepted.message}"
            )
        return accepted.reference

    async def deauthenticate(self, user_id: str) -> None:
        """End a connection: Terra forgets it, and sends no more deliveries of it.

        Args:
            user_id: Terra's id of the connection. One that Terra does not know is ended already.
        """
        party = Party(Lane.DATA, "connection", user_id)
        query = {"user_id": user_id}
        try:
            await self._send(party, "DELETE", "/auth/deauthenticateUser", params=query)
        except TerraRefused as error:
            if not error.is_unknown:
                raise

    async def upload_lab_report(
        self, reference_id: str, *, name: str, content_type: str, content: bytes
    ) -> tuple[str, str]:
        """Upload a lab report.

        Returns:
            Terra's id of the upload, and its whole response as text.
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
        **more: Any,  # noqa: ANN401 (what httpx2 takes)
    ) -> A:
        return self._read(await self._send(party, method, path, **more), kind)

    def _read(self, answer: httpx2.Response, kind: type[A]) -> A:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except PARSE_ERRORS as error:
            raise TerraFailed(
                f"expected {kind.__name__} from {_endpoint(answer.request)}, found "
                f"{answer.text[:_SHOWN]!r}: {error}",
                answer.status_code,
            ) from error

    async def _send(
        self,
        party: Party,
        method: str,
        path: str,
        **more: Any,  # noqa: ANN401 (what httpx2 takes)
    ) -> httpx2.Response:
        """Send a request, with retries, until it succeeds."""
        self._access.require()
        repeats = 0
        while True:
            retry_s: float | None = None
            self._refuse_blocked(party, method, path)
            try:
                async with self._scheduler.turn(party):
                    answer = await self._request(party.lane, method, path.lstrip("/"), **more)
            except QueueFull:
                raise TerraFailed(
                    f"too many requests to Terra are queued, for {party.kind} {party.name} or in "
                    "total; try again later"
                ) from None
            except (httpx2.RequestError, TimeoutError) as error:
                failed = TerraFailed(
                    f"no response to {method} {self._url(path)}: "
                    f"{str(error) or type(error).__name__}"
                )
            else:
                if answer.is_success:
                    return answer
                failed = _failure(answer)
                retry_s = retry_after_s(answer.headers.get("retry-after", ""), self._wall_s())
            if retry_s is not None:
                self._block(party, retry_s)
            repeats += 1
            if isinstance(failed, TerraRefused) or repeats >= self._attempts:
                raise failed
            if (retry_s or 0.0) > _PATIENCE_S:
                raise failed
            await self._sleep(backoff_s(repeats - 1, self._draw()))

    def _block(self, party: Party, retry_s: float) -> None:
        if party == ACCOUNT:
            # This blocks all users.
            retry_s = min(retry_s, _PATIENCE_S)
        now_s = self._steady_s()
        self._queue.block(party, now_s + retry_s, now_s)

    def _refuse_blocked(self, party: Party, method: str, path: str) -> None:
        """Refuse a request that would have to wait for too long.

        Raises:
            TerraFailed: A Retry-After of Terra is in effect.
        """
        blocked_s = self._queue.blocked_s(party, self._steady_s())
        if blocked_s > _PATIENCE_S:
            raise TerraFailed(
                f"{method} {self._url(path)} was not sent: Terra has asked to wait for "
                f"another {blocked_s:.0f} s with requests of this {party.kind}",
                HTTPStatus.TOO_MANY_REQUESTS,
            )

    async def _request(
        self,
        lane: Lane,
        method: str,
        path: str,
        **more: Any,  # noqa: ANN401 (what httpx2 takes)
    ) -> httpx2.Response:
        """Make a request. Sending it may take any time as long as it makes progress.

        Raises:
            httpx2.RequestError: There was no response.
            TimeoutError: The response was not complete in time.
        """
        async with asyncio.timeout(None) as whole:
            loop = asyncio.get_running_loop()

            async def trace(event: str, _: object) -> None:
                if event.endswith("receive_response_headers.started"):
                    whole.reschedule(loop.time() + _WHOLE_S)

            context = current_context()
            return await self._http[lane].request(
                method,
                path,
                headers=context.headers() if context else None,
                extensions={"trace": trace},
                **more,
            )

    def _url(self, path: str) -> str:
        """Return the URL of a path of the API; the widget session may be on another host."""
        return self._access.api + path if path.startswith("/") else path

    def _steady_s(self) -> float:
        return asyncio.get_running_loop().time() * self._speedup


def _failure(answer: httpx2.Response) -> TerraFailed:
    kind = TerraFailed if is_retryable(answer.status_code) else TerraRefused
    return kind(
        f"{_endpoint(answer.request)} was answered {answer.status_code} "
        f"{answer.reason_phrase}: {_reason(answer)}",
        answer.status_code,
    )


def _endpoint(request: httpx2.Request) -> str:
    return f"{request.method} {request.url.copy_with(query=None)}"


def _reason(answer: httpx2.Response) -> str:
    """Return the reason of an error response, in `detail` or `message` of its JSON."""
    try:
        document: object = json.loads(answer.content)
    except PARSE_ERRORS:
        document = None
    if isinstance(document, Mapping):
        for name in ("detail", "message"):
            if isinstance(document.get(name), str):
                return str(document[name])[:_SHOWN]
    return " ".join(answer.text[:_SHOWN].split()) or "no reason given"
