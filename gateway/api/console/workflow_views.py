"""Views of workflows: their instances, the timeline of an instance, and deployments."""

from asyncio import gather
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from litestar import Response

from headwater.gateway.api.console.api_client import ApiResponse
from headwater.gateway.api.console.page_context import PageContext
from headwater.gateway.api.console.rendering import PICTURE_HEADERS
from headwater.gateway.api.console.timeline import bars
from headwater.gateway.client.instance_texts import state_text
from headwater.gateway.client.requests import path
from headwater.processors.runs.inspection import EXPLAIN, SVG, TOKENS
from headwater.processors.runs.lifecycle import ACTIONS, Action
from headwater.schemas.answers import InstancePage
from headwater.schemas.errors import PARSE_ERRORS

#: Entries of a window of a timeline.
_HISTORY_ROWS: Final = 100
#: Characters of an output or error in a list.
_STATE_CHARS: Final = 120
#: Actions of an instance by what an operator needs first: what brings it on, then what ends it.
_ACTION_ORDER: Final = ("resume", "retry", "pause", "restart", "cancel", "terminate")
#: Actions with a button of their own, and those that bring an instance on.
_ONWARD: Final = frozenset({"resume", "retry"})


async def workflows(context: PageContext) -> Response[bytes]:
    """List of workflows with counts of instances."""
    response, instances = await gather(
        context.api.get("/api/workflows/workflows"), context.api.get("/admin/instances")
    )
    counts: dict[str, dict[str, int]] = {}
    for row in instances.data["instances"] if instances.ok else ():
        counts.setdefault(row["workflow"], {})[row["status"]] = row["instances"]
    names = {row["name"] for row in response.data["workflows"]} if response.ok else set()
    return context.render(
        "workflows.html",
        "workflows",
        response=response,
        instances=instances,
        counts=counts,
        built_in=sorted(counts.keys() - names),
    )


async def start(context: PageContext) -> Response[bytes]:
    """Form to create an instance of a workflow."""
    response = await context.api.get("/api/workflows/workflows")
    workflow = context.path_value("workflow")
    known = {row["name"]: row for row in response.data["workflows"]} if response.ok else {}
    schema = known.get(workflow, {}).get("paramsSchema")
    return context.render(
        "start.html", "workflows", response=response, workflow=workflow, schema=schema
    )


async def instances(context: PageContext) -> Response[bytes]:
    """List of instances."""
    workflow = context.query_value("workflow")
    scope = ("workflows", workflow) if workflow else ()
    query = context.filters(without=["workflow"])
    response = await context.api.get(path("api", "workflows", *scope, "instances"), query)
    return context.render(
        "instances.html",
        "instances",
        response=response,
        workflow=workflow,
        states=_states(response, context),
    )


def _states(response: ApiResponse, context: PageContext) -> Sequence[str | None]:
    """Return what the listed instances wait for, or their results, as the command line has it."""
    if not response.ok:
        return ()
    try:
        page = msgspec.json.decode(response.answer.body, type=InstancePage)
    except PARSE_ERRORS:  # Lone surrogates are valid JSON, but msgspec refuses them.
        return [None] * len(response.data["instances"])
    return [state_text(instance, context.now, _STATE_CHARS) for instance in page.instances]


def instance_path(context: PageContext) -> str:
    """Return the API path of the instance of a page."""
    segments = (context.path_value("workflow"), "instances", context.path_value("instance"))
    return path("api", "workflows", "workflows", *segments)


async def instance(context: PageContext) -> Response[bytes]:
    """Details of an instance, with a window of the history of one run."""
    base = instance_path(context)
    query = [("pageSize", _HISTORY_ROWS), ("includeLogs", "true"), *context.filters()]
    response, history = await gather(
        context.api.get(base), context.api.get(f"{base}/history", query)
    )
    live = explained = None
    entries = []
    if history.ok:
        entries = history.data["steps"] or history.data["tokens"]
        if history.data["tokens"]:
            run = [("runNumber", history.data["runNumber"])]
            live, explained = await gather(
                context.api.get(base + TOKENS.path, run),
                context.api.get(base + EXPLAIN.path, run),
            )
    return context.render(
        "instance.html",
        "instances",
        response=response,
        history=history,
        entries=list(zip(entries, bars(entries, context.now), strict=True)),
        live_tokens=live,
        explained=explained,
        actions=actions_of(response.data["details"]["status"] if response.ok else ""),
        onward=_ONWARD,
        awaited=awaited_event(response.data["meta"]) if response.ok else "",
        workflow=context.path_value("workflow"),
        instance=context.path_value("instance"),
    )


def actions_of(status: str) -> list[Action]:
    """Return the actions that are offered in a status, first those that bring the instance on."""
    offered = [action for action in ACTIONS if status in action.statuses]
    return sorted(offered, key=lambda action: _ACTION_ORDER.index(action.name))


def awaited_event(meta: Any) -> str:  # noqa: ANN401 (JSON)
    """Return the type of the event that an instance waits for; "" if it waits for none."""
    types = (meta.get("currentStep") or {}).get("waitEventType") or ""
    return types if isinstance(types, str) else types[0]


async def picture(context: PageContext) -> Response[bytes]:
    """Picture of a run of a graph."""
    response = await context.api.get(instance_path(context) + SVG.path, context.filters())
    if not response.ok:
        return context.render("problem.html", "instances", response=response)
    return Response(response.answer.body, media_type="image/svg+xml", headers=PICTURE_HEADERS)


async def confirm_retrying(context: PageContext) -> Response[bytes]:
    """Confirmation before all errored instances with the same error are retried."""
    workflow, error = context.query_value("workflow"), context.query_value("error")
    body = {"action": "retry", "status": "errored", "dryRun": True}
    if error:
        body["errorName"] = error
    url = path("api", "workflows", "workflows", workflow or "-", "bulk")
    response = await context.api.post(url, body)
    return context.render(
        "confirm_retrying.html", "failures", response=response, workflow=workflow, error=error,
        live=False,
    )  # fmt: skip


async def deployments(context: PageContext) -> Response[bytes]:
    """List of deployments."""
    response = await context.api.get("/v1/deployments", context.filters())
    active = await context.api.get("/v1/deployments/active") if response.ok else None
    # The tag names the share of another deployment, too.
    tag = active.answer.headers.get("etag", "").strip('"') if active and active.ok else ""
    return context.render("deployments.html", "deployments", response=response, active=tag)
