"""What is at hand while one page is made: the request, the API, and who is signed in."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, urlencode

from litestar import Response

from headwater.gateway.console.api_client import ApiClient, ApiResponse
from headwater.gateway.console.rendering import page
from headwater.gateway.http.request_scope import AnyRequest, request_id_of

BASE: Final = "/console"
#: Where the bar at the top leads.
SECTIONS: Final[Mapping[str, str]] = {
    BASE: "Overview",
    f"{BASE}/deliveries": "Deliveries",
    f"{BASE}/dead-letters": "Dead letters",
    f"{BASE}/workflows": "Workflows",
    f"{BASE}/deployments": "Deployments",
    f"{BASE}/users": "Users",
    f"{BASE}/audit": "Audit",
}
#: What has been done, by the word that the way back to a page has for it. No page shows a text of
#: its address: else whoever makes a link could say anything in the console's name.
DONE: Final[Mapping[str, str]] = {
    "activate": "It is active: new runs begin on it.",
    "cancel": "It is being cancelled: its code cleans up first.",
    "drain": "Deliveries that wait are being looked at again.",
    "events": "The event was sent.",
    "pause": "It is paused.",
    "replay": "It is on its way once more.",
    "restart": "Its next run has begun.",
    "resume": "It goes on.",
    "retry": "Its next run goes on from where it failed.",
    "rollback": "The deployment before is active again.",
    "terminate": "It was terminated.",
}
#: Parameters of pages, which no route of the API has.
_OWN: Final = frozenset({"refresh", "done"})
#: Seconds between two looks: a page is up to six requests.
_REFRESH_S: Final = range(2, 3601)
_REFRESH_USUAL_S: Final = 5


class PageContext:
    """What views work with."""

    def __init__(self, request: AnyRequest, api: ApiClient, *, token: str, now_ms: int) -> None:
        self.request = request
        self.api = api
        self._token = token
        self.now = datetime.fromtimestamp(now_ms / 1000, UTC)
        query = request.scope["query_string"].decode("latin-1")
        self._query = parse_qsl(query, keep_blank_values=True)

    def asked(self, name: str) -> str:
        """A parameter of the query; empty if it is not there."""
        return next((value for key, value in self._query if key == name), "")

    def filters(self, but: Collection[str] = ()) -> list[tuple[str, str]]:
        """The query as the API is asked with it, which refuses what it does not know."""
        return [pair for pair in self._query if pair[0] not in {*_OWN, *but}]

    def named(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def link(self, **changes: str | None) -> str:
        """This page with other parameters."""
        kept = [pair for pair in self._query if pair[0] not in {"done", *changes} and pair[1]]
        query = urlencode([*kept, *((name, value) for name, value in changes.items() if value)])
        path = self.request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
        return f"{path}?{query}" if query else path

    def show(
        self, template: str, section: str, status: int = 200, **values: object
    ) -> Response[bytes]:
        """A page of what was answered; its status is that of `found`."""
        answers = [each for each in values.values() if isinstance(each, ApiResponse)]
        # What is away makes many requests fail, and is told once.
        failed = {each.problem["code"]: each.problem for each in answers if not each.ok}
        main = values.get("found")
        if isinstance(main, ApiResponse) and not main.ok:
            status = main.status
        found = page(
            template,
            status,
            asked=self.asked,
            curls=self.api.asked,
            done=DONE.get(self.asked("done")),
            failed=failed.values(),
            link=self.link,
            is_look=self.request.method == "GET",
            now=self.now,
            origin=f"{self.request.url.scheme}://{self.request.url.netloc}",
            refresh=self._refresh(),
            refresh_usual=_REFRESH_USUAL_S,
            request_id=request_id_of(self.request.scope),
            section=f"{BASE}/{section}" if section else BASE,
            sections=SECTIONS,
            token=self._token,
            **values,
        )
        if self._refresh():
            found.headers["refresh"] = str(self._refresh())
        return found

    def _refresh(self) -> int:
        """Seconds until the page is to be asked for again; 0 for never."""
        given = self.asked("refresh")
        found = int(given) if given.isdecimal() and len(given) < 5 else 0
        return found if found in _REFRESH_S else 0
