"""The console's client of the gateway's own HTTP API, called in the same process.

The console has no other data source. So pages show only what the API returns, changes are in the
audit log like those of any client, and a page can list the requests that it was rendered from.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlencode

import httpx2
import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from headwater.gateway.api.authentication import Caller, call_in_process
from headwater.gateway.api.request_scope import AnyRequest, request_id_of, split_as_sent
from headwater.gateway.client.requests import HttpAnswer, Repeat, Request
from headwater.gateway.client.transport import send_once
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS

_JSON: Final = msgspec.json.Decoder(float_hook=Decimal)
#: Headers of the browser that are forwarded to the API, for its audit log.
_FORWARDED_HEADERS: Final = frozenset({b"user-agent", b"x-forwarded-for"})
#: In place of httpx2's own.
_NO_AGENT: Final = (b"user-agent", b"")


class ConsoleKeys(NamedTuple):
    """Keys of the settings, for the shell commands that pages show."""

    admin: str
    workflow: str

    def shell_header(self, path: str, caller: Caller) -> str | None:
        """Return the header with the key of a path; None for a path without a key.

        A key is shown as the name of a variable, unless it is a public one of development.
        """
        if path.startswith("/health/"):
            return None
        if caller.keys_scope:  # Not a key of the settings.
            return '"authorization: Bearer $HEADWATER_KEY"'
        if path.startswith("/api/"):
            return f'"authorization: Bearer {_shown("workflow_key", self.workflow)}"'
        return f'"x-admin-key: {_shown("admin_key", self.admin)}"'


def _shown(setting: str, key: str) -> str:
    return key if key == DEVELOPMENT_SECRETS[setting] else f"$HEADWATER_{setting.upper()}"


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """Response of the API, with numbers as they were written."""

    answer: HttpAnswer
    data: Any

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.answer.ok

    @property
    def problem(self) -> Mapping[str, Any]:
        """The problem document of a failure, or a substitute if a hook returned its own body."""
        if (problem := self.answer.problem) and {"title", "detail"} <= problem.keys():
            return problem
        detail = self.answer.body.decode(errors="replace")
        status = self.answer.status
        return {"title": "Request refused", "detail": detail, "code": "none", "status": status}


class ApiClient:
    """Calls the API on behalf of one request of a browser, and records the calls.

    The calls have the rights of the session, and no key.
    """

    def __init__(self, request: AnyRequest, caller: Caller, keys: ConsoleKeys) -> None:
        self._request = request
        self._caller = caller
        self._keys = keys
        #: The calls as shell commands, in their order.
        self.curl_commands: list[str] = []

    async def get(self, path: str, query: Iterable[tuple[str, object]] = ()) -> ApiResponse:
        """Send a GET request, without empty query parameters."""
        text = urlencode([(name, value) for name, value in query if value not in (None, "")])
        return await self._send("GET", f"{path}?{text}" if text else path)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, **headers: str
    ) -> ApiResponse:
        """Send a POST request; write - as _ in the names of headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._send("POST", path, msgspec.json.encode(body or {}), named)

    async def delete(self, path: str) -> ApiResponse:
        """Send a DELETE request."""
        return await self._send("DELETE", path)

    async def _send(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> ApiResponse:
        self.curl_commands.append(self._curl_command(method, url, body))
        request = Request(
            method=method, path=url, repeat=Repeat.UNSAFE, body=body, headers=headers or {}
        )
        async with self._http() as http:
            answer = await send_once(http, request)
        return ApiResponse(answer, _parse(answer))

    def _http(self) -> httpx2.AsyncClient:
        """Return an HTTP client that calls the app in this process, for the browser."""
        scope = self._request.scope
        # Pairs: a proxy may send a header in several lines.
        forwarded = [pair for pair in scope["headers"] if pair[0] in _FORWARDED_HEADERS]
        app = cast("Any", _called_by(self._caller, self._request.app))
        return httpx2.AsyncClient(
            base_url="http://localhost",
            headers=[
                *([] if any(name == b"user-agent" for name, _ in forwarded) else [_NO_AGENT]),
                *forwarded,
                (b"x-request-id", request_id_of(scope).encode()),
            ],
            transport=httpx2.ASGITransport(app, client=scope["client"] or ("", 0)),
        )

    def _curl_command(self, method: str, url: str, body: bytes) -> str:
        """Return the request as a shell command."""
        address = f"{self._request.url.scheme}://{self._request.url.netloc}{url}"
        header = self._keys.shell_header(url, self._caller)
        words = ["curl", *([] if header is None else ["-H", header])]
        if method == "DELETE":
            words += ["-X", method]
        if body:
            words += ["--json", shlex.quote(body.decode())]
        return " ".join([*words, shlex.quote(address)])


def _called_by(caller: Caller, app: ASGIApp) -> ASGIApp:
    """Wrap the app for requests of a caller; like the server does, ids may contain slashes."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope = split_as_sent(scope)
        call_in_process(scope, caller)
        await app(scope, receive, send)

    return served


def _parse(answer: HttpAnswer) -> Any:  # noqa: ANN401 (JSON)
    """Decode the JSON of a response, with numbers as they were written."""
    if "json" not in answer.headers.get("content-type", ""):
        return None
    try:
        return _JSON.decode(answer.body)
    except msgspec.DecodeError:  # Lone surrogates are valid JSON, but msgspec refuses them.
        return json.loads(answer.body)
