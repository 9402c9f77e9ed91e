"""Requests over HTTP: sent, repeated where that is safe, and answered with a value or an error."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import httpx

from headwater.gateway.client.errors import (
    ConnectionFailedError,
    OutcomeUnknownError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from headwater.gateway.client.requests import Answered, Request
from headwater.gateway.client.retries import (
    Failure,
    Policy,
    Repeat,
    delay_s,
    failure_of,
    may_repeat,
)
from headwater.schemas.failures import ClientError, refused

#: How much of an answer that nobody expected is shown.
_SHOWN: Final = 120
#: A stream that is silent for longer is opened again; servers send a comment every few seconds.
_SILENCE_S: Final = 60.0
#: Nobody has taken a request of which httpx says one of these.
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Transport:
    """Sends requests to one server, with the headers of its user."""

    def __init__(
        self,
        http: httpx.AsyncClient,
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
        """Where the server is."""
        return str(self._http.base_url).rstrip("/")

    async def send(self, request: Request) -> Answered:
        """Sends a request until it is answered, as often as the policy allows.

        Errors: every ClientError.
        """
        repeats, repeated = 0, False
        while True:
            try:
                kind = {"content-type": "application/json"} if request.body else {}
                answer = await self._http.request(
                    request.method,
                    request.path,
                    params=dict(request.query),
                    content=request.body,
                    headers={**kind, **request.headers},
                    timeout=self._patience(request),
                )
            except httpx.RequestError as error:
                never = isinstance(error, _NEVER_SENT)
                failure = Failure.NOT_TAKEN if never else Failure.UNKNOWN
                found, wanted = self._unanswered(request, error, repeated=repeated), None
            else:
                if answer.is_success:
                    return Answered(self.url, answer.content, _position(answer), answer.status_code)
                failure = failure_of(answer.status_code, _problem(answer).get("code", ""))
                found = self._answered_badly(request, answer, repeated=repeated)
                wanted = _retry_after(answer)
            wait = self.pause(repeats, wanted)
            if wait is None or not may_repeat(request.repeat, failure):
                raise found
            repeats += 1
            repeated = repeated or failure is Failure.UNKNOWN
            await self._sleep(wait)

    def _patience(self, request: Request) -> httpx.Timeout:
        """How long an attempt may take: longer if the server was asked to wait."""
        usual = self._http.timeout
        if not request.waits_s or usual.read is None:
            return usual
        longer = usual.read + request.waits_s
        return httpx.Timeout(connect=usual.connect, read=longer, write=usual.write, pool=usual.pool)

    def pause(self, repeats: int, wanted: float | None = None) -> float | None:
        """Seconds until the next attempt; None when there is to be none."""
        return delay_s(self._policy, repeats, self._draw(), wanted)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await self._sleep(seconds)

    @asynccontextmanager
    async def stream(self, request: Request, last_id: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens a stream of server-sent events, once.

        Errors: every ClientError, when it is opened; httpx.RequestError while it is read.
        """
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if last_id:
            headers["last-event-id"] = last_id
        timeout = httpx.Timeout(self._http.timeout.connect, read=_SILENCE_S)
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
                raise self._answered_badly(request, answer, repeated=False)
            kind = answer.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                await answer.aread()
                raise self._strange(answer)
            yield answer.aiter_bytes()

    def _unanswered(
        self, request: Request, error: httpx.RequestError, *, repeated: bool
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
            "have been taken: look how things stand before it is sent again",
            **more,
        )

    def _answered_badly(
        self, request: Request, answer: httpx.Response, *, repeated: bool
    ) -> ClientError:
        """The error that an answer is."""
        status, problem = answer.status_code, _problem(answer)
        code, detail = problem.get("code", ""), problem.get("detail", "")
        known: dict[str, Any] = {"code": code, "status": status}
        if not code or code == "not_found":
            later = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            if not later and status != HTTPStatus.TOO_MANY_REQUESTS:
                return self._strange(answer)
            code = detail = f"status {status}"
        if status == HTTPStatus.FORBIDDEN:
            # The key was taken: another one is no way out.
            return UnauthorizedError(detail, **known)
        if status == HTTPStatus.UNAUTHORIZED:
            return UnauthorizedError(
                f"{detail}; set HEADWATER_WORKFLOW_KEY, or give a key or a header of your own",
                **known,
            )
        failure = failure_of(status, code)
        if failure is Failure.NOT_TAKEN or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            if request.repeat is Repeat.READ or (failure is Failure.NOT_TAKEN and not repeated):
                return UnavailableError(f"{self.url} cannot answer: {detail}", **known)
            return self._unknown(request, detail, **known)
        known |= {"field": problem.get("field"), "position": _position(answer)}
        return refused(detail=detail, repeated=repeated, **known)

    def _strange(self, answer: httpx.Response) -> ClientError:
        moved = answer.headers.get("location")
        text = " ".join(answer.text[:_SHOWN].split())
        found = f"a redirection to {moved}" if moved else f"{answer.status_code} {text}".rstrip()
        return UnexpectedAnswerError(
            f"expected the workflows API at {self.url}, found {found}; is the base URL whole, as "
            "in https://host/api/workflows?",
            status=answer.status_code,
        )


def unreached(url: str, why: str) -> ClientError:
    """The error when nobody answers."""
    return ConnectionFailedError(
        f"expected the workflows API at {url}, found no answer ({why}); start it with "
        "`headwater up`, or say where it is: --url, HEADWATER_URL"
    )


def _problem(answer: httpx.Response) -> dict[str, Any]:
    """The problem document of an answer; empty when it is none."""
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("code"), str) else {}


def _position(answer: httpx.Response) -> str:
    """Where in the log lies what an answer tells of."""
    return str(answer.headers.get("headwater-position", ""))


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds after which a server wants to be asked again, if it says so in seconds."""
    given = answer.headers.get("retry-after", "").strip()
    return float(given) if given.isdecimal() else None
