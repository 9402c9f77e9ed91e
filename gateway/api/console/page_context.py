"""Context of a page while it is rendered: the request, the API client and the session."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, urlencode

from litestar import Response

from headwater.gateway.api.console.api_client import ApiClient, ApiResponse
from headwater.gateway.api.console.rendering import page
from headwater.gateway.api.request_scope import AnyRequest, request_id_of

BASE: Final = "/console"
#: Entries of the navigation bar.
SECTIONS: Final[Mapping[str, str]] = {
    BASE: "Overview",
    f"{BASE}/deliveries": "Deliveries",
    f"{BASE}/dead-letters": "Dead letters",
    f"{BASE}/workflows": "Workflows",
    f"{BASE}/deployments": "Deployments",
    f"{BASE}/users": "Users",
    f"{BASE}/audit": "Audit",
}
#: Confirmations by the value of the parameter `done` in the address of a page. The text itself is
#: never taken from the address: otherwise a link could make the console display any text.
CONFIRMATIONS: Final[Mapping[str, str]] = {
    "activate": "The deployment is active: new runs begin on it.",
    "cancel": "The run is being canceled: its code cleans up first.",
    "drain": "Parked deliveries are being checked again.",
    "events": "The event was sent.",
    "pause": "The instance is paused.",
    "replay": "The delivery is being reprocessed.",
    "restart": "The next run has started.",
    "resume": "The instance has resumed.",
    "retry": "The next run continues from the failed step.",
    "rollback": "The previous deployment is active again.",
    "terminate": "The instance was terminated.",
}
#: Parameters of pages that are not passed on to the API.
_PAGE_PARAMETERS: Final = frozenset({"refresh", "done"})
#: Seconds between two refreshes that a page allows; a page makes up to seven requests.
_REFRESH_S: Final = range(2, 3601)
_REFRESH_DEFAULT_S: Final = 5


class PageContext:
    """Passed to views and actions to read a request and render a page."""

    def __init__(self, request: AnyRequest, api: ApiClient, *, token: str, now_ms: int) -> None:
        self.request = request
        self.api = api
        self._token = token
        self.now = datetime.fromtimestamp(now_ms / 1000, UTC)
        query = request.scope["query_string"].decode("latin-1")
        self._query = parse_qsl(query, keep_blank_values=True)

    def query_value(self, name: str) -> str:
        """Return a parameter of the query; "" if it is absent."""
        return next((value for key, value in self._query if key == name), "")

    def filters(self, without: Collection[str] = ()) -> list[tuple[str, str]]:
        """Return the query parameters for the API, which refuses unknown ones."""
        return [pair for pair in self._query if pair[0] not in {*_PAGE_PARAMETERS, *without}]

    def path_value(self, name: str) -> str:
        """Return a parameter of the path."""
        return str(self.request.path_params[name])

    def link(self, **changes: str | None) -> str:
        """Return the address of this page with changed query parameters."""
        kept = [pair for pair in self._query if pair[0] not in {"done", *changes} and pair[1]]
        query = urlencode([*kept, *((name, value) for name, value in changes.items() if value)])
        path = self.request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
        return f"{path}?{query}" if query else path

    def render(
        self, template: str, section: str, status: int = 200, **values: object
    ) -> Response[bytes]:
        """Render a page; a failed `response` among the values determines its status."""
        responses = [value for value in values.values() if isinstance(value, ApiResponse)]
        # One outage makes many requests fail; it is shown once.
        problems = {
            response.problem["code"]: response.problem for response in responses if not response.ok
        }
        main = values.get("response")
        if isinstance(main, ApiResponse) and not main.ok:
            status = main.status
        rendered = page(
            template,
            status,
            confirmation=CONFIRMATIONS.get(self.query_value("done")),
            curl_commands=self.api.curl_commands,
            is_get=self.request.method == "GET",
            link=self.link,
            now=self.now,
            origin=f"{self.request.url.scheme}://{self.request.url.netloc}",
            problems=problems.values(),
            query_value=self.query_value,
            refresh=self._refresh(),
            refresh_default=_REFRESH_DEFAULT_S,
            request_id=request_id_of(self.request.scope),
            section=f"{BASE}/{section}" if section else BASE,
            sections=SECTIONS,
            token=self._token,
            **values,
        )
        if self._refresh():
            rendered.headers["refresh"] = str(self._refresh())
        return rendered

    def _refresh(self) -> int:
        """Return the seconds until the browser reloads the page; 0 for never."""
        text = self.query_value("refresh")
        seconds = int(text) if text.isdecimal() and len(text) < 5 else 0
        return seconds if seconds in _REFRESH_S else 0
