"""Context of a page: the request, the API for it, the navigation, and how the page is rendered."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from litestar import Response

from headwater.gateway.api.console.api_client import ApiClient, ApiResponse
from headwater.gateway.api.console.rendering import BASE, moment, page
from headwater.gateway.api.request_scope import AnyRequest, request_id_of
from headwater.processors.runs.lifecycle import ACTIONS


class Section(NamedTuple):
    """An entry of the navigation bar: its path below the console, its name, and its key after g."""

    path: str
    name: str
    key: str

    @property
    def address(self) -> str:
        """Path of its page."""
        return f"{BASE}/{self.path}" if self.path else BASE


#: Entries of the navigation bar. A new page of its own has an entry here, and a view in `routes`.
SECTIONS: Final = (
    Section("", "Overview", "o"),
    Section("failures", "Failures", "f"),
    Section("deliveries", "Deliveries", "d"),
    Section("dead-letters", "Dead letters", "l"),
    Section("workflows", "Workflows", "w"),
    Section("instances", "Instances", "i"),
    Section("deployments", "Deployments", "y"),
    Section("users", "Users", "u"),
    Section("quality", "Quality", "q"),
    Section("system", "System", "s"),
    Section("endpoints", "Endpoints", "e"),
    Section("audit", "Audit", "a"),
    Section("auditor", "Auditor", "r"),
    Section("keys", "Keys", "k"),
)
#: Confirmations by the value of the parameter `done` in the address of a page. The text itself is
#: never taken from the address: otherwise a link could make the console display any text.
CONFIRMATIONS: Final[Mapping[str, str]] = {
    **{action.name: action.done for action in ACTIONS},
    "import": "The import has started; its data arrives as deliveries.",
    "reconcile": "The connections are being compared with Terra's list.",
    "disconnect": "The connections are being ended at Terra, and then here.",
    "activate": "The deployment is active: new runs begin on it.",
    "share": "The share of the new runs has changed.",
    "remove": "The deployment is removed.",
    "drain": "Parked deliveries are being checked again.",
    "events": "The event was sent.",
    "revoke": "The key is revoked: all gateways refuse it within seconds.",
    "replay": "The delivery is being reprocessed.",
    "rollback": "The previous deployment is active again.",
    "start": "The instance was created.",
    "rebuild": "The work has begun.",
    "switch": "The rows are being switched.",
    "wipe": "The wipe is ordered; its progress is in the answer of its request.",
    "endpoint_test": "A test is being sent.",
    "endpoint_disable": "Nothing is sent to the endpoint.",
    "endpoint_enable": "What happens from now on is sent to the endpoint.",
    "endpoint_delete": "The endpoint is deleted.",
    "endpoint_replay": "The notification is being sent again.",
    "seen": "What failed until now counts as seen.",
}
#: Parameters of pages that are not passed on to the API.
_PAGE_PARAMETERS: Final = frozenset({"refresh", "done"})
#: Seconds between two refreshes that a page allows; a page makes up to nine requests.
_REFRESH_S: Final = range(2, 3601)
_REFRESH_DEFAULT_S: Final = 5
#: Cookie with the time until which failures were seen.
SEEN_COOKIE: Final = "headwater_seen"
#: Times before now that a filter by time offers.
_PRESETS: Final[Mapping[str, timedelta]] = {
    "1 h": timedelta(hours=1),
    "24 h": timedelta(days=1),
    "7 d": timedelta(days=7),
}


#: Fields of forms that a person does not see: their problems are shown above the page.
_HIDDEN_FIELDS: Final = frozenset({"after", "cursor", "event_id", "key", "replaces", "token"})


class FormRefused(Exception):
    """A form was refused, by the API or before; its page is shown again with what was entered."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(problem["detail"])
        self.problem = problem


class Refused(NamedTuple):
    """A form that was refused: its address, what was entered, and the problem."""

    action: str
    fields: Mapping[str, str]
    problem: Mapping[str, Any]

    @property
    def field(self) -> str:
        """The field that the problem is about, if it is a visible one of the form."""
        named = str(self.problem.get("field") or "").partition(".")[0].partition("[")[0]
        return named if named in self.fields.keys() - _HIDDEN_FIELDS else ""


class PageContext:
    """Passed to views and actions to read a request and render a page."""

    def __init__(self, request: AnyRequest, api: ApiClient, *, token: str, now_ms: int) -> None:
        self.request = request
        self.api = api
        self._token = token
        self.now = datetime.fromtimestamp(now_ms / 1000, UTC)
        query = request.scope["query_string"].decode("latin-1")
        self._query = parse_qsl(query, keep_blank_values=True)
        self._path = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
        self._refused: Refused | None = None

    def refuse(self, page: str, query: Mapping[str, str], refused: Refused) -> None:
        """Make this the context of the page that has a form, which was refused.

        Args:
            page: Address of the page.
            query: Its query.
            refused: The form.
        """
        self._path, self._query, self._refused = page, [*query.items()], refused

    def query_value(self, name: str) -> str:
        """Return a parameter of the query; "" if it is absent."""
        return next((value for key, value in self._query if key == name), "")

    def filters(self, without: Collection[str] = ()) -> list[tuple[str, str]]:
        """Return the query parameters for the API, which refuses unknown ones."""
        return [pair for pair in self._query if pair[0] not in {*_PAGE_PARAMETERS, *without}]

    def path_value(self, name: str) -> str:
        """Return a parameter of the path."""
        return str(self.request.path_params[name])

    def seen_until(self) -> str:
        """Return until when failures were seen, in RFC 3339; "" if they never were."""
        text = self.request.cookies.get(SEEN_COOKIE, "")
        try:
            return text and moment(text).isoformat().replace("+00:00", "Z")
        except (ValueError, OverflowError):
            return ""

    def link(self, **changes: str | None) -> str:
        """Return the address of this page with changed query parameters."""
        kept = [pair for pair in self._query if pair[0] not in {"done", *changes} and pair[1]]
        query = urlencode([*kept, *((name, value) for name, value in changes.items() if value)])
        return f"{self._path}?{query}" if query else self._path

    def entered(self, action: str, name: str, default: str = "") -> str:
        """Return what was entered into a field of a form that was refused; else a default."""
        refused = self._refused
        if refused is None or refused.action != action:
            return default
        return refused.fields.get(name, default)

    def mistake(self, action: str, name: str = "") -> str:
        """Return the problem with a field of a form; without a field, with the form."""
        refused = self._refused
        if refused is None or refused.action != action or name not in {"", refused.field}:
            return ""
        return str(refused.problem["detail"])

    def presets(self, name: str) -> dict[str, str]:
        """Return links to this page with times before now as a parameter."""
        return {
            label: self.link(**{name: self.since(before)}) for label, before in _PRESETS.items()
        }

    def since(self, before: timedelta) -> str:
        """Return a time before now, in RFC 3339 to the second."""
        return f"{(self.now - before).isoformat(timespec='seconds').removesuffix('+00:00')}Z"

    def render(
        self, template: str, section: str, status: int = 200, *, live: bool = True, **values: object
    ) -> Response[bytes]:
        """Render a page; a failed `response` among the values determines its status.

        Args:
            template: Name of the template.
            section: Path of its entry in the navigation.
            status: Status of the response.
            live: Whether the script of the page updates it; not if each reading is audited.
            values: Values for the template.
        """
        main = values.get("response")
        if self._refused is not None:
            status = self._refused.problem["status"]
        elif isinstance(main, ApiResponse) and not main.ok:
            status = main.answer.status
        is_get = self.request.method == "GET"
        refresh = self._refresh()
        return page(
            template,
            status,
            confirmation=CONFIRMATIONS.get(self.query_value("done")),
            curl_commands=self.api.curl_commands,
            entered=self.entered,
            is_get=is_get,
            link=self.link,
            live=refresh or (_REFRESH_DEFAULT_S if live and is_get else 0),
            mistake=self.mistake,
            now=self.now,
            origin=f"{self.request.url.scheme}://{self.request.url.netloc}",
            presets=self.presets,
            problems=self._problems(values).values(),
            query_value=self.query_value,
            refresh=refresh,
            refresh_default=_REFRESH_DEFAULT_S,
            request_id=request_id_of(self.request.scope),
            section=section,
            sections=SECTIONS,
            token=self._token,
            **values,
        )

    def _problems(self, values: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
        """Return the problems that are shown above a page, by code.

        One outage makes many requests fail: it is shown once. A field shows its own problem.
        """
        responses = [value for value in values.values() if isinstance(value, ApiResponse)]
        problems = {
            response.problem["code"]: response.problem for response in responses if not response.ok
        }
        main = values.get("response")
        has_form = not isinstance(main, ApiResponse) or main.ok
        if self._refused is not None and not (self._refused.field and has_form):
            problems[self._refused.problem["code"]] = self._refused.problem
        return problems

    def _refresh(self) -> int:
        """Return the seconds until the browser reloads the page; 0 for never."""
        text = self.query_value("refresh")
        seconds = int(text) if text.isdecimal() and len(text) < 5 else 0
        return seconds if seconds in _REFRESH_S else 0
