"""HTTP transport: sends requests, repeats those that are safe, raises errors."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import httpx2

from headwater.gateway.client.answers import (
    ConnectionFailedError,
    OutcomeUnknownError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from headwater.gateway.client.requests import (
    Failure,
    HttpAnswer,
    Policy,
    Repeat,
    Request,
    delay_s,
    failure_of,
    may_repeat,
)
from headwater.processors.trace_context import current_context
from headwater.schemas.failures import ClientError, refused

#: Characters of an unexpected answer that are shown.
_SHOWN: Final = 120
#: A stream that is silent for longer is opened again; servers send a comment every few seconds.
_SILENCE_S: Final = 60.0
#: Errors of httpx2 of requests that reached no server.
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


async def send_once(http: httpx2.AsyncClient, request: Request) -> HttpAnswer:
    """Send a request; return the answer, also that of a failure.

    Raises:
        httpx2.RequestError: There was no answer.
    """
    kind = {"content-type": "application/json"} if request.body else {}
    context = current_context()
    trace = dict(context.headers()) if context else {}
    answer = await http.request(
        request.method,
        request.path,
        # Without parameters, those of the path are kept.
        params=dict(request.query) or None,
        content=request.body,
        headers={**trace, **kind, **request.headers},
        timeout=_timeout(http.timeout, request),
    )
    return _read(http, answer)


def _read(http: httpx2.AsyncClient, answer: httpx2.Response) -> HttpAnswer:
    return HttpAnswer(_base_url(http), answer.status_code, answer.headers, answer.content)


def _base_url(http: httpx2.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")


def _timeout(usual: httpx2.Timeout, request: Request) -> httpx2.Timeout:
    """Return the timeout of an attempt: longer if the server may wait before it answers."""
    if not request.waits_s or usual.read is None:
        return usual
    longer = usual.read + request.waits_s
    return httpx2.Timeout(connect=usual.connect, read=longer, write=usual.write, pool=usual.pool)


class Transport:
    """Sends requests to one server, with the client's headers."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        policy: Policy,
        sleep: Callable[[float], Awaitable[object]],
        draw: Callable[[], float],
    ) -> None:
        self._http = http
        self._policy = policy
        self._sleep = sleep
        self._draw = draw

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return _base_url(self._http)

    async def send(self, request: Request) -> HttpAnswer:
        """Send a request, repeating it as far as the policy allows.

        Raises:
            ClientError: No attempt succeeded.
        """
        repeats, repeated = 0, False
        while True:
            try:
                answer = await send_once(self._http, request)
            except httpx2.RequestError as error:
                never = isinstance(error, _NEVER_SENT)
                failure = Failure.NOT_TAKEN if never else Failure.UNKNOWN
                problem, retry_after_s = self._unanswered(request, error, repeated=repeated), None
            else:
                if answer.ok:
                    return answer
                failure = failure_of(answer.status, answer.problem.get("code", ""))
                problem = self._error_of(request, answer, repeated=repeated)
                retry_after_s = retry_after(answer)
            wait = self.pause(repeats, retry_after_s)
            if wait is None or not may_repeat(request.repeat, failure):
                raise problem
            repeats += 1
            repeated = repeated or failure is Failure.UNKNOWN
            await self._sleep(wait)

    async def exchange(self, request: Request) -> HttpAnswer:
        """Send a request once; return the answer, also that of a failure.

        Raises:
            ClientError: There was no answer.
        """
        try:
            return await send_once(self._http, request)
        except httpx2.RequestError as error:
            raise self._unanswered(request, error, repeated=False) from error

    def pause(self, repeats: int, retry_after_s: float | None = None) -> float | None:
        """Return the delay before the next attempt in seconds; None for no further attempt."""
        return delay_s(self._policy, repeats, self._draw(), retry_after_s)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._sleep(seconds)

    @asynccontextmanager
    async def stream(self, request: Request, last_id: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a stream of server-sent events, once.

        Raises:
            ClientError: It cannot be opened.
            httpx2.RequestError: It failed while it was read.
        """
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if last_id:
            headers["last-event-id"] = last_id
        timeout = httpx2.Timeout(self._http.timeout.connect, read=_SILENCE_S)
        opened = self._http.stream(
            request.method,
            request.path,
            params=dict(request.query),
            headers=headers,
            timeout=timeout,
        )
        async with opened as answer:
            if not answer.is_success:
                await answer.aread()
                raise self._error_of(request, _read(self._http, answer), repeated=False)
            kind = answer.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                await answer.aread()
                raise self._unexpected(_read(self._http, answer))
            yield answer.aiter_bytes()

    def _unanswered(
        self, request: Request, error: httpx2.RequestError, *, repeated: bool
    ) -> ClientError:
        why = str(error) or type(error).__name__
        if request.repeat is Repeat.READ or isinstance(error, _NEVER_SENT):
            # An earlier attempt of a write may have been taken all the same.
            if repeated and request.repeat is not Repeat.READ:
                return self._unknown(request, why)
            return unreached(self.url, why)
        return self._unknown(request, why)

    def _unknown(self, request: Request, why: str, **more: Any) -> ClientError:  # noqa: ANN401
        return OutcomeUnknownError(
            f"expected an answer to {request.method} {request.path}, found none ({why}); it may "
            "have taken effect: check the state before sending it again",
            **more,
        )

    def _error_of(self, request: Request, answer: HttpAnswer, *, repeated: bool) -> ClientError:
        """Return the error of an answer that is no success."""
        status, problem = answer.status, answer.problem
        code, detail = problem.get("code", ""), problem.get("detail", "")
        known: dict[str, Any] = {"code": code, "status": status}
        # The workflow service has no such code: the base URL is wrong.
        wrong_url = code == "not_found" and request.path.startswith("/")
        if not code or wrong_url:
            later = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            if not later and status != HTTPStatus.TOO_MANY_REQUESTS:
                return self._unexpected(answer)
            code = detail = f"status {status}"
        if status == HTTPStatus.FORBIDDEN:
            # The server knows the key: another header would not help.
            return UnauthorizedError(detail, **known)
        if status == HTTPStatus.UNAUTHORIZED:
            return UnauthorizedError(f"{detail}{self._key_hint(request)}", **known)
        failure = failure_of(status, code)
        if failure is Failure.NOT_TAKEN or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            if request.repeat is Repeat.READ or (failure is Failure.NOT_TAKEN and not repeated):
                return UnavailableError(f"{self.url} cannot answer: {detail}", **known)
            return self._unknown(request, detail, **known)
        known |= {"field": problem.get("field"), "position": answer.position}
        return refused(detail=detail, repeated=repeated, **known)

    def _key_hint(self, request: Request) -> str:
        """Return which setting has the key that a request lacks."""
        if "x-admin-key" in {**self._http.headers, **request.headers}:
            return "; set HEADWATER_ADMIN_KEY, or use --admin-key"
        return "; set HEADWATER_WORKFLOW_KEY, or give a key or a header of your own"

    def _unexpected(self, answer: HttpAnswer) -> ClientError:
        moved = answer.headers.get("location")
        text = " ".join(answer.body.decode(errors="replace")[:_SHOWN].split())
        actual = f"a redirection to {moved}" if moved else f"{answer.status} {text}".rstrip()
        return UnexpectedAnswerError(
            f"expected Headwater at {self.url}, found {actual}; is the base URL whole, as in "
            "https://host/api/workflows?",
            status=answer.status,
        )


def unreached(url: str, why: str) -> ClientError:
    """Return the error of a request that reached no server."""
    return ConnectionFailedError(
        f"expected Headwater at {url}, found no answer ({why}); start it with `headwater up`, or "
        "set its URL with --url or HEADWATER_URL"
    )


def retry_after(answer: HttpAnswer) -> float | None:
    """Return the seconds of a Retry-After header; None without one, or if it is a date."""
    header = answer.headers.get("retry-after", "").strip()
    return float(header) if header.isdecimal() else None
