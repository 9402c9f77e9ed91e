"""The console's one way to the house: its own HTTP API, asked in the same process.

So a page shows nothing that the API does not, what it changes is in the audit log like any other
change, and it can name the requests that it was made from.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlencode

import httpx
import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from headwater.gateway.http.request_scope import AnyRequest, request_id_of
from headwater.gateway.http.segments import split_as_sent
from headwater.gateway.loopback import DEVELOPMENT_SECRETS

_JSON: Final = msgspec.json.Decoder(float_hook=Decimal)
#: Headers of the caller that the API is told of: they are in the audit log.
_PASSED_ON: Final = frozenset({b"user-agent", b"x-forwarded-for"})


class ApiKey(NamedTuple):
    """A key of the API: its header, what stands before it there, its setting, and itself."""

    header: str
    before: str
    setting: str
    key: str

    @property
    def shown(self) -> str:
        """Its header for a shell: itself if everybody knows it, else the name of its variable."""
        is_known = self.key == DEVELOPMENT_SECRETS[self.setting]
        shown = self.key if is_known else f"$HEADWATER_{self.setting.upper()}"
        return f'"{self.header}: {self.before}{shown}"'


class ConsoleKeys(NamedTuple):
    """The keys that the console asks with."""

    admin: str
    workflow: str

    def of(self, path: str) -> ApiKey | None:
        """The key that a path asks for."""
        if path.startswith("/health/"):
            return None
        if path.startswith("/api/"):
            return ApiKey("authorization", "Bearer ", "workflow_key", self.workflow)
        return ApiKey("x-admin-key", "", "admin_key", self.admin)


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """What the API has answered."""

    status: int
    data: Any
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether it is no failure."""
        return self.status < httpx.codes.BAD_REQUEST

    @property
    def problem(self) -> Mapping[str, Any]:
        """The problem document of a failure; hooks may answer a body of their own in its place."""
        if isinstance(self.data, dict) and {"title", "detail", "code"} <= self.data.keys():
            return self.data
        detail = self.content.decode(errors="replace")
        return {
            "title": "This was refused",
            "detail": detail,
            "code": "none",
            "status": self.status,
        }


class ApiClient:
    """Asks on behalf of one request, and remembers what."""

    def __init__(self, request: AnyRequest, keys: ConsoleKeys) -> None:
        self._request = request
        self._keys = keys
        #: As lines for a shell, in the order in which they were asked.
        self.asked: list[str] = []

    async def get(self, path: str, asked: Iterable[tuple[str, object]] = ()) -> ApiResponse:
        """Asks for something; empty parameters are left out."""
        query = urlencode([(name, value) for name, value in asked if value not in (None, "")])
        return await self._ask("GET", f"{path}?{query}" if query else path)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, **headers: str
    ) -> ApiResponse:
        """Has something done; names of headers with _ for -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._ask("POST", path, msgspec.json.encode(body or {}), sent)

    async def _ask(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> ApiResponse:
        key = self._keys.of(url)
        self.asked.append(self._line(url, key, body))
        scope = self._request.scope
        sent = [(name, value) for name, value in scope["headers"] if name in _PASSED_ON]
        own = {"x-request-id": request_id_of(scope), **(headers or {})}
        if key is not None:
            own[key.header] = key.before + key.key
        if body:
            own["content-type"] = "application/json"
        sent += [(name.encode(), value.encode()) for name, value in own.items()]
        app = _as_served(self._request.app)
        transport = httpx.ASGITransport(cast("Any", app), client=scope["client"] or ("", 0))
        request = httpx.Request(method, f"http://localhost{url}", content=body, headers=sent)
        found = await transport.handle_async_request(request)
        await found.aread()
        return ApiResponse(found.status_code, _read(found), found.content)

    def _line(self, url: str, key: ApiKey | None, body: bytes) -> str:
        """The same request for a shell."""
        address = f"{self._request.url.scheme}://{self._request.url.netloc}{url}"
        words = ["curl", *([] if key is None else ["-H", key.shown])]
        if body:
            words += ["--json", shlex.quote(body.decode())]
        return " ".join([*words, shlex.quote(address)])


def _as_served(app: ASGIApp) -> ASGIApp:
    """The app as the server calls it: ids in paths may hold slashes."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await app(split_as_sent(scope), receive, send)

    return served


def _read(answer: httpx.Response) -> Any:  # noqa: ANN401 (JSON)
    """The JSON of an answer, its numbers as they were written."""
    if "json" not in answer.headers.get("content-type", ""):
        return None
    try:
        return _JSON.decode(answer.content)
    except msgspec.DecodeError:  # Half characters are JSON, and not msgspec's.
        return json.loads(answer.content)
