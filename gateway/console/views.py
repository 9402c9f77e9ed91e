"""The pages: what each asks of the API, and which template shows it."""

from asyncio import gather
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from litestar import Response

from headwater.gateway.console.api_client import ApiResponse
from headwater.gateway.console.page_context import BASE, PageContext
from headwater.gateway.console.rendering import PICTURE_HEADERS, moment, redirect
from headwater.gateway.console.timeline import bars
from headwater.gateway.paths import path

#: Dead letters, and deliveries that wait, that the overview counts; beyond them there are more.
_COUNTED: Final = 100
#: The newest that the overview shows.
_NEWEST: Final = 8
#: Rows of a page of a history.
_HISTORY: Final = 100
#: What may be done to an instance that stands so; to any other: restart.
_VERBS: Final[Mapping[str, Sequence[str]]] = {
    "active": ("pause", "cancel", "terminate"),
    "waiting": ("pause", "cancel", "terminate"),
    "paused": ("resume", "cancel", "terminate"),
    "errored": ("retry",),
}


async def overview(context: PageContext) -> Response[bytes]:
    """Whether all is well, and what needs somebody."""
    since = (context.now - timedelta(days=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
    get = context.api.get
    ready, day, parked, dead, instances, far, newest = await gather(
        get("/health/ready"),
        get("/admin/outcomes", [("since", since)]),
        get("/admin/dlq", [("state", "parked"), ("limit", _COUNTED)]),
        get("/admin/dlq", [("limit", _COUNTED)]),
        get("/admin/instances"),
        get("/admin/projections"),
        get("/admin/deliveries", [("limit", _NEWEST)]),
    )
    return context.show(
        "overview.html",
        "",
        # It answers 503 with what is away, which is no problem document.
        ready=ready.data["parts"],
        day=day,
        day_counts=_counts(day, "outcomes", "status", "deliveries"),
        parked=parked,
        dead=dead,
        instances=instances,
        instance_counts=_counts(instances, "instances", "status", "instances"),
        far=far,
        projections=projections_of(far.data["positions"]) if far.ok else (),
        newest=newest,
        since=since,
    )


def _counts(answer: ApiResponse, rows: str, name: str, number: str) -> Counter[str]:
    """How many there are of each kind, of what was counted by more than that."""
    found = Counter[str]()
    for row in answer.data[rows] if answer.ok else ():
        found[row[name]] += row[number]
    return found


def projections_of(positions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How far each projection is: records that it has read, and when it last applied some."""
    found: dict[str, dict[str, Any]] = {}
    for each in positions:
        one = found.setdefault(
            each["projection"], {"name": each["projection"], "records": 0, "applied_at": None}
        )
        one["records"] += each["next_offset"]
        applied = [at for at in (one["applied_at"], each["applied_at"]) if at]
        one["applied_at"] = max(applied, key=moment, default=None)
    return list(found.values())


async def deliveries(context: PageContext) -> Response[bytes]:
    """Deliveries by filters."""
    if named := context.asked("id").strip():
        return redirect(f"{BASE}{path('deliveries', named)}")
    found = await context.api.get("/admin/deliveries", context.filters(but=["id"]))
    return context.show("deliveries.html", "deliveries", found=found)


async def delivery(context: PageContext) -> Response[bytes]:
    """All that is known of a delivery."""
    named = context.named("named").removeprefix("webhooks/")
    found = await context.api.get(path("admin", "deliveries", named))
    raw = impact = None
    if found.ok and found.data.get("delivery"):
        event_id = found.data["delivery"]["outcome"]["event_id"]
        raw, impact = await gather(
            context.api.get(path("admin", "raw-events", event_id)),
            context.api.get(path("admin", "impact", event_id)),
        )
    return context.show(
        "delivery.html", "deliveries", found=found, raw=raw, impact=impact, named=named
    )


async def dead_letters(context: PageContext) -> Response[bytes]:
    """What could not be processed, and what waits."""
    found = await context.api.get("/admin/dlq", context.filters())
    return context.show("dead_letters.html", "dead-letters", found=found)


async def dead_letter(context: PageContext) -> Response[bytes]:
    """One dead letter, whole."""
    place = (context.named("partition"), context.named("offset"))
    found = await context.api.get(path("admin", "dlq", *place))
    return context.show("dead_letter.html", "dead-letters", found=found)


async def replaying(context: PageContext) -> Response[bytes]:
    """Asks whether all dead letters of a reason are to be put back."""
    reason = context.asked("reason")
    asked = {"all": True, "dry_run": True, **({"reason": reason} if reason else {})}
    found = await context.api.post("/admin/dlq/replay", asked)
    return context.show("replaying.html", "dead-letters", found=found, reason=reason)


async def workflows(context: PageContext) -> Response[bytes]:
    """The workflows, and how many instances of each there are."""
    found, instances = await gather(
        context.api.get("/api/workflows/workflows"), context.api.get("/admin/instances")
    )
    counts: dict[str, dict[str, int]] = {}
    for row in instances.data["instances"] if instances.ok else ():
        counts.setdefault(row["workflow"], {})[row["status"]] = row["instances"]
    names = {each["name"] for each in found.data["workflows"]} if found.ok else set()
    own = sorted(counts.keys() - names)
    return context.show(
        "workflows.html", "workflows", found=found, instances=instances, counts=counts, own=own
    )


async def instances(context: PageContext) -> Response[bytes]:
    """Instances by filters."""
    workflow = context.asked("workflow")
    of = ("workflows", workflow) if workflow else ()
    asked = context.filters(but=["workflow"])
    found = await context.api.get(path("api", "workflows", *of, "instances"), asked)
    return context.show("instances.html", "workflows", found=found, workflow=workflow)


def instance_path(context: PageContext) -> str:
    """Where the API has the instance of a page."""
    named = (context.named("workflow"), "instances", context.named("instance"))
    return path("api", "workflows", "workflows", *named)


async def instance(context: PageContext) -> Response[bytes]:
    """One instance: how it stands, and what happened in one of its runs."""
    base = instance_path(context)
    asked = [("pageSize", _HISTORY), ("includeLogs", "true"), *context.filters()]
    found, history = await gather(context.api.get(base), context.api.get(f"{base}/history", asked))
    live = explained = None
    entries = []
    if history.ok:
        entries = history.data["steps"] or history.data["tokens"]
        if history.data["tokens"]:
            run = [("runNumber", history.data["runNumber"])]
            live, explained = await gather(
                context.api.get(f"{base}/graph/tokens", run),
                context.api.get(f"{base}/graph/explain", run),
            )
    status = found.data["details"]["status"] if found.ok else ""
    return context.show(
        "instance.html",
        "workflows",
        found=found,
        history=history,
        entries=list(zip(entries, bars(entries, context.now), strict=True)),
        live=live,
        explained=explained,
        verbs=_VERBS.get(status, ()),
        workflow=context.named("workflow"),
        instance=context.named("instance"),
    )


async def picture(context: PageContext) -> Response[bytes]:
    """A run of a graph, drawn."""
    found = await context.api.get(f"{instance_path(context)}/graph/svg", context.filters())
    if not found.ok:
        return context.show("problem.html", "workflows", found=found)
    return Response(found.content, media_type="image/svg+xml", headers=PICTURE_HEADERS)


async def deployments(context: PageContext) -> Response[bytes]:
    """Code that was deployed."""
    found = await context.api.get("/v1/deployments", context.filters())
    listed = found.data["deployments"] if found.ok else ()
    active = next((each["id"] for each in listed if each["active"]), None)
    if active is None and found.ok and (found.data["hasNextPage"] or context.asked("cursor")):
        answer = await context.api.get("/v1/deployments/active")
        active = answer.data["id"] if answer.ok else None
    return context.show("deployments.html", "deployments", found=found, active=active)


async def users(context: PageContext) -> Response[bytes]:
    """What is known of one user."""
    user_id = context.asked("user_id").strip()
    if not user_id:
        return context.show("users.html", "users", user_id="")
    found = await context.api.get(path("admin", "user", user_id))
    return context.show("users.html", "users", found=found, user_id=user_id)


async def why(context: PageContext) -> Response[bytes]:
    """Where the values of a row come from."""
    table = context.asked("table") or "-"
    key = [value for name, value in context.filters() if name == "key"] or ["-"]
    found = await context.api.get(path("admin", "why", table, *key))
    return context.show("why.html", "users", found=found, table=table, key=key)


async def audit(context: PageContext) -> Response[bytes]:
    """Who has done what."""
    found = await context.api.get("/v1/audit", context.filters())
    return context.show("audit.html", "audit", found=found)
