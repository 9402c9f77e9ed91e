"""Actions of forms: one request to the API that changes something, then a redirect to its page."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from litestar import Response
from litestar.datastructures import Cookie

from headwater.gateway.api.console import overview, views, workflow_views
from headwater.gateway.api.console.api_client import ApiResponse
from headwater.gateway.api.console.page_context import SEEN_COOKIE, FormRefused, PageContext
from headwater.gateway.api.console.rendering import BASE, redirect
from headwater.gateway.api.console.workflow_views import instance_path
from headwater.gateway.api.problems import CODES, Problem
from headwater.gateway.client.requests import path
from headwater.processors.runs.lifecycle import ACTIONS, RETRY
from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.replay_answers import ReplayReport, report_lines

Action: TypeAlias = Callable[[PageContext, Mapping[str, str]], Awaitable[Response[bytes]]]
View: TypeAlias = Callable[[PageContext], Awaitable[Response[bytes]]]

#: Digits of a number of days.
_DAYS_DIGITS_MAX: Final = 4
_ACTION_BY_NAME: Final = {action.name: action for action in ACTIONS}
#: Pages of a bulk change that one request of a browser makes: 1000 instances.
_BULK_PAGES: Final = 10
#: How often the outcome of a reprocessed delivery is read, and the seconds in between.
_OUTCOME_POLLS: Final = 30
_OUTCOME_GAP_S: Final = 0.1
#: Seconds for which the browser remembers what was seen: a year.
_SEEN_S: Final = 365 * 86_400


async def _change(
    context: PageContext, done: str, url: str, body: Mapping[str, Any], back: str, **headers: str
) -> Response[bytes]:
    """Send a change to the API; redirect to a page that confirms it.

    Raises:
        FormRefused: The API refused it.
    """
    return _redirect(await context.api.post(url, body, **headers), done, back)


def _redirect(response: ApiResponse, done: str, back: str) -> Response[bytes]:
    if not response.ok:
        raise FormRefused({"status": response.answer.status, **response.problem})
    return redirect(f"{BASE}{back}{'&' if '?' in back else '?'}done={done}")


def _json(field: str, text: str) -> msgspec.Raw:
    """Return the JSON text of a field, unchanged.

    Raises:
        FormRefused: The text is not JSON.
    """
    try:
        msgspec.json.decode(text or "null")
    except PARSE_ERRORS as error:
        detail = f'{field}: expected JSON, as {{"by": "amara"}}, "text" or 3; found: {error}'
        raise _mistake(field, detail) from error
    return msgspec.Raw((text or "null").encode())


def _mistake(field: str, detail: str) -> FormRefused:
    status, title = CODES["invalid_parameter"]
    code = "invalid_parameter"
    return FormRefused(
        {"title": title, "status": status, "detail": detail, "code": code, "field": field}
    )


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


async def start_instance(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Create an instance of a workflow."""
    workflow = context.path_value("workflow")
    body: dict[str, Any] = {"params": _json("params", form.get("params", ""))}
    if form.get("id"):
        body["id"] = form["id"]
    labels = dict(_label(pair) for pair in form.get("labels", "").split())
    if labels:
        body["labels"] = labels
    url = path("api", "workflows", "workflows", workflow, "instances")
    response = await context.api.post(url, body, idempotency_key=form.get("key", ""))
    if not response.ok:
        return _redirect(response, "start", "")
    # Without a worker, the command is only stored.
    created = response.data.get("id") or response.data["accepted"][0]["id"]
    return _redirect(response, "start", path("instances", workflow, created))


def _label(pair: str) -> tuple[str, str]:
    name, separator, value = pair.partition("=")
    if not separator:
        raise _mistake("labels", f"labels: expected name=value, found {pair[:60]!r}")
    return name, value


async def retry_instances(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Retry errored instances of a workflow that have the same error, a thousand at a time."""
    workflow, error = form.get("workflow", ""), form.get("error", "")
    rows, cursor = await _retry_pages(context, workflow, error, form.get("cursor", ""))
    refused = [row for row in rows if row.get("code")]
    return context.render(
        "retried.html",
        "failures",
        workflow=workflow,
        error=error,
        retried=len(rows) - len(refused),
        refused=refused,
        cursor=cursor,
    )


async def _retry_pages(
    context: PageContext, workflow: str, error: str, cursor: str
) -> tuple[list[Mapping[str, Any]], str]:
    """Retry pages of instances; return what became of each, and the cursor of the next page.

    Raises:
        FormRefused: The first page was refused. A later one that fails is the next page.
    """
    url = path("api", "workflows", "workflows", workflow, "bulk")
    body = {"action": RETRY.name, "status": "errored", **({"errorName": error} if error else {})}
    rows = list[Mapping[str, Any]]()
    for page in range(_BULK_PAGES):
        response = await context.api.post(url, {**body, "cursor": cursor} if cursor else body)
        if not response.ok:
            if page:
                break
            raise FormRefused({"status": response.answer.status, **response.problem})
        # Without a worker, commands are only stored.
        rows += response.data.get("instances") or response.data.get("accepted") or []
        cursor = response.data.get("cursor") or ""
        if not cursor:
            break
    return rows, cursor


async def mark_seen(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Remember in the browser until when failures were seen."""
    answer = redirect(f"{BASE}?done=seen")
    seen = context.since(timedelta())
    answer.set_cookie(
        Cookie(SEEN_COOKIE, BASE, seen, max_age=_SEEN_S, httponly=True, samesite="strict")
    )
    return answer


async def reprocess_delivery(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Reprocess a delivery."""
    reference = context.path_value("reference")
    url = path("admin", "raw-events", reference) + "/replay"
    return await _change(context, "replay", url, {}, path("deliveries", reference))


async def reprocess_dead_letter(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Reprocess one dead letter, and show what its delivery came to."""
    partition, offset = context.path_value("partition"), context.path_value("offset")
    position = {"partition": int(partition), "offset": int(offset)}
    event_id = form.get("event_id", "")
    before = await _outcome(context, event_id)
    response = await context.api.post("/admin/dlq/replay", {"positions": [position]})
    outcome = None
    if response.ok and response.data["replayed"] and before is not None:
        outcome = await _next_outcome(context, event_id, before)
    return context.render(
        "reprocessed.html",
        "dead-letters",
        response=response,
        reason="",
        event_id=event_id,
        outcome=outcome,
        waits=before is not None,
    )


async def _outcome(context: PageContext, event_id: str) -> Mapping[str, Any] | None:
    if not event_id:
        return None
    response = await context.api.get(path("admin", "outcomes", event_id))
    outcome: Mapping[str, Any] | None = response.data if response.ok else None
    return outcome


async def _next_outcome(
    context: PageContext, event_id: str, before: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the outcome after another one; None if there is none within some seconds."""
    for _ in range(_OUTCOME_POLLS):
        commands = len(context.api.curl_commands)
        outcome = await _outcome(context, event_id)
        # The page lists the request once.
        del context.api.curl_commands[commands:]
        if outcome is not None and outcome["at"] != before["at"]:
            return outcome
        await asyncio.sleep(_OUTCOME_GAP_S)
    return None


async def reprocess_dead_letters(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Reprocess a page of the dead letters that never were, with one reason or any."""
    body: dict[str, Any] = {"all": True}
    reason = form.get("reason", "")
    if reason:
        body["reason"] = reason
    if form.get("after"):
        body["after"] = _json("after", form["after"])
    response = await context.api.post("/admin/dlq/replay", body)
    return context.render(
        "reprocessed.html", "dead-letters", response=response, reason=reason, event_id=""
    )


async def drain(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Check the parked deliveries of one user again, or all of them."""
    user_id = form.get("user_id", "")
    body = {"limit": 1000, **({"user_id": user_id} if user_id else {})}
    back = views.user_address(user_id) if user_id else "/dead-letters?state=parked"
    return await _change(context, "drain", "/admin/drain", body, back)


#: Operations for one user, by the name of their route.
_USER_OPERATIONS: Final = frozenset({"import", "reconcile", "disconnect", "wipe"})


async def operate_for_user(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Import past days of a user, compare or end the user's connections, or wipe the user."""
    name, user_id = context.path_value("operation"), form.get("user_id", "")
    if name not in _USER_OPERATIONS:
        raise Problem("not_found", f"expected one of {', '.join(sorted(_USER_OPERATIONS))}")
    if name == "wipe" and form.get("confirm") != user_id:
        raise _mistake("confirm", "Nothing was deleted: enter the id of the user to confirm.")
    body = {"days": _json("days", form.get("days", ""))} if name == "import" else {}
    back = views.user_address(user_id)
    return await _change(context, name, path("admin", "user", user_id, name), body, back)


async def activate(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Activate a deployment, unless another was activated since the page was rendered."""
    url = path("v1", "deployments", context.path_value("deployment")) + "/activate"
    body = {"percent": _json("percent", form["percent"])} if form.get("percent") else {}
    return await _activate(context, "share" if body else "activate", url, body, form)


async def remove(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Remove a deployment on which no run is open."""
    response = await context.api.delete(path("v1", "deployments", context.path_value("deployment")))
    return _redirect(response, "remove", "/deployments")


async def roll_back(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Activate the previous deployment, unless another was activated in between."""
    return await _activate(context, "rollback", "/v1/deployments/rollback", {}, form)


async def _activate(
    context: PageContext,
    done: str,
    url: str,
    body: Mapping[str, Any],
    form: Mapping[str, str],
) -> Response[bytes]:
    """Activate a deployment; if a check refuses it, show the report, and a form that forces it."""
    forced = {"force": True, "reason": form["reason"]} if form.get("reason") else {}
    response = await context.api.post(url, {**body, **forced}, if_match=_expected_active(form))
    if response.ok or "report" not in response.problem:
        return _redirect(response, done, "/deployments")
    report = msgspec.convert(response.problem["report"], ReplayReport)
    return context.render(
        "replay_report.html",
        "deployments",
        response=response,
        lines=report_lines(report),
        fields={name: form[name] for name in ("replaces", "percent") if name in form},
    )


def _expected_active(form: Mapping[str, str]) -> str:
    """Return the deployment that the page showed as active, as an ETag."""
    return f'"{form.get("replaces") or "none"}"'


async def begin_rebuild(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Compare a projection with Kafka, or rebuild it."""
    body = {"projection": form.get("projection", ""), "verify": form.get("work") != "rebuild"}
    return await _change(context, "rebuild", "/admin/rebuilds", body, "/system")


async def switch_rebuild(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Replace the rows that differ by the rebuilt ones."""
    url = path("admin", "rebuilds", context.path_value("rebuild")) + "/switch"
    return await _change(context, "switch", url, {}, "/system")


async def create_key(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Create an API key, and show its text once."""
    days = form.get("days", "")
    if days and not (days.isdecimal() and len(days) <= _DAYS_DIGITS_MAX):
        raise _mistake("days", f"days: expected a number, found {days[:20]!r}")
    body = {
        "name": form.get("name", ""),
        "role": form.get("role"),
        "scopes": form.get("scopes", "").split(),
        "expiresAt": (context.now + timedelta(days=int(days))).isoformat() if days else None,
    }
    given = {name: value for name, value in body.items() if value}
    return _shown_key(context, await context.api.post("/v1/keys", given))


async def rotate_key(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Rotate an API key, and show its new text once."""
    url = path("v1", "keys", context.path_value("key")) + "/rotate"
    return _shown_key(context, await context.api.post(url))


def _shown_key(context: PageContext, response: ApiResponse) -> Response[bytes]:
    if not response.ok:
        raise FormRefused({"status": response.answer.status, **response.problem})
    return context.render("key_shown.html", "keys", response=response)


async def revoke_key(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Revoke an API key."""
    url = path("v1", "keys", context.path_value("key")) + "/revoke"
    return await _change(context, "revoke", url, {}, "/keys")


# -- forms, and the pages that have them


class Form(NamedTuple):
    """A form: its action, and the page that is shown again if it is refused.

    Attributes:
        act: Sends the change.
        view: View of the page.
        page: Path of the page, with parameters of the form's own path.
        query: Fields of the form that are the query of the page.
    """

    act: Action
    view: View
    page: str
    query: tuple[str, ...] = ()

    def page_of(self, context: PageContext) -> str:
        """Return the address of the page."""
        return BASE + re.sub(
            r"\{(\w+)\}", lambda name: path(context.path_value(name[1]))[1:], self.page
        )


_INSTANCE: Final = (workflow_views.instance, "/instances/{workflow}/{instance}")
_DEPLOYMENTS: Final = (workflow_views.deployments, "/deployments")
_KEYS: Final = (views.keys, "/keys")
_SYSTEM: Final = (views.system, "/system")
_DELIVERY: Final = (views.delivery, "/deliveries/{reference}")
_CONFIRM: Final = (views.confirm_reprocessing, "/dead-letters/replay")
FORMS: Final[Mapping[str, Form]] = {
    "/deliveries/{reference:str}/replay": Form(reprocess_delivery, *_DELIVERY),
    "/dead-letters/replay": Form(reprocess_dead_letters, *_CONFIRM, ("reason",)),
    "/dead-letters/{partition:int}/{offset:int}/replay": Form(
        reprocess_dead_letter, views.dead_letter, "/dead-letters/{partition}/{offset}"
    ),
    "/failures/retry": Form(
        retry_instances,
        workflow_views.confirm_retrying,
        "/failures/retry",
        ("workflow", "error"),
    ),
    "/instances/{workflow:str}/{instance:str}/{action:str}": Form(change_instance, *_INSTANCE),
    "/workflows/{workflow:str}/start": Form(
        start_instance, workflow_views.start, "/workflows/{workflow}/start"
    ),
    "/deployments/{deployment:str}/activate": Form(activate, *_DEPLOYMENTS),
    "/deployments/{deployment:str}/remove": Form(remove, *_DEPLOYMENTS),
    "/deployments/rollback": Form(roll_back, *_DEPLOYMENTS),
    "/drain": Form(drain, views.users, "/users", ("user_id",)),
    "/keys": Form(create_key, *_KEYS),
    "/keys/{key:str}/rotate": Form(rotate_key, *_KEYS),
    "/keys/{key:str}/revoke": Form(revoke_key, *_KEYS),
    "/rebuilds": Form(begin_rebuild, *_SYSTEM),
    "/rebuilds/{rebuild:str}/switch": Form(switch_rebuild, *_SYSTEM),
    "/seen": Form(mark_seen, overview.overview, ""),
    "/users/{operation:str}": Form(operate_for_user, views.users, "/users", ("user_id",)),
}
