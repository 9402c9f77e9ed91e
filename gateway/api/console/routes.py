"""Routes of the console: pages, actions of forms, and sessions."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from litestar import Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.types import ExceptionHandlersMap, Middleware, Scope

from headwater.gateway.api.authentication import Caller, accept, admit, key_id, refuse
from headwater.gateway.api.console import views
from headwater.gateway.api.console.api_client import ApiClient, ApiResponse, ConsoleKeys
from headwater.gateway.api.console.oidc import (
    PENDING_S,
    OidcSignIn,
    Pending,
    SignInRefused,
)
from headwater.gateway.api.console.rendering import BASE, STYLE, PageContext, page, redirect
from headwater.gateway.api.console.sessions import SESSION_S, Sessions, SignIn
from headwater.gateway.api.console.views import instance_path
from headwater.gateway.api.problems import CODES, Problem, retry_headers
from headwater.gateway.api.request_scope import AnyRequest, request_id_of
from headwater.gateway.client.requests import EmptyName, path
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS
from headwater.processors.api_keys import Scope as KeyScope
from headwater.processors.runs.lifecycle import ACTIONS
from headwater.schemas.errors import PARSE_ERRORS

COOKIE: Final = "headwater_console"
#: Cookie of a sign-in with a provider that was begun.
PENDING_COOKIE: Final = "headwater_oidc"
#: Digits of a number of days.
_DAYS_DIGITS_MAX: Final = 4


# -- actions: one request that changes something, then a redirect to its page

_ACTION_BY_NAME: Final = {action.name: action for action in ACTIONS}


async def _change(
    context: PageContext, done: str, url: str, body: Mapping[str, Any], back: str, **headers: str
) -> Response[bytes]:
    """Send a change to the API; redirect to a page that confirms it, or render the problem."""
    response = await context.api.post(url, body, **headers)
    return _redirect(context, response, done, back)


def _redirect(context: PageContext, response: ApiResponse, done: str, back: str) -> Response[bytes]:
    if not response.ok:
        return context.render(
            "problem.html", back.split("/")[1], response=response, back=f"{BASE}{back}"
        )
    return redirect(f"{BASE}{back}{'&' if '?' in back else '?'}done={done}")


async def change_instance(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Pause, resume, end, restart or retry an instance, or send an event to it."""
    name = context.path_value("action")
    action = _ACTION_BY_NAME.get(name)
    headers = {}
    body: dict[str, Any] = {}
    if name == "events":
        body = {"type": form.get("type", ""), "payload": _json("payload", form.get("payload", ""))}
        # The key of the form: a double click sends one event.
        headers = {"idempotency_key": form.get("key", "")}
    elif action is None:
        raise Problem("not_found", f"expected one of {', '.join(sorted(_ACTION_BY_NAME))}")
    elif "reason" in action.arguments and form.get("reason"):
        body = {"reason": form["reason"]}
    back = path("instances", context.path_value("workflow"), context.path_value("instance"))
    url = f"{instance_path(context)}/{name}"
    return await _change(context, name, url, body, back, **headers)


def _json(field: str, text: str) -> msgspec.Raw:
    """Return the JSON text of a field, unchanged.

    Raises:
        Problem: The text is not JSON.
    """
    try:
        msgspec.json.decode(text or "null")
    except PARSE_ERRORS as error:
        detail = f'{field}: expected JSON, as {{"by": "amara"}}, "text" or 3; found: {error}'
        raise Problem("invalid_parameter", detail, field=field) from error
    return msgspec.Raw((text or "null").encode())


async def reprocess_delivery(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Reprocess a delivery."""
    reference = context.path_value("reference")
    url = path("admin", "raw-events", reference) + "/replay"
    return await _change(context, "replay", url, {}, path("deliveries", reference))


async def reprocess_dead_letter(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Reprocess one dead letter."""
    partition, offset = context.path_value("partition"), context.path_value("offset")
    position = {"partition": int(partition), "offset": int(offset)}
    return await _reprocess(context, {"positions": [position]}, "")


async def reprocess_dead_letters(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Reprocess a page of the dead letters that never were, with one reason or any."""
    body: dict[str, Any] = {"all": True}
    reason = form.get("reason", "")
    if reason:
        body["reason"] = reason
    if form.get("after"):
        body["after"] = _json("after", form["after"])
    return await _reprocess(context, body, reason)


async def _reprocess(context: PageContext, body: Mapping[str, Any], reason: str) -> Response[bytes]:
    response = await context.api.post("/admin/dlq/replay", body)
    return context.render("reprocessed.html", "dead-letters", response=response, reason=reason)


async def drain(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Check the parked deliveries of one user again, or all of them."""
    user_id = form.get("user_id", "")
    body = {"limit": 1000, **({"user_id": user_id} if user_id else {})}
    back = f"/users?{urlencode({'user_id': user_id})}" if user_id else "/dead-letters?state=parked"
    return await _change(context, "drain", "/admin/drain", body, back)


#: Operations for one user, by the name of their route.
_USER_OPERATIONS: Final = frozenset({"import", "reconcile", "disconnect"})


async def operate_for_user(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Import past days of a user, compare the user's connections with Terra, or end them."""
    name, user_id = context.path_value("operation"), form.get("user_id", "")
    if name not in _USER_OPERATIONS:
        raise Problem("not_found", f"expected one of {', '.join(sorted(_USER_OPERATIONS))}")
    body = {"days": _json("days", form.get("days", ""))} if name == "import" else {}
    back = f"/users?{urlencode({'user_id': user_id})}"
    return await _change(context, name, path("admin", "user", user_id, name), body, back)


async def activate(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Activate a deployment, unless another was activated since the page was rendered."""
    url = path("v1", "deployments", context.path_value("deployment")) + "/activate"
    body = {"percent": _json("percent", form["percent"])} if form.get("percent") else {}
    done = "share" if body else "activate"
    return await _change(context, done, url, body, "/deployments", if_match=_expected_active(form))


async def remove(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Remove a deployment on which no run is open."""
    response = await context.api.delete(path("v1", "deployments", context.path_value("deployment")))
    return _redirect(context, response, "remove", "/deployments")


async def roll_back(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Activate the previous deployment, unless another was activated in between."""
    url = "/v1/deployments/rollback"
    return await _change(
        context, "rollback", url, {}, "/deployments", if_match=_expected_active(form)
    )


async def create_key(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Create an API key, and show its text once."""
    days = form.get("days", "")
    if days and not (days.isdecimal() and len(days) <= _DAYS_DIGITS_MAX):
        raise Problem("invalid_parameter", f"days: expected a number, found {days[:20]!r}")
    body = {
        "name": form.get("name", ""),
        "role": form.get("role"),
        "scopes": form.get("scopes", "").split(),
        "expiresAt": (context.now + timedelta(days=int(days))).isoformat() if days else None,
    }
    given = {name: value for name, value in body.items() if value}
    response = await context.api.post("/v1/keys", given)
    return context.render("key_shown.html", "keys", response=response)


async def rotate_key(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Rotate an API key, and show its new text once."""
    response = await context.api.post(path("v1", "keys", context.path_value("key")) + "/rotate")
    return context.render("key_shown.html", "keys", response=response)


async def revoke_key(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Revoke an API key."""
    url = path("v1", "keys", context.path_value("key")) + "/revoke"
    return await _change(context, "revoke", url, {}, "/keys")


def _expected_active(form: Mapping[str, str]) -> str:
    """Return the deployment that the page showed as active, as an ETag."""
    return f'"{form.get("replaces") or "none"}"'


# -- routes

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
    "/quality": views.quality,
    "/users": views.users,
    "/why": views.why,
    "/audit": views.audit,
    "/auditor": views.auditor,
    "/keys": views.keys,
}
_FORMS: Final[Mapping[str, Action]] = {
    "/deliveries/{reference:str}/replay": reprocess_delivery,
    "/dead-letters/replay": reprocess_dead_letters,
    "/dead-letters/{partition:int}/{offset:int}/replay": reprocess_dead_letter,
    "/instances/{workflow:str}/{instance:str}/{action:str}": change_instance,
    "/deployments/{deployment:str}/activate": activate,
    "/deployments/{deployment:str}/remove": remove,
    "/deployments/rollback": roll_back,
    "/drain": drain,
    "/keys": create_key,
    "/keys/{key:str}/rotate": rotate_key,
    "/keys/{key:str}/revoke": revoke_key,
    "/users/{operation:str}": operate_for_user,
}
#: Seconds that browsers cache the style sheet; its address changes with its content.
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
        self._sessions = Sessions(keys.admin, sign_in, clock, has_people=oidc is not None)
        self._record_refusal = record_refusal
        self._bodies = bodies
        self._oidc = oidc

    def router(self) -> Router:
        """Return the router."""
        return Router(
            BASE,
            route_handlers=[
                *(self._page(path, view) for path, view in _PAGES.items()),
                *(self._form(path, action) for path, action in _FORMS.items()),
                *self._session_routes(),
                *([] if self._oidc is None else self._oidc_routes(self._oidc)),
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
            signed_in = self._signed_in(request)
            if signed_in is None:
                query = request.scope["query_string"].decode("latin-1")
                here = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
                target = quote(f"{here}?{query}" if query else here)
                return redirect(f"{BASE}/login?next={target}")
            return await view(self._context(request, *signed_in))

        return show

    def _form(self, path: str, action: Action) -> HTTPRouteHandler:
        @post(path)
        async def act(request: AnyRequest) -> Response[bytes]:
            signed_in = self._signed_in(request)
            if signed_in is None:
                return self._login_page(BASE, notice="ended")
            form = await _form_of(request)
            if not self._sessions.is_form_token(form.get("token", ""), signed_in[0]):
                raise Problem("forbidden", "expected a form of this session; open its page again")
            return await action(self._context(request, *signed_in), form)

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
            answer.set_cookie(_cookie(request, cookie, SESSION_S))
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
