"""Views of deliveries, rows, users, the system and its records: read from the API, and render."""

import re
from asyncio import gather
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from litestar import Response

from headwater.gateway.api.console.api_client import ApiResponse
from headwater.gateway.api.console.glance import lags_of, samples_of
from headwater.gateway.api.console.page_context import PageContext
from headwater.gateway.api.console.rendering import BASE, moment, redirect
from headwater.gateway.client.dead_letters import body_of
from headwater.gateway.client.requests import path
from headwater.processors.api_keys import Role, Scope

#: Rows on a page of a user's rows.
_ROWS: Final = 100
#: Weeks in which sources are counted for the page of the system.
_SOURCE_WEEKS: Final = 2


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
        live=False,
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
    outcome = None
    if response.ok and response.data["event_id"]:
        outcome = await context.api.get(path("admin", "outcomes", response.data["event_id"]))
    return context.render(
        "dead_letter.html",
        "dead-letters",
        live=False,
        response=response,
        outcome=outcome.data if outcome is not None and outcome.ok else None,
        body=body_of(response.data["value"]) if response.ok else None,
    )


async def confirm_reprocessing(context: PageContext) -> Response[bytes]:
    """Confirmation before all dead letters with a reason are reprocessed."""
    reason = context.query_value("reason")
    body = {"all": True, "dry_run": True, **({"reason": reason} if reason else {})}
    response = await context.api.post("/admin/dlq/replay", body)
    return context.render(
        "confirm_reprocessing.html", "dead-letters", live=False, response=response, reason=reason
    )


async def quality(context: PageContext) -> Response[bytes]:
    """Quality of the data by week."""
    response = await context.api.get("/admin/quality", context.filters())
    return context.render("quality.html", "quality", response=response)


def user_address(user_id: str) -> str:
    """Return the address of the page of a user, below the console."""
    return f"/users?{urlencode({'user_id': user_id})}"


async def users(context: PageContext) -> Response[bytes]:
    """Details of a user."""
    user_id = context.query_value("user_id").strip()
    if not user_id:
        return context.render("users.html", "users", user_id="")
    response = await context.api.get(path("admin", "user", user_id))
    return context.render("users.html", "users", live=False, response=response, user_id=user_id)


async def rows(context: PageContext) -> Response[bytes]:
    """Rows of a user in a table, or in all tables."""
    query = [("limit", _ROWS), *context.filters()]
    response = await context.api.get("/v1/sync", query)
    return context.render(
        "rows.html", "users", live=False, response=response, user_id=context.query_value("user_id")
    )


async def why(context: PageContext) -> Response[bytes]:
    """Origin of the values of a row."""
    table = context.query_value("table") or "-"
    key = [value for name, value in context.filters() if name == "key"] or ["-"]
    response = await context.api.get(path("admin", "why", table, *key))
    return context.render("why.html", "users", live=False, response=response, table=table, key=key)


async def system(context: PageContext) -> Response[bytes]:
    """Parts of the system: readiness, sources, projections, rebuilds, and who executes runs."""
    get = context.api.get
    ready, progress, rebuilds, ownership, sources, metrics = await gather(
        get("/health/ready"),
        get("/admin/projections"),
        get("/admin/rebuilds"),
        get("/v1/diagnostics/ownership"),
        get("/admin/quality", [("weeks", _SOURCE_WEEKS)]),
        get("/metrics"),
    )
    samples = list(samples_of(metrics.answer.body.decode(errors="replace")) if metrics.ok else ())
    return context.render(
        "system.html",
        "system",
        ready=ready.data["parts"],
        response=progress,
        projections=projections_of(progress.data["positions"]) if progress.ok else (),
        rebuilds=rebuilds,
        ownership=ownership,
        sources=sources,
        lags=lags_of(samples),
    )


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


async def audit(context: PageContext) -> Response[bytes]:
    """List of audit entries."""
    response = await context.api.get("/v1/audit", context.filters())
    return context.render(
        "audit.html", "audit", live=False, response=response, resource_address=resource_address
    )


#: Paths of the API, and the pages of what they name.
_RESOURCES: Final = (
    (re.compile(r"/api/workflows/workflows/([^/]+)/instances/([^/]+)(?:/.*)?"), "/instances/{}/{}"),
    (re.compile(r"/api/workflows/workflows/([^/]+)(?:/.*)?"), "/instances?workflow={}"),
    (re.compile(r"/admin/dlq/(\d+)/(\d+)"), "/dead-letters/{}/{}"),
    (re.compile(r"/admin/(?:deliveries|raw-events|impact)/([^/]+)(?:/.*)?"), "/deliveries/{}"),
    (re.compile(r"/admin/dlq(?:/.*)?"), "/dead-letters"),
    (re.compile(r"/v1/deployments(?:/.*)?"), "/deployments"),
    (re.compile(r"/v1/keys(?:/.*)?"), "/keys"),
    (re.compile(r"/v1/endpoints/([^/]+)(?:/.*)?"), "/endpoints/{}"),
    (re.compile(r"/admin/rebuilds(?:/.*)?"), "/system"),
)


def resource_address(resource: str) -> str:
    """Return the page of a resource in the audit log; "" if there is none, as for a hashed user."""
    for pattern, page in _RESOURCES:
        match = pattern.fullmatch(resource)
        if match is not None and "sha256:" not in resource:
            return BASE + page.format(*match.groups())
    return ""


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


# -- search by any id

#: Statuses of requests for what does not exist, or cannot exist by its name.
_ABSENT: Final = frozenset({400, 404})
_LETTER: Final = re.compile(r"(\d{1,9})/(\d{1,18})")


async def search(context: PageContext) -> Response[bytes]:
    """Pages of what has an id: a single one is shown at once."""
    wanted = context.query_value("q").strip()
    matches, failed = await _matches(context, wanted) if wanted else ([], None)
    if len(matches) == 1 and failed is None:
        return redirect(f"{BASE}{matches[0][1]}")
    return context.render(
        "search.html", "-", live=False, wanted=wanted, matches=matches, failed=failed
    )


async def _matches(
    context: PageContext, wanted: str
) -> tuple[list[tuple[str, str]], ApiResponse | None]:
    """Return the kind and the address, below the console, of what has an id.

    A request that failed, other than by finding nothing, is returned, too.
    """
    get = context.api.get
    workflow, _, instance = wanted.partition("/")
    letter = _LETTER.fullmatch(wanted)
    delivery, user, run, named, dead = await gather(
        get(path("admin", "deliveries", wanted)),
        get(path("admin", "user", wanted)),
        get(path("v1", "runs", wanted)),
        _get_if(context, bool(workflow and instance),
                ("api", "workflows", "workflows", workflow, "instances", instance)),
        _get_if(context, letter is not None, ("admin", "dlq", *wanted.split("/"))),
    )  # fmt: skip
    matches = []
    if delivery.ok:
        matches.append(("Delivery or request", path("deliveries", wanted)))
    if user.ok and _is_known(user.data):
        matches.append(("User", user_address(wanted)))
    if run.ok:
        matches.append(("Instance", path("instances", run.data["workflowName"], wanted)))
    if named is not None and named.ok:
        matches.append(("Instance", path("instances", workflow, instance)))
    if dead is not None and dead.ok:
        matches.append(("Dead letter", f"/dead-letters/{wanted}"))
    if wanted.startswith("dep_"):
        matches.append(("Deployments", "/deployments"))
    if wanted.startswith("key_"):
        matches.append(("Keys", "/keys"))
    responses = [delivery, user, run, named, dead]
    failed = (r for r in responses if r is not None and not r.ok and r.answer.status not in _ABSENT)
    return matches, next(failed, None)


async def _get_if(
    context: PageContext, condition: bool, segments: tuple[str, ...]
) -> ApiResponse | None:
    return await context.api.get(path(*segments)) if condition else None


def _is_known(user: Mapping[str, Any]) -> bool:
    """Whether anything is stored about a user."""
    return any(user["counts"].values()) or any(
        user[name] for name in ("connections", "last_outcomes", "waiting", "dead")
    )
