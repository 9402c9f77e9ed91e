"""Routes of the console: pages, forms, and sessions."""

import logging
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias
from urllib.parse import parse_qsl, quote

from litestar import Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.types import ExceptionHandlersMap, Middleware, Scope

from headwater.gateway.api.authentication import Caller, accept, admit, key_id, refuse
from headwater.gateway.api.console import endpoint_pages, overview, views, workflow_views
from headwater.gateway.api.console.actions import FORMS, Form, View
from headwater.gateway.api.console.api_client import ApiClient, ConsoleKeys
from headwater.gateway.api.console.oidc import (
    PENDING_S,
    OidcSignIn,
    Pending,
    SignInRefused,
)
from headwater.gateway.api.console.page_context import FormRefused, PageContext, Refused
from headwater.gateway.api.console.rendering import ASSETS, BASE, page, redirect
from headwater.gateway.api.console.sessions import SESSION_S, Sessions, SignIn
from headwater.gateway.api.problems import CODES, Problem, retry_headers
from headwater.gateway.api.request_scope import AnyRequest, request_id_of
from headwater.gateway.api.tokens.key_source import KeysUnavailable
from headwater.gateway.client.requests import EmptyName
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS
from headwater.processors.api_keys import Scope as KeyScope

COOKIE: Final = "headwater_console"
#: Cookie of a sign-in with a provider that was begun.
PENDING_COOKIE: Final = "headwater_oidc"
_LOG: Final = logging.getLogger("headwater.gateway.api.console")

#: Records a refused request by its error code.
RecordRefusal: TypeAlias = Callable[[Scope, str], None]

_PAGES: Final[Mapping[str, View]] = {
    "/": overview.overview,
    "/failures": overview.failures,
    "/failures/retry": workflow_views.confirm_retrying,
    "/deliveries": views.deliveries,
    "/deliveries/{reference:str}": views.delivery,
    "/dead-letters": views.dead_letters,
    "/dead-letters/replay": views.confirm_reprocessing,
    "/dead-letters/{partition:int}/{offset:int}": views.dead_letter,
    "/workflows": workflow_views.workflows,
    "/workflows/{workflow:str}/start": workflow_views.start,
    "/instances": workflow_views.instances,
    "/instances/{workflow:str}/{instance:str}": workflow_views.instance,
    "/instances/{workflow:str}/{instance:str}/graph.svg": workflow_views.picture,
    "/deployments": workflow_views.deployments,
    "/quality": views.quality,
    "/users": views.users,
    "/rows": views.rows,
    "/why": views.why,
    "/system": views.system,
    "/search": views.search,
    "/audit": views.audit,
    "/auditor": views.auditor,
    "/keys": views.keys,
    **endpoint_pages.PAGES,
}
_FORMS: Final[Mapping[str, Form]] = {**FORMS, **endpoint_pages.FORMS}
#: Seconds that browsers cache style sheet and script; their addresses change with the content.
_CACHE_S: Final = 86_400


class Console:
    """Serves pages and forms to operators who are signed in."""

    def __init__(
        self,
        keys: ConsoleKeys,
        sign_in: SignIn,
        *,
        clock: Callable[[], int],
        record_refusal: RecordRefusal,
        bodies: Middleware,
        oidc: OidcSignIn | None = None,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._sign_in = sign_in
        self._sessions = Sessions(sign_in, clock, people_s=oidc.session_s if oidc else 0)
        self._record_refusal = record_refusal
        self._bodies = bodies
        self._oidc = oidc

    def router(self) -> Router:
        """Return the router."""
        return Router(
            BASE,
            route_handlers=[
                *(self._page(path, view) for path, view in _PAGES.items()),
                *(self._form(path, form) for path, form in _FORMS.items()),
                *self._session_routes(),
                *([] if self._oidc is None else self._oidc_routes(self._oidc)),
                *(_asset(name) for name in ASSETS),
                self._page("/{address:path}", _not_found),
            ],
            middleware=[self._bodies],
            exception_handlers=_HANDLERS,
            request_max_body_size=None,
            include_in_schema=False,
        )

    def _page(self, path: str, view: View) -> HTTPRouteHandler:
        @get(path)
        async def show(request: AnyRequest) -> Response[bytes]:
            signed_in = self._signed_in(request)
            if signed_in is None:
                query = request.scope["query_string"].decode("latin-1")
                here = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
                target = quote(f"{here}?{query}" if query else here)
                return redirect(f"{BASE}/login?next={target}")
            return await view(self._context(request, *signed_in))

        return show

    def _form(self, path: str, form: Form) -> HTTPRouteHandler:
        @post(path)
        async def act(request: AnyRequest) -> Response[bytes]:
            signed_in = self._signed_in(request)
            if signed_in is None:
                return self._login_page(BASE, notice="ended")
            fields = await _form_of(request)
            if not self._sessions.is_form_token(fields.get("token", ""), signed_in[0]):
                raise Problem("forbidden", "expected a form of this session; open its page again")
            context = self._context(request, *signed_in)
            try:
                return await form.act(context, fields)
            except FormRefused as error:
                refused = Refused(context.link(), fields, error.problem)
            query = {name: fields.get(name, "") for name in form.query}
            context.refuse(form.page_of(context), query, refused)
            return await form.view(context)

        return act

    def _session_routes(self) -> list[HTTPRouteHandler]:
        @get("/login")
        async def login(request: AnyRequest) -> Response[bytes]:
            return self._login_page(request.query_params.get("next", ""))

        @post("/login", audit="console.sign_in", audits_attempt=True)
        async def sign_in(request: AnyRequest) -> Response[bytes]:
            if request.headers.get("sec-fetch-site") == "cross-site":
                # Another site could sign a browser in with its own key, and watch what is done.
                raise Problem("forbidden", "expected the form of this console; open /console/login")
            form = await _form_of(request)
            target = form.get("next", "")
            key = form.get("key", "")
            caller = await self._sign_in.find(key)
            if caller is None or KeyScope.SYSTEM_READ not in caller.scopes:
                if key:
                    refuse(request, key_id("admin", key))
                self._record_refusal(request.scope, "unauthorized")
                return self._login_page(target, notice="wrong")
            accept(request, caller.key_id)
            admit(request.scope, caller)
            _LOG.info("signed in to the console: request_id=%s", request_id_of(request.scope))
            answer = redirect(_within_console(target))
            cookie = self._sessions.new_cookie(caller, text=key)
            answer.set_cookie(_cookie(request, cookie, SESSION_S))
            return answer

        @post("/logout", audit="console.sign_out", audits_attempt=True)
        async def sign_out(request: AnyRequest) -> Response[bytes]:
            answer = redirect(f"{BASE}/login")
            form = await _form_of(request)
            cookie, caller = self._signed_in(request) or ("", None)
            if caller and self._sessions.is_form_token(form.get("token", ""), cookie):
                admit(request.scope, caller)
                answer.set_cookie(_cookie(request, "", 0))
            return answer

        return [login, sign_in, sign_out]

    def _oidc_routes(self, oidc: OidcSignIn) -> list[HTTPRouteHandler]:
        """Return the routes of the sign-in with an OpenID provider."""

        @get("/oidc/login")
        async def begin(request: AnyRequest) -> Response[bytes]:
            target = _within_console(request.query_params.get("next", ""))
            try:
                pending, url = await oidc.begin(target)
            except SignInRefused as error:
                return self._login_page(target, notice="provider", reason=str(error), status=503)
            answer = redirect(url)
            # The provider leads back here from its own site, so the cookie cannot be strict.
            cookie = self._sessions.signed(pending)
            answer.set_cookie(_cookie(request, cookie, PENDING_S, PENDING_COOKIE, "lax"))
            return answer

        @get("/oidc/callback", audit="console.sign_in", audits_attempt=True)
        async def finish(request: AnyRequest) -> Response[bytes]:
            pending = self._sessions.read(request.cookies.get(PENDING_COOKIE, ""), Pending)
            try:
                person = await oidc.finish(pending, dict(request.query_params))
            except KeysUnavailable:
                reason = "the keys of the provider could not be read; try again"
                return self._login_page("", notice="provider", reason=reason, status=503)
            except SignInRefused as error:
                _LOG.warning("sign-in refused: %s (%s)", error, error.subject or "unknown")
                refuse(request, f"oidc:{error.subject or 'unknown'}")
                self._record_refusal(request.scope, "unauthorized")
                return self._login_page("", notice="provider", reason=str(error))
            caller = Caller(f"oidc:{person.subject}", frozenset(), name=person.name)
            admit(request.scope, caller)
            # Not a redirect: it would belong to the navigation that began at the provider, for
            # which browsers send no strict cookies.
            target = "" if pending is None else pending.target
            answer = page("signed_in.html", target=target)
            answer.headers["refresh"] = f"0; url={target}"
            cookie = self._sessions.new_cookie(caller, person.role)
            answer.set_cookie(_cookie(request, cookie, oidc.session_s))
            answer.set_cookie(_cookie(request, "", 0, PENDING_COOKIE, "lax"))
            return answer

        return [begin, finish]

    def _signed_in(self, request: AnyRequest) -> tuple[str, Caller] | None:
        """Return the cookie of a session that has not ended, and whose it is."""
        cookie = request.cookies.get(COOKIE, "")
        caller = self._sessions.caller(cookie)
        return None if caller is None else (cookie, caller)

    def _context(self, request: AnyRequest, cookie: str, caller: Caller) -> PageContext:
        token = self._sessions.form_token(cookie)
        api = ApiClient(request, caller, self._keys)
        return PageContext(request, api, token=token, now_ms=self._clock())

    def _login_page(
        self, target: str, *, notice: str = "", reason: str = "", status: int = 401
    ) -> Response[bytes]:
        development_key = DEVELOPMENT_SECRETS["admin_key"]
        hint = development_key if self._keys.admin == development_key else ""
        rendered = page(
            "login.html",
            status if notice else 200,
            notice=notice,
            reason=reason,
            next=_within_console(target),
            hint=hint,
            oidc=self._oidc is not None,
        )
        if notice:
            rendered.headers["www-authenticate"] = "Bearer"
        return rendered


def _within_console(target: str) -> str:
    """Return the address after signing in: the target if it is in the console, else its start."""
    # The prefix excludes other hosts. Quoting excludes line ends, which would end the header.
    is_in_console = target == BASE or target.startswith((f"{BASE}/", f"{BASE}?"))
    return quote(target, safe="/?&=%+@:,") if is_in_console else BASE


def _cookie(
    request: AnyRequest,
    value: str,
    seconds: int,
    name: str = COOKIE,
    samesite: Literal["strict", "lax"] = "strict",
) -> Cookie:
    # A client that forges this header affects only its own cookie.
    https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
    return Cookie(
        name, BASE, value, max_age=seconds, secure=https, httponly=True, samesite=samesite
    )


async def _form_of(request: AnyRequest) -> dict[str, str]:
    """Return the fields of a form."""
    return dict(parse_qsl((await request.body()).decode(errors="replace"), keep_blank_values=True))


def _asset(name: str) -> HTTPRouteHandler:
    media_type, content = ASSETS[name]

    @get(f"/{name}", sync_to_thread=False)
    def asset() -> Response[bytes]:
        headers = {"cache-control": f"public, max-age={_CACHE_S}"}
        return Response(content, media_type=media_type, headers=headers)

    return asset


async def _not_found(context: PageContext) -> Response[bytes]:
    """Page of an address that the console does not have."""
    return context.render("not_found.html", "-", 404, live=False)


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
