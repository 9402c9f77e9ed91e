"""Actions of the forms: one request that changes something, then a redirect to its page."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response

from headwater.gateway.api.console.page_context import BASE, PageContext
from headwater.gateway.api.console.rendering import redirect
from headwater.gateway.api.console.views import instance_path
from headwater.gateway.api.problems import Problem
from headwater.gateway.client.paths import path
from headwater.schemas.errors import PARSE_ERRORS

#: Lifecycle actions of an instance; their names are those of the API's routes.
_LIFECYCLE: Final = frozenset({"pause", "resume", "terminate", "cancel", "restart", "retry"})
_WITH_REASON: Final = frozenset({"terminate", "cancel"})


async def _change(
    context: PageContext, done: str, url: str, body: Mapping[str, Any], back: str, **headers: str
) -> Response[bytes]:
    """Send a change to the API; redirect to a page that confirms it, or render the problem."""
    response = await context.api.post(url, body, **headers)
    if not response.ok:
        return context.render(
            "problem.html", back.split("/")[1], response=response, back=f"{BASE}{back}"
        )
    return redirect(f"{BASE}{back}{'&' if '?' in back else '?'}done={done}")


async def change_instance(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Pause, resume, end, restart or retry an instance, or send an event to it."""
    action = context.path_value("action")
    headers = {}
    body: dict[str, Any] = {}
    if action == "events":
        body = {"type": form.get("type", ""), "payload": _json("payload", form.get("payload", ""))}
        # The key of the form: a double click sends one event.
        headers = {"idempotency_key": form.get("key", "")}
    elif action in _WITH_REASON and form.get("reason"):
        body = {"reason": form["reason"]}
    elif action not in _LIFECYCLE:
        raise Problem("not_found", f"expected one of {', '.join(sorted(_LIFECYCLE))}")
    back = path("instances", context.path_value("workflow"), context.path_value("instance"))
    url = f"{instance_path(context)}/{action}"
    return await _change(context, action, url, body, back, **headers)


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


async def activate(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Activate a deployment, unless another was activated since the page was rendered."""
    url = path("v1", "deployments", context.path_value("deployment")) + "/activate"
    return await _change(
        context, "activate", url, {}, "/deployments", if_match=_expected_active(form)
    )


async def roll_back(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Activate the previous deployment, unless another was activated in between."""
    url = "/v1/deployments/rollback"
    return await _change(
        context, "rollback", url, {}, "/deployments", if_match=_expected_active(form)
    )


def _expected_active(form: Mapping[str, str]) -> str:
    """Return the deployment that the page showed as active, as an ETag."""
    return f'"{form.get("replaces") or "none"}"'
