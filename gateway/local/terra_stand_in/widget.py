"""The widget: sessions and pages in which a user connects a wearable, or cancels."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from litestar import MediaType, Request, Response, Router, get, post
from litestar.datastructures import State
from litestar.params import FromPath

from headwater.gateway.local.terra_stand_in import deliveries
from headwater.gateway.local.terra_stand_in.deliveries import SeededValues
from headwater.gateway.local.terra_stand_in.people import People, Person, Post
from headwater.gateway.local.terra_stand_in.posting import Posting

#: Wearables that a session offers by default.
PROVIDERS: Final = ("FITBIT", "GARMIN", "OURA", "WHOOP", "WITHINGS")

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} (Terra stand-in)</title>
<link rel="icon" href="data:,">
<style>
body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 32rem; margin: 4rem auto; }}
.note {{ background: #fff3cd; color: #222; padding: .5rem 1rem; border-radius: .5rem; }}
button {{ font: inherit; padding: .4rem 1rem; margin: .2rem; cursor: pointer; }}
</style>
</head>
<body>
<p class="note">This is a stand-in for Terra, on your machine. Nothing real is connected.</p>
<h1>{title}</h1>
{content}
</body>
</html>
"""


def choice_page(providers: Sequence[str], reference_id: str) -> bytes:
    """Return the page of a session."""
    buttons = "\n".join(
        f'<button name="provider" value="{escape(name)}">{escape(name.title())}</button>'
        for name in providers
    )
    cancel = '<p><button name="cancel" value="yes">Cancel</button></p>'
    intro = f"<p>Connect a wearable of <code>{escape(reference_id)}</code>:</p>"
    return _page("Connect a wearable", f'<form method="post">{intro}{buttons}{cancel}</form>')


def message_page(title: str, content: str) -> bytes:
    """Return a page with a message."""
    return _page(title, f"<p>{escape(content)}</p>")


def _page(title: str, content: str) -> bytes:
    return _PAGE.format(title=escape(title), content=content).encode()


# -- sessions

_EXPIRES_S: Final = 900
_SCOPES: Final = "ACTIVITY,BODY,DAILY,SLEEP"


class Widget:
    """Manages the sessions."""

    def __init__(
        self, people: People, posting: Posting, *, seed: int, url: str, clock: Callable[[], int]
    ) -> None:
        self._people = people
        self._posting = posting
        self._seed = seed
        self._url = url
        self._clock = clock

    def begin(self, options: dict[str, Any]) -> dict[str, Any]:
        """Start a session; return Terra's response."""
        number = self._people.count("sessions")
        session_id = SeededValues(self._seed, "session").id_of(str(number))
        self._people.begin_session(session_id, options)
        return {
            "status": "success",
            "session_id": session_id,
            "url": f"{self._url}/widget/{session_id}",
            "expires_in": _EXPIRES_S,
        }

    def session(self, session_id: str) -> dict[str, Any] | None:
        """Return the options of a session; None if it does not exist."""
        return self._people.session(session_id)

    def connect(self, session_id: str, reference_id: str | None, provider: str) -> Person:
        """Connect a wearable; connecting it again returns the same connection."""
        values = SeededValues(self._seed, reference_id or session_id)
        person = Person(
            user_id=values.id_of(provider),
            provider=provider,
            reference_id=reference_id,
            scopes=_SCOPES,
            created_at=datetime.fromtimestamp(self._clock() / 1_000, UTC).isoformat(),
        )
        self._people.connect([person])
        self._post(deliveries.connected(person, session_id))
        return person

    def cancel(self, session_id: str, reference_id: str | None) -> None:
        """End a session without a connection."""
        self._post(deliveries.cancelled(reference_id, session_id))

    def disconnect(self, person: Person) -> None:
        """End a connection."""
        self._people.remove(person.user_id)
        self._post(deliveries.disconnected(person))

    def _post(self, post: Post) -> None:
        self._people.post([post], self._clock())
        self._posting.wake_up()


def widget_routes(widget: Widget) -> Router:
    """Return the routes of the pages."""

    @get("/{session_id:str}")
    async def show(session_id: FromPath[str]) -> Response[bytes]:
        options = widget.session(session_id)
        if options is None:
            return _html(message_page("No such session", "It was not started here."), 404)
        names = [name.strip() for name in str(options.get("providers") or "").split(",")]
        offered = [name for name in names if name] or PROVIDERS
        return _html(choice_page(offered, str(options.get("reference_id") or "unknown")))

    @post("/{session_id:str}", status_code=200)
    async def choose(
        session_id: FromPath[str], request: Request[Any, Any, State]
    ) -> Response[bytes]:
        options = widget.session(session_id)
        if options is None:
            return _html(message_page("No such session", "It was not started here."), 404)
        form = await request.form()
        reference = options.get("reference_id")
        if "provider" not in form:
            widget.cancel(session_id, reference)
            page = message_page("Cancelled", "Nothing was connected.")
            return _after(options.get("auth_failure_redirect_url"), {"reason": "cancelled"}, page)
        person = widget.connect(session_id, reference, str(form["provider"]))
        query = {"user_id": person.user_id, "resource": person.provider}
        text = f"{person.provider.title()} is connected; you may close this page."
        page = message_page("Done", text)
        return _after(options.get("auth_success_redirect_url"), query, page)

    return Router("/widget", route_handlers=[show, choose])


def _after(url: str | None, parameters: dict[str, str], page: bytes) -> Response[bytes]:
    """Redirect to the URL of the session, or show the result."""
    if not url:
        return _html(page)
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, urlencode(parameters))))
    location = urlunsplit(parts._replace(query=query))
    return Response(b"", status_code=303, headers={"location": location})


def _html(page: bytes, status: int = 200) -> Response[bytes]:
    return Response(page, status_code=status, media_type=MediaType.HTML)
