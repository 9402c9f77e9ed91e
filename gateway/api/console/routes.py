"""Routes of the console: pages, actions of forms, and sessions."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from hmac import new as keyed
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from litestar import Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.types import ExceptionHandlersMap, Middleware, Scope

from headwater.gateway.api.authentication import admit, check_key, key_id
from headwater.gateway.api.console import views
from headwater.gateway.api.console.api_client import ApiClient, ApiResponse, ConsoleKeys
from headwater.gateway.api.console.rendering import BASE, STYLE, PageContext, page, redirect
from headwater.gateway.api.console.views import instance_path
from headwater.gateway.api.problems import CODES, Problem, retry_headers
from headwater.gateway.api.request_scope import AnyRequest, request_id_of
from headwater.gateway.client.requests import EmptyName, path
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS
from headwater.processors.runs.lifecycle import ACTIONS
from headwater.schemas.errors import PARSE_ERRORS

COOKIE: Final = "headwater_console"
#: Seconds of a session: a working day, but not until the next morning.
SESSION_S: Final = 12 * 60 * 60
#: Unix milliseconds have 13 digits until the year 2286; a longer number is not parsed.
_DIGITS_MAX: Final = 16


class Sessions:
    """Creates and verifies sessions.

    The signing key is derived from the admin key, and no state is stored. So gateways with the same
    admin key accept each other's sessions, and a changed key ends all sessions. Signing out deletes
    the cookie.

    Args:
        operators_key: The admin key.
        clock: Returns Unix milliseconds.
    """

    def __init__(self, operators_key: str, clock: Callable[[], int]) -> None:
        self._operators_key = operators_key.encode()
        self._key = keyed(self._operators_key, b"headwater console session", sha256).digest()
        self._clock = clock

    def is_operators_key(self, key: str) -> bool:
        """Whether this is the admin key."""
        return compare_digest(key.encode(errors="replace"), self._operators_key)

    def new_cookie(self) -> str:
        """Return the cookie of a new session."""
        until = str(self._clock() + SESSION_S * 1000)
        return f"{until}.{self._signature('until', until)}"

    def is_valid(self, cookie: str) -> bool:
        """Whether a cookie has a valid signature and its session has not expired."""
        until, _, signature = cookie.partition(".")
        if not self._equal(signature, self._signature("until", until)):
            return False
        return until.isdecimal() and len(until) <= _DIGITS_MAX and int(until) > self._clock()

    def form_token(self, cookie: str) -> str:
        """Return the CSRF token of a session's forms."""
        return self._signature("form", cookie)

    def is_form_token(self, token: str, cookie: str) -> bool:
        """Whether a token is that of a session's forms."""
        return self._equal(token, self.form_token(cookie))

    def _signature(self, kind: str, text: str) -> str:
        return keyed(self._key, f"{kind}:{text}".encode(errors="replace"), sha256).hexdigest()

    @staticmethod
    def _equal(received: str, expected: str) -> bool:
        return compare_digest(received.encode(errors="replace"), expected.encode())


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
    "/users/{operation:str}": operate_for_user,
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

        @post("/login", audit="console.sign_in", audits_attempt=True)
        async def sign_in(request: AnyRequest) -> Response[bytes]:
            form = await _form_of(request)
            target = form.get("next", "")
            key = form.get("key", "")
            is_right = self._sessions.is_operators_key(key)
            check_key(request, "admin", key, right=is_right)
            if not is_right:
                self._record_refusal(request.scope, "unauthorized")
                return self._login_page(target, notice="wrong")
            admit(request.scope, key_id("admin", key))
            _LOG.info("signed in to the console: request_id=%s", request_id_of(request.scope))
            answer = redirect(_within_console(target))
            answer.set_cookie(_cookie(request, self._sessions.new_cookie(), SESSION_S))
            return answer

        @post("/logout", audit="console.sign_out", audits_attempt=True)
        async def sign_out(request: AnyRequest) -> Response[bytes]:
            answer = redirect(f"{BASE}/login")
            form = await _form_of(request)
            if self._sessions.is_form_token(form.get("token", ""), self._session(request) or ""):
                admit(request.scope, key_id("admin", self._keys.admin))
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
