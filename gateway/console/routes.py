"""The routes of the console: its pages, its forms, and signing in."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, quote

from litestar import Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.types import ExceptionHandlersMap, Middleware, Scope

from headwater.gateway.console import actions, views
from headwater.gateway.console.asking import Api, Keys
from headwater.gateway.console.desk import BASE, Desk
from headwater.gateway.console.rendering import STYLE, page, redirect
from headwater.gateway.console.sessions import COOKIE, SESSION_S, Sessions
from headwater.gateway.http.problems import CODES, Problem, retry_headers
from headwater.gateway.http.request_scope import AnyRequest, request_id_of
from headwater.gateway.http.wrong_keys import check_key
from headwater.gateway.loopback import DEVELOPMENT_SECRETS
from headwater.gateway.paths import EmptyName

_LOG: Final = logging.getLogger("headwater.gateway.console")

#: Tells of a request that was refused, by the code of what was wrong with it.
Refused: TypeAlias = Callable[[Scope, str], None]
View: TypeAlias = Callable[[Desk], Awaitable[Response[bytes]]]
Action: TypeAlias = Callable[[Desk, Mapping[str, str]], Awaitable[Response[bytes]]]

_PAGES: Final[Mapping[str, View]] = {
    "/": views.overview,
    "/deliveries": views.deliveries,
    "/deliveries/{named:str}": views.delivery,
    "/dead-letters": views.dead_letters,
    "/dead-letters/replay": views.replaying,
    "/dead-letters/{partition:int}/{offset:int}": views.dead_letter,
    "/workflows": views.workflows,
    "/instances": views.instances,
    "/instances/{workflow:str}/{instance:str}": views.instance,
    "/instances/{workflow:str}/{instance:str}/graph.svg": views.picture,
    "/deployments": views.deployments,
    "/users": views.users,
    "/why": views.why,
    "/audit": views.audit,
}
_FORMS: Final[Mapping[str, Action]] = {
    "/deliveries/{named:str}/replay": actions.replay_delivery,
    "/dead-letters/replay": actions.replay_dead_letters,
    "/dead-letters/{partition:int}/{offset:int}/replay": actions.replay_dead_letter,
    "/instances/{workflow:str}/{instance:str}/{verb:str}": actions.change_instance,
    "/deployments/{deployment:str}/activate": actions.activate,
    "/deployments/rollback": actions.roll_back,
    "/drain": actions.drain,
}
#: Seconds for browsers to keep the style sheet: its address changes with it.
_KEPT_S: Final = 86_400


class Console:
    """Shows pages to whoever is signed in, and does what their forms say."""

    def __init__(
        self, keys: Keys, *, clock: Callable[[], int], refused: Refused, bodies: Middleware
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._sessions = Sessions(keys.admin, clock)
        self._refused = refused
        self._bodies = bodies

    def router(self) -> Router:
        """The routes."""
        return Router(
            BASE,
            route_handlers=[
                *(self._page(path, view) for path, view in _PAGES.items()),
                *(self._form(path, action) for path, action in _FORMS.items()),
                *self._signing(),
                _style(),
            ],
            middleware=[self._bodies],
            exception_handlers=_HANDLERS,
            request_max_body_size=None,
            include_in_schema=False,
        )

    def _page(self, path: str, view: View) -> HTTPRouteHandler:
        @get(path)
        async def show(request: AnyRequest) -> Response[bytes]:
            session = self._session(request)
            if session is None:
                query = request.scope["query_string"].decode("latin-1")
                here = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
                wanted = quote(f"{here}?{query}" if query else here)
                return redirect(f"{BASE}/login?next={wanted}")
            return await view(self._desk(request, session))

        return show

    def _form(self, path: str, action: Action) -> HTTPRouteHandler:
        @post(path)
        async def act(request: AnyRequest) -> Response[bytes]:
            session = self._session(request)
            if session is None:
                return self._login(BASE, said="ended")
            form = await _form_of(request)
            if not self._sessions.fits(form.get("token", ""), session):
                raise Problem("forbidden", "expected a form of this session; open its page again")
            return await action(self._desk(request, session), form)

        return act

    def _signing(self) -> list[HTTPRouteHandler]:
        @get("/login")
        async def login(request: AnyRequest) -> Response[bytes]:
            return self._login(request.query_params.get("next", ""))

        @post("/login")
        async def sign_in(request: AnyRequest) -> Response[bytes]:
            form = await _form_of(request)
            wanted = form.get("next", "")
            key = form.get("key", "")
            opens = self._sessions.opens(key)
            check_key(request, "admin", key, right=opens)
            if not opens:
                self._refused(request.scope, "unauthorized")
                return self._login(wanted, said="wrong")
            _LOG.info("signed in to the console: request_id=%s", request_id_of(request.scope))
            answer = redirect(_within(wanted))
            answer.set_cookie(_cookie(request, self._sessions.begin(), SESSION_S))
            return answer

        @post("/logout")
        async def sign_out(request: AnyRequest) -> Response[bytes]:
            answer = redirect(f"{BASE}/login")
            form = await _form_of(request)
            if self._sessions.fits(form.get("token", ""), self._session(request) or ""):
                answer.set_cookie(_cookie(request, "", 0))
            return answer

        return [login, sign_in, sign_out]

    def _session(self, request: AnyRequest) -> str | None:
        cookie = request.cookies.get(COOKIE, "")
        return cookie if self._sessions.holds(cookie) else None

    def _desk(self, request: AnyRequest, session: str) -> Desk:
        token = self._sessions.token(session)
        return Desk(request, Api(request, self._keys), token=token, now_ms=self._clock())

    def _login(self, wanted: str, *, said: str = "") -> Response[bytes]:
        known = DEVELOPMENT_SECRETS["admin_key"]
        hint = known if self._keys.admin == known else ""
        status = 401 if said else 200
        found = page("login.html", status, said=said, next=_within(wanted), hint=hint)
        if said:
            found.headers["www-authenticate"] = "Bearer"
        return found


def _within(wanted: str) -> str:
    """Where to go on after signing in: within the console, whatever was asked for."""
    # What could end a header is quoted; what could lead to another host does not begin like this.
    is_ours = wanted == BASE or wanted.startswith((f"{BASE}/", f"{BASE}?"))
    return quote(wanted, safe="/?&=%+@:,") if is_ours else BASE


def _cookie(request: AnyRequest, value: str, seconds: int) -> Cookie:
    # Whoever makes this header up makes it up for their own cookie.
    https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
    return Cookie(
        COOKIE, BASE, value, max_age=seconds, secure=https, httponly=True, samesite="strict"
    )


async def _form_of(request: AnyRequest) -> dict[str, str]:
    """The fields of a form."""
    return dict(parse_qsl((await request.body()).decode(errors="replace"), keep_blank_values=True))


def _style() -> HTTPRouteHandler:
    @get("/console.css", sync_to_thread=False)
    def style() -> Response[bytes]:
        kept = {"cache-control": f"public, max-age={_KEPT_S}"}
        return Response(STYLE, media_type="text/css", headers=kept)

    return style


def _on_problem(_request: AnyRequest, error: Problem) -> Response[bytes]:
    """A refusal of the console's own, as a page."""
    known, title = CODES[error.code]
    problem = {"title": title, "status": known, "detail": error.detail, "code": error.code}
    found = page("refused.html", known, problem=problem)
    found.headers.update(retry_headers(known) | error.headers)
    return found


def _on_nothing_named(request: AnyRequest, error: EmptyName) -> Response[bytes]:
    """An address that leaves out what it is about."""
    return _on_problem(request, Problem("not_found", str(error)))


_HANDLERS: Final[ExceptionHandlersMap] = {Problem: _on_problem, EmptyName: _on_nothing_named}
