"""What the buttons do: each asks the API for one change, and leads back to the page it is about."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response

from headwater.gateway.console.page_context import BASE, PageContext
from headwater.gateway.console.rendering import redirect
from headwater.gateway.console.views import instance_path
from headwater.gateway.http.problems import Problem
from headwater.gateway.paths import path
from headwater.schemas.errors import PARSE_ERRORS

#: What is done to an instance by its name alone.
_STEERING: Final = frozenset({"pause", "resume", "terminate", "cancel", "restart", "retry"})
_WITH_REASON: Final = frozenset({"terminate", "cancel"})


async def _done(
    context: PageContext, done: str, url: str, body: Mapping[str, Any], back: str, **headers: str
) -> Response[bytes]:
    """Asks for a change; back to the page, which says that it is done, or one that says why not."""
    found = await context.api.post(url, body, **headers)
    if not found.ok:
        return context.show("problem.html", back.split("/")[1], found=found, back=f"{BASE}{back}")
    return redirect(f"{BASE}{back}{'&' if '?' in back else '?'}done={done}")


async def change_instance(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Pauses, resumes, ends, restarts or retries an instance, or sends it an event."""
    verb = context.named("verb")
    headers = {}
    body: dict[str, Any] = {}
    if verb == "events":
        body = {"type": form.get("type", ""), "payload": _json("payload", form.get("payload", ""))}
        # The form's own key: whoever presses twice sends one event.
        headers = {"idempotency_key": form.get("key", "")}
    elif verb in _WITH_REASON and form.get("reason"):
        body = {"reason": form["reason"]}
    elif verb not in _STEERING:
        raise Problem("not_found", f"expected one of {', '.join(sorted(_STEERING))}")
    back = path("instances", context.named("workflow"), context.named("instance"))
    url = f"{instance_path(context)}/{verb}"
    return await _done(context, verb, url, body, back, **headers)


def _json(field: str, text: str) -> msgspec.Raw:
    """What a field holds as JSON, as it was typed.

    Errors: Problem.
    """
    try:
        msgspec.json.decode(text or "null")
    except PARSE_ERRORS as error:
        detail = f'{field}: expected JSON, as {{"by": "amara"}}, "text" or 3; found: {error}'
        raise Problem("invalid_parameter", detail, field=field) from error
    return msgspec.Raw((text or "null").encode())


async def replay_delivery(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Has a delivery processed once more."""
    named = context.named("named")
    url = path("admin", "raw-events", named) + "/replay"
    return await _done(context, "replay", url, {}, path("deliveries", named))


async def replay_dead_letter(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Puts one dead letter back."""
    partition, offset = context.named("partition"), context.named("offset")
    place = {"partition": int(partition), "offset": int(offset)}
    return await _replayed(context, {"positions": [place]}, "")


async def replay_dead_letters(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Puts back those that never were, of one reason or all: a page of them at a time."""
    body: dict[str, Any] = {"all": True}
    reason = form.get("reason", "")
    if reason:
        body["reason"] = reason
    if form.get("after"):
        body["after"] = _json("after", form["after"])
    return await _replayed(context, body, reason)


async def _replayed(context: PageContext, body: Mapping[str, Any], reason: str) -> Response[bytes]:
    found = await context.api.post("/admin/dlq/replay", body)
    return context.show("replayed.html", "dead-letters", found=found, reason=reason)


async def drain(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Looks again at the deliveries of a user that wait, or at all that do."""
    user_id = form.get("user_id", "")
    body = {"limit": 1000, **({"user_id": user_id} if user_id else {})}
    back = f"/users?{urlencode({'user_id': user_id})}" if user_id else "/dead-letters?state=parked"
    return await _done(context, "drain", "/admin/drain", body, back)


async def activate(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Has new runs begin on a deployment, unless another was activated since the page was made."""
    url = path("v1", "deployments", context.named("deployment")) + "/activate"
    return await _done(context, "activate", url, {}, "/deployments", if_match=_replaced(form))


async def roll_back(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Goes back to the deployment before, unless another was activated since."""
    url = "/v1/deployments/rollback"
    return await _done(context, "rollback", url, {}, "/deployments", if_match=_replaced(form))


def _replaced(form: Mapping[str, str]) -> str:
    """The deployment that the page has shown as active, as an ETag."""
    return f'"{form.get("replaces") or "none"}"'
