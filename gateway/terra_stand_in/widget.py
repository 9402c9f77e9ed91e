"""The widget: sessions in which somebody connects a wearable, or does not."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from litestar import MediaType, Request, Response, Router, get, post
from litestar.datastructures import State
from litestar.params import FromPath

from headwater.gateway.terra_stand_in import deliveries, pages
from headwater.gateway.terra_stand_in.generated_data import Chance
from headwater.gateway.terra_stand_in.people import People, Person, Post
from headwater.gateway.terra_stand_in.posting import Posting

_EXPIRES_S: Final = 900
_SCOPES: Final = "ACTIVITY,BODY,DAILY,SLEEP"


class Widget:
    """The sessions."""

    def __init__(
        self, people: People, posting: Posting, *, seed: int, url: str, clock: Callable[[], int]
    ) -> None:
        self._people = people
        self._posting = posting
        self._seed = seed
        self._url = url
        self._clock = clock

    def begin(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Begins a session; gives Terra's answer."""
        number = self._people.count("sessions")
        session_id = Chance(self._seed, "session").id_of(str(number))
        self._people.begin_session(session_id, wanted)
        return {
            "status": "success",
            "session_id": session_id,
            "url": f"{self._url}/widget/{session_id}",
            "expires_in": _EXPIRES_S,
        }

    def session(self, session_id: str) -> dict[str, Any] | None:
        """What a session was asked for."""
        return self._people.session(session_id)

    def connect(self, session_id: str, reference_id: str | None, provider: str) -> Person:
        """Connects a wearable: somebody's second time is the same connection."""
        name = Chance(self._seed, reference_id or session_id)
        person = Person(
            user_id=name.id_of(provider),
            provider=provider,
            reference_id=reference_id,
            scopes=_SCOPES,
            created_at=datetime.fromtimestamp(self._clock() / 1_000, UTC).isoformat(),
        )
        self._people.connect([person])
        self._say(deliveries.connected(person, session_id))
        return person

    def cancel(self, session_id: str, reference_id: str | None) -> None:
        """Ends a session without a connection."""
        self._say(deliveries.cancelled(reference_id, session_id))

    def disconnect(self, person: Person) -> None:
        """Ends a connection."""
        self._people.remove(person.user_id)
        self._say(deliveries.disconnected(person))

    def _say(self, post: Post) -> None:
        self._people.post([post], self._clock())
        self._posting.wake_up()


def widget_routes(widget: Widget) -> Router:
    """The pages of sessions."""

    @get("/{session_id:str}")
    async def show(session_id: FromPath[str]) -> Response[bytes]:
        wanted = widget.session(session_id)
        if wanted is None:
            return _html(pages.said("No such session", "It was not begun here."), 404)
        asked = [each.strip() for each in str(wanted.get("providers") or "").split(",")]
        offered = [each for each in asked if each] or pages.PROVIDERS
        return _html(pages.choice(offered, str(wanted.get("reference_id") or "nobody")))

    @post("/{session_id:str}", status_code=200)
    async def choose(
        session_id: FromPath[str], request: Request[Any, Any, State]
    ) -> Response[bytes]:
        wanted = widget.session(session_id)
        if wanted is None:
            return _html(pages.said("No such session", "It was not begun here."), 404)
        form = await request.form()
        reference = wanted.get("reference_id")
        if "provider" not in form:
            widget.cancel(session_id, reference)
            page = pages.said("Cancelled", "Nothing was connected.")
            return _after(wanted.get("auth_failure_redirect_url"), {"reason": "cancelled"}, page)
        person = widget.connect(session_id, reference, str(form["provider"]))
        shown = {"user_id": person.user_id, "resource": person.provider}
        words = f"{person.provider.title()} is connected; you may close this page."
        return _after(wanted.get("auth_success_redirect_url"), shown, pages.said("Done", words))

    return Router("/widget", route_handlers=[show, choose])


def _after(url: str | None, shown: dict[str, str], page: bytes) -> Response[bytes]:
    """Back to where the session was begun, or a page that says what became of it."""
    if not url:
        return _html(page)
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, urlencode(shown))))
    there = urlunsplit(parts._replace(query=query))
    return Response(b"", status_code=303, headers={"location": there})


def _html(page: bytes, status: int = 200) -> Response[bytes]:
    return Response(page, status_code=status, media_type=MediaType.HTML)
