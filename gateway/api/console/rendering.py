"""Render pages: templates with filters and headers, and the context of a page."""

import json
import re
import shlex
from base64 import b64decode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Response

from headwater.gateway.api.console.api_client import ApiClient, ApiResponse
from headwater.gateway.api.request_scope import AnyRequest, request_id_of
from headwater.gateway.client.requests import path
from headwater.processors.runs.lifecycle import ACTIONS
from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.failures import NEXT_STEPS

#: Most characters of a value on a page; the request that the page names returns all of it.
SHOWN_CHARS: Final = 20_000
#: Control characters that pages replace. Avro records have them between their texts.
_UNREADABLE: Final = re.compile(r"[\0-\x08\x0e-\x1f\x7f\ufffd]")
_JSON: Final = msgspec.json.Encoder(decimal_format="number")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

STYLE: Final = files(__package__).joinpath("console.css").read_bytes()
STYLE_VERSION: Final = sha256(STYLE).hexdigest()[:12]
#: Pages have no scripts, and send forms only to this gateway.
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
#: Headers of a picture. It has inline styles, and opened by itself it is a document with names that
#: workflow authors choose.
PICTURE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox",
    "cache-control": "no-store",
}


def moment(text: str) -> datetime:
    """Parse a time of the API."""
    return datetime.fromisoformat(text).astimezone(UTC)


def clock_time(text: str) -> str:
    """Format a time of the API in UTC, to the second."""
    return f"{moment(text):%Y-%m-%d %H:%M:%S}"


def from_ms(at_ms: int) -> str:
    """Format Unix milliseconds like `clock_time`."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def age(text: str, now: datetime) -> str:
    """Format how long ago a time was, or how far ahead it is, in the largest unit."""
    seconds = (now - moment(text)).total_seconds()
    distance = " ".join(duration(abs(seconds)).split()[:2])
    return f"{distance} ago" if seconds >= 0 else f"in {distance}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if seconds >= size:
            rest = int(seconds % size // part)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.0f} s"


def pretty(value: object) -> str:
    """Format a value as indented JSON, with numbers as they were written."""
    try:
        return _short(msgspec.json.format(_JSON.encode(value), indent=2).decode())
    except (ValueError, TypeError):  # Lone surrogates are valid JSON, but msgspec refuses them.
        return _short(json.dumps(value, indent=2, default=str))


def readable(base64: str | None) -> str:
    """Decode base64 for reading: JSON is indented, other text has dots for control characters."""
    content = b64decode(base64 or "")
    try:
        return _short(msgspec.json.format(content, indent=2).decode())
    except PARSE_ERRORS:
        text = content.decode(errors="replace")
    return _short(_UNREADABLE.sub("·", text))


def _short(text: str) -> str:
    omitted = len(text) - SHOWN_CHARS
    return text if omitted <= 0 else f"{text[:SHOWN_CHARS]}\n… and {omitted} more characters"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("headwater.gateway.api.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": age,
        "clock_time": clock_time,
        "from_ms": from_ms,
        "duration": duration,
        "pretty": pretty,
        "quoted": shlex.quote,
        "readable": readable,
    }
    environment.globals |= {
        "next_steps": NEXT_STEPS,
        "path": path,
        "style_version": STYLE_VERSION,
    }
    return environment


_TEMPLATES: Final = _environment()


def page(template: str, status: int = 200, **values: object) -> Response[bytes]:
    """Render a template as a response."""
    text = _TEMPLATES.get_template(template).render(values)
    # Text of senders may have lone surrogates, which UTF-8 cannot encode.
    return Response(
        text.encode(errors="replace"),
        status_code=status,
        media_type="text/html",
        headers=HEADERS,
    )


def redirect(to: str) -> Response[bytes]:
    """Redirect a browser to another page of the console with GET (303)."""
    return Response(
        b"", status_code=303, media_type="text/html", headers={**HEADERS, "location": to}
    )


# -- context of a page

BASE: Final = "/console"
#: Entries of the navigation bar.
SECTIONS: Final[Mapping[str, str]] = {
    BASE: "Overview",
    f"{BASE}/deliveries": "Deliveries",
    f"{BASE}/dead-letters": "Dead letters",
    f"{BASE}/workflows": "Workflows",
    f"{BASE}/deployments": "Deployments",
    f"{BASE}/users": "Users",
    f"{BASE}/quality": "Quality",
    f"{BASE}/audit": "Audit",
    f"{BASE}/auditor": "Auditor",
    f"{BASE}/keys": "Keys",
}
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
            status = main.answer.status
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
