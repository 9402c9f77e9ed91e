"""Routes of the console: pages, forms, and signing in and out."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, quote

from litestar import Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.types import ExceptionHandlersMap, Middleware, Scope

from headwater.gateway.api.console import actions, views
from headwater.gateway.api.console.api_client import ApiClient, ConsoleKeys
from headwater.gateway.api.console.page_context import BASE, PageContext
from headwater.gateway.api.console.rendering import STYLE, page, redirect
from headwater.gateway.api.console.sessions import COOKIE, SESSION_S, Sessions
from headwater.gateway.api.problems import CODES, Problem, retry_headers
from headwater.gateway.api.request_scope import AnyRequest, request_id_of
from headwater.gateway.api.wrong_keys import check_key
from headwater.gateway.client.paths import EmptyName
from headwater.gateway.settings.loopback import DEVELOPMENT_SECRETS

_LOG: Final = logging.getLogger("headwater.gateway.api.console")

#: Records a refused request by its error code.
RecordRefusal: TypeAlias = Callable[[Scope, str], None]
View: TypeAlias = Callable[[PageContext], Awaitable[Response[bytes]]]
Action: TypeAlias = Callable[[PageContext, Mapping[str, str]], Awaitable[Response[bytes]]]

_PAGES: Final[Mapping[str, View]] = {
    "/": views.overview,
    "/deliveries": views.deliveries,
    "/deliveries/{reference:str}": views.delivery,
    "/dead-letters": views.dead_letters,
    "/dead-letters/replay": views.confirm_reprocessing,
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
    "/deliveries/{reference:str}/replay": actions.reprocess_delivery,
    "/dead-letters/replay": actions.reprocess_dead_letters,
    "/dead-letters/{partition:int}/{offset:int}/replay": actions.reprocess_dead_letter,
    "/instances/{workflow:str}/{instance:str}/{action:str}": actions.change_instance,
    "/deployments/{deployment:str}/activate": actions.activate,
    "/deployments/rollback": actions.roll_back,
    "/drain": actions.drain,
}
#: Seconds that browsers cache the style sheet; its address changes with its content.
_CACHE_S: Final = 86_400


class Console:
    """Serves pages and forms to operators who are signed in."""

    def __init__(
        self,
        keys: ConsoleKeys,
        *,
        clock: Callable[[], int],
        record_refusal: RecordRefusal,
        bodies: Middleware,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._sessions = Sessions(keys.admin, clock)
        self._record_refusal = record_refusal
        self._bodies = bodies

    def router(self) -> Router:
        """Return the router."""
        return Router(
            BASE,
            route_handlers=[
                *(self._page(path, view) for path, view in _PAGES.items()),
                *(self._form(path, action) for path, action in _FORMS.items()),
                *self._session_routes(),
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
                target = quote(f"{here}?{query}" if query else here)
                return redirect(f"{BASE}/login?next={target}")
            return await view(self._context(request, session))

        return show

    def _form(self, path: str, action: Action) -> HTTPRouteHandler:
        @post(path)
        async def act(request: AnyRequest) -> Response[bytes]:
            session = self._session(request)
            if session is None:
                return self._login_page(BASE, notice="ended")
            form = await _form_of(request)
            if not self._sessions.is_form_token(form.get("token", ""), session):
                raise Problem("forbidden", "expected a form of this session; open its page again")
            return await action(self._context(request, session), form)

        return act

    def _session_routes(self) -> list[HTTPRouteHandler]:
        @get("/login")
        async def login(request: AnyRequest) -> Response[bytes]:
            return self._login_page(request.query_params.get("next", ""))

        @post("/login")
        async def sign_in(request: AnyRequest) -> Response[bytes]:
            form = await _form_of(request)
            target = form.get("next", "")
            key = form.get("key", "")
            is_right = self._sessions.is_operators_key(key)
            check_key(request, "admin", key, right=is_right)
            if not is_right:
                self._record_refusal(request.scope, "unauthorized")
                return self._login_page(target, notice="wrong")
            _LOG.info("signed in to the console: request_id=%s", request_id_of(request.scope))
            answer = redirect(_within_console(target))
            answer.set_cookie(_cookie(request, self._sessions.new_cookie(), SESSION_S))
            return answer

        @post("/logout")
        async def sign_out(request: AnyRequest) -> Response[bytes]:
            answer = redirect(f"{BASE}/login")
            form = await _form_of(request)
            if self._sessions.is_form_token(form.get("token", ""), self._session(request) or ""):
                answer.set_cookie(_cookie(request, "", 0))
            return answer

        return [login, sign_in, sign_out]

    def _session(self, request: AnyRequest) -> str | None:
        cookie = request.cookies.get(COOKIE, "")
        return cookie if self._sessions.is_valid(cookie) else None

    def _context(self, request: AnyRequest, session: str) -> PageContext:
        token = self._sessions.form_token(session)
        return PageContext(
            request, ApiClient(request, self._keys), token=token, now_ms=self._clock()
        )

    def _login_page(self, target: str, *, notice: str = "") -> Response[bytes]:
        development_key = DEVELOPMENT_SECRETS["admin_key"]
        hint = development_key if self._keys.admin == development_key else ""
        status = 401 if notice else 200
        rendered = page(
            "login.html", status, notice=notice, next=_within_console(target), hint=hint
        )
        if notice:
            rendered.headers["www-authenticate"] = "Bearer"
        return rendered


def _within_console(target: str) -> str:
    """Return the address after signing in: the target if it is in the console, else its start."""
    # The prefix excludes other hosts. Quoting excludes line ends, which would end the header.
    is_in_console = target == BASE or target.startswith((f"{BASE}/", f"{BASE}?"))
    return quote(target, safe="/?&=%+@:,") if is_in_console else BASE


def _cookie(request: AnyRequest, value: str, seconds: int) -> Cookie:
    # A client that forges this header affects only its own cookie.
    https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
    return Cookie(
        COOKIE, BASE, value, max_age=seconds, secure=https, httponly=True, samesite="strict"
    )


async def _form_of(request: AnyRequest) -> dict[str, str]:
    """Return the fields of a form."""
    return dict(parse_qsl((await request.body()).decode(errors="replace"), keep_blank_values=True))


def _style() -> HTTPRouteHandler:
    @get("/console.css", sync_to_thread=False)
    def style() -> Response[bytes]:
        headers = {"cache-control": f"public, max-age={_CACHE_S}"}
        return Response(STYLE, media_type="text/css", headers=headers)

    return style


def _on_problem(_request: AnyRequest, error: Problem) -> Response[bytes]:
    """Render a problem of the console itself as a page."""
    status, title = CODES[error.code]
    problem = {"title": title, "status": status, "detail": error.detail, "code": error.code}
    rendered = page("refused.html", status, problem=problem)
    rendered.headers.update(retry_headers(status) | error.headers)
    return rendered


def _on_empty_segment(request: AnyRequest, error: EmptyName) -> Response[bytes]:
    """Render the problem of an address with an empty path segment."""
    return _on_problem(request, Problem("not_found", str(error)))


_HANDLERS: Final[ExceptionHandlersMap] = {Problem: _on_problem, EmptyName: _on_empty_segment}
