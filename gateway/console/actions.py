"""What the buttons do: each asks the API for one change, and leads back to the page it is about."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response

from headwater.gateway.console.desk import BASE, Desk
from headwater.gateway.console.rendering import redirect
from headwater.gateway.console.views import instance_path
from headwater.gateway.http.problems import Problem
from headwater.gateway.paths import path
from headwater.schemas.errors import PARSE_ERRORS

#: What is done to an instance by its name alone.
_STEERING: Final = frozenset({"pause", "resume", "terminate", "cancel", "restart", "retry"})
_WITH_REASON: Final = frozenset({"terminate", "cancel"})


async def _done(
    desk: Desk, done: str, url: str, body: Mapping[str, Any], back: str, **headers: str
) -> Response[bytes]:
    """Asks for a change; back to the page, which says that it is done, or one that says why not."""
    found = await desk.api.post(url, body, **headers)
    if not found.ok:
        return desk.show("problem.html", back.split("/")[1], found=found, back=f"{BASE}{back}")
    return redirect(f"{BASE}{back}{'&' if '?' in back else '?'}done={done}")


async def change_instance(desk: Desk, form: Mapping[str, str]) -> Response[bytes]:
    """Pauses, resumes, ends, restarts or retries an instance, or sends it an event."""
    verb = desk.named("verb")
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
    back = path("instances", desk.named("workflow"), desk.named("instance"))
    url = f"{instance_path(desk)}/{verb}"
    return await _done(desk, verb, url, body, back, **headers)


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


async def replay_delivery(desk: Desk, _form: Mapping[str, str]) -> Response[bytes]:
    """Has a delivery processed once more."""
    named = desk.named("named")
    url = path("admin", "raw-events", named) + "/replay"
    return await _done(desk, "replay", url, {}, path("deliveries", named))


async def replay_dead_letter(desk: Desk, _form: Mapping[str, str]) -> Response[bytes]:
    """Puts one dead letter back."""
    partition, offset = desk.named("partition"), desk.named("offset")
    place = {"partition": int(partition), "offset": int(offset)}
    return await _replayed(desk, {"positions": [place]}, "")


async def replay_dead_letters(desk: Desk, form: Mapping[str, str]) -> Response[bytes]:
    """Puts back those that never were, of one reason or all: a page of them at a time."""
    body: dict[str, Any] = {"all": True}
    reason = form.get("reason", "")
    if reason:
        body["reason"] = reason
    if form.get("after"):
        body["after"] = _json("after", form["after"])
    return await _replayed(desk, body, reason)


async def _replayed(desk: Desk, body: Mapping[str, Any], reason: str) -> Response[bytes]:
    found = await desk.api.post("/admin/dlq/replay", body)
    return desk.show("replayed.html", "dead-letters", found=found, reason=reason)


async def drain(desk: Desk, form: Mapping[str, str]) -> Response[bytes]:
    """Looks again at the deliveries of a user that wait, or at all that do."""
    user_id = form.get("user_id", "")
    body = {"limit": 1000, **({"user_id": user_id} if user_id else {})}
    back = f"/users?{urlencode({'user_id': user_id})}" if user_id else "/dead-letters?state=parked"
    return await _done(desk, "drain", "/admin/drain", body, back)


async def activate(desk: Desk, form: Mapping[str, str]) -> Response[bytes]:
    """Has new runs begin on a deployment, unless another was activated since the page was made."""
    url = path("v1", "deployments", desk.named("deployment")) + "/activate"
    return await _done(desk, "activate", url, {}, "/deployments", if_match=_replaced(form))


async def roll_back(desk: Desk, form: Mapping[str, str]) -> Response[bytes]:
    """Goes back to the deployment before, unless another was activated since."""
    url = "/v1/deployments/rollback"
    return await _done(desk, "rollback", url, {}, "/deployments", if_match=_replaced(form))


def _replaced(form: Mapping[str, str]) -> str:
    """The deployment that the page has shown as active, as an ETag."""
    return f'"{form.get("replaces") or "none"}"'
