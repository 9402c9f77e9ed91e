"""The widget: sessions in which a user connects a wearable, or cancels."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from litestar import MediaType, Request, Response, Router, get, post
from litestar.datastructures import State
from litestar.params import FromPath

from headwater.gateway.local.terra_stand_in import deliveries, pages
from headwater.gateway.local.terra_stand_in.generated_data import SeededValues
from headwater.gateway.local.terra_stand_in.people import People, Person, Post
from headwater.gateway.local.terra_stand_in.posting import Posting

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
            return _html(pages.message("No such session", "It was not started here."), 404)
        names = [name.strip() for name in str(options.get("providers") or "").split(",")]
        offered = [name for name in names if name] or pages.PROVIDERS
        return _html(pages.choice(offered, str(options.get("reference_id") or "unknown")))

    @post("/{session_id:str}", status_code=200)
    async def choose(
        session_id: FromPath[str], request: Request[Any, Any, State]
    ) -> Response[bytes]:
        options = widget.session(session_id)
        if options is None:
            return _html(pages.message("No such session", "It was not started here."), 404)
        form = await request.form()
        reference = options.get("reference_id")
        if "provider" not in form:
            widget.cancel(session_id, reference)
            page = pages.message("Cancelled", "Nothing was connected.")
            return _after(options.get("auth_failure_redirect_url"), {"reason": "cancelled"}, page)
        person = widget.connect(session_id, reference, str(form["provider"]))
        query = {"user_id": person.user_id, "resource": person.provider}
        text = f"{person.provider.title()} is connected; you may close this page."
        page = pages.message("Done", text)
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
