"""Views: read the data of a page from the API and render its template."""

from asyncio import gather
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from litestar import Response

from headwater.gateway.api.console.api_client import ApiResponse
from headwater.gateway.api.console.rendering import (
    BASE,
    PICTURE_HEADERS,
    PageContext,
    moment,
    redirect,
)
from headwater.gateway.client.requests import path
from headwater.processors.api_keys import Role, Scope
from headwater.processors.runs.inspection import EXPLAIN, SVG, TOKENS
from headwater.processors.runs.lifecycle import ACTIONS

#: Length of the axis in units, whatever its duration.
WIDTH: Final = 1000
#: Least length of a bar; a shorter one would not be visible.
_BAR_MIN: Final = 4


class Bar(NamedTuple):
    """Bar of an entry; start, width and tick are in units of the axis, of `WIDTH`.

    Attributes:
        start: Start of the entry.
        width: Duration of the entry.
        tick: Start of its last attempt; None if there was only one.
        seconds: Duration in seconds.
    """

    start: float
    width: float
    tick: float | None
    seconds: float


def bars(entries: Sequence[Mapping[str, Any]], now: datetime) -> list[Bar]:
    """Return the bars of entries, on an axis from the earliest start to the latest end.

    Args:
        entries: Steps or tokens from the API.
        now: End of entries that have not ended.
    """
    spans = [_span(entry, now) for entry in entries]
    if not spans:
        return []
    began = min(start for start, _ in spans)
    duration_s = (max(end for _, end in spans) - began).total_seconds() or 1.0

    def at(when: datetime) -> float:
        return (when - began).total_seconds() / duration_s * WIDTH

    result = []
    for entry, (start, end) in zip(entries, spans, strict=True):
        width = max(at(end) - at(start), _BAR_MIN)
        last_attempt = entry.get("lastAttemptAt")
        tick = at(moment(last_attempt)) if last_attempt and entry["attempts"] > 1 else None
        seconds = (end - start).total_seconds()
        result.append(Bar(min(at(start), WIDTH - width), width, tick, seconds))
    return result


def _span(entry: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    start = moment(entry["createdAt"])
    end = moment(entry["completedAt"]) if entry["completedAt"] else now
    return start, max(start, end)


# -- views

#: Most dead letters and parked deliveries that the overview counts.
_COUNT_MAX: Final = 100
#: Newest deliveries on the overview.
_NEWEST: Final = 8
#: Rows on a page of a history.
_HISTORY_ROWS: Final = 100


async def overview(context: PageContext) -> Response[bytes]:
    """Overview: readiness, counts, and what needs attention."""
    since = (context.now - timedelta(days=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
    get = context.api.get
    ready, day, parked, dead, instances, progress, newest = await gather(
        get("/health/ready"),
        get("/admin/outcomes", [("since", since)]),
        get("/admin/dlq", [("state", "parked"), ("limit", _COUNT_MAX)]),
        get("/admin/dlq", [("limit", _COUNT_MAX)]),
        get("/admin/instances"),
        get("/admin/projections"),
        get("/admin/deliveries", [("limit", _NEWEST)]),
    )
    return context.render(
        "overview.html",
        "",
        # When not ready, it returns 503 with the unavailable parts, not a problem document.
        ready=ready.data["parts"],
        day=day,
        day_counts=_counts(day, "outcomes", "status", "deliveries"),
        parked=parked,
        dead=dead,
        instances=instances,
        instance_counts=_counts(instances, "instances", "status", "instances"),
        progress=progress,
        projections=projections_of(progress.data["positions"]) if progress.ok else (),
        newest=newest,
        since=since,
    )


def _counts(response: ApiResponse, rows: str, name: str, number: str) -> Counter[str]:
    """Add up the numbers of rows that have the same name."""
    counts = Counter[str]()
    for row in response.data[rows] if response.ok else ():
        counts[row[name]] += row[number]
    return counts


def projections_of(positions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the progress of projections: records read, and when some were last applied."""
    projections: dict[str, dict[str, Any]] = {}
    for position in positions:
        name = position["projection"]
        projection = projections.setdefault(name, {"name": name, "records": 0, "applied_at": None})
        projection["records"] += position["next_offset"]
        times = [at for at in (projection["applied_at"], position["applied_at"]) if at]
        projection["applied_at"] = max(times, key=moment, default=None)
    return list(projections.values())


async def deliveries(context: PageContext) -> Response[bytes]:
    """List of deliveries."""
    if reference := context.query_value("id").strip():
        return redirect(f"{BASE}{path('deliveries', reference)}")
    response = await context.api.get("/admin/deliveries", context.filters(without=["id"]))
    return context.render("deliveries.html", "deliveries", response=response)


async def delivery(context: PageContext) -> Response[bytes]:
    """Details of a delivery or a refused request."""
    reference = context.path_value("reference").removeprefix("webhooks/")
    response = await context.api.get(path("admin", "deliveries", reference))
    raw = impact = None
    if response.ok and response.data.get("delivery"):
        event_id = response.data["delivery"]["outcome"]["event_id"]
        raw, impact = await gather(
            context.api.get(path("admin", "raw-events", event_id)),
            context.api.get(path("admin", "impact", event_id)),
        )
    return context.render(
        "delivery.html",
        "deliveries",
        response=response,
        raw=raw,
        impact=impact,
        reference=reference,
    )


async def dead_letters(context: PageContext) -> Response[bytes]:
    """List of dead letters and parked deliveries."""
    response = await context.api.get("/admin/dlq", context.filters())
    return context.render("dead_letters.html", "dead-letters", response=response)


async def dead_letter(context: PageContext) -> Response[bytes]:
    """Details of a dead letter."""
    position = (context.path_value("partition"), context.path_value("offset"))
    response = await context.api.get(path("admin", "dlq", *position))
    return context.render("dead_letter.html", "dead-letters", response=response)


async def confirm_reprocessing(context: PageContext) -> Response[bytes]:
    """Confirmation before all dead letters with a reason are reprocessed."""
    reason = context.query_value("reason")
    body = {"all": True, "dry_run": True, **({"reason": reason} if reason else {})}
    response = await context.api.post("/admin/dlq/replay", body)
    return context.render(
        "confirm_reprocessing.html", "dead-letters", response=response, reason=reason
    )


async def workflows(context: PageContext) -> Response[bytes]:
    """List of workflows with counts of instances."""
    response, instances = await gather(
        context.api.get("/api/workflows/workflows"), context.api.get("/admin/instances")
    )
    counts: dict[str, dict[str, int]] = {}
    for row in instances.data["instances"] if instances.ok else ():
        counts.setdefault(row["workflow"], {})[row["status"]] = row["instances"]
    names = {row["name"] for row in response.data["workflows"]} if response.ok else set()
    built_in = sorted(counts.keys() - names)
    return context.render(
        "workflows.html",
        "workflows",
        response=response,
        instances=instances,
        counts=counts,
        built_in=built_in,
    )


async def instances(context: PageContext) -> Response[bytes]:
    """List of instances."""
    workflow = context.query_value("workflow")
    scope = ("workflows", workflow) if workflow else ()
    query = context.filters(without=["workflow"])
    response = await context.api.get(path("api", "workflows", *scope, "instances"), query)
    return context.render("instances.html", "workflows", response=response, workflow=workflow)


def instance_path(context: PageContext) -> str:
    """Return the API path of the instance of a page."""
    segments = (context.path_value("workflow"), "instances", context.path_value("instance"))
    return path("api", "workflows", "workflows", *segments)


async def instance(context: PageContext) -> Response[bytes]:
    """Details of an instance, with the history of one run."""
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
    status = response.data["details"]["status"] if response.ok else ""
    return context.render(
        "instance.html",
        "workflows",
        response=response,
        history=history,
        entries=list(zip(entries, bars(entries, context.now), strict=True)),
        live=live,
        explained=explained,
        actions=[action for action in ACTIONS if status in action.statuses],
        workflow=context.path_value("workflow"),
        instance=context.path_value("instance"),
    )


async def picture(context: PageContext) -> Response[bytes]:
    """Picture of a run of a graph."""
    response = await context.api.get(instance_path(context) + SVG.path, context.filters())
    if not response.ok:
        return context.render("problem.html", "workflows", response=response)
    return Response(response.answer.body, media_type="image/svg+xml", headers=PICTURE_HEADERS)


async def deployments(context: PageContext) -> Response[bytes]:
    """List of deployments."""
    response = await context.api.get("/v1/deployments", context.filters())
    active = await context.api.get("/v1/deployments/active") if response.ok else None
    # The tag names the share of another deployment, too.
    tag = active.answer.headers.get("etag", "").strip('"') if active and active.ok else ""
    return context.render("deployments.html", "deployments", response=response, active=tag)


async def quality(context: PageContext) -> Response[bytes]:
    """Quality of the data by week."""
    response = await context.api.get("/admin/quality", context.filters())
    return context.render("quality.html", "quality", response=response)


async def users(context: PageContext) -> Response[bytes]:
    """Details of a user."""
    user_id = context.query_value("user_id").strip()
    if not user_id:
        return context.render("users.html", "users", user_id="")
    response = await context.api.get(path("admin", "user", user_id))
    return context.render("users.html", "users", response=response, user_id=user_id)


async def why(context: PageContext) -> Response[bytes]:
    """Origin of the values of a row."""
    table = context.query_value("table") or "-"
    key = [value for name, value in context.filters() if name == "key"] or ["-"]
    response = await context.api.get(path("admin", "why", table, *key))
    return context.render("why.html", "users", response=response, table=table, key=key)


async def audit(context: PageContext) -> Response[bytes]:
    """List of audit entries."""
    response = await context.api.get("/v1/audit", context.filters())
    return context.render("audit.html", "audit", response=response)


async def auditor(context: PageContext) -> Response[bytes]:
    """What the auditor has verified, and its findings."""
    response = await context.api.get("/admin/auditor")
    return context.render("auditor.html", "auditor", response=response)


async def keys(context: PageContext) -> Response[bytes]:
    """List of API keys."""
    response = await context.api.get("/v1/keys", context.filters())
    return context.render(
        "keys.html", "keys", response=response, roles=list(Role), scopes=list(Scope)
    )
