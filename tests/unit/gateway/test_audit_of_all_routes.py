"""Every route of the application is audited, or there is a reason why not."""

from collections import Counter
from pathlib import Path

from litestar.routes import ASGIRoute, HTTPRoute

from tests.unit.gateway.test_all_routes import application

READS = {"GET", "HEAD"}
PUBLIC = "it is public, or it is about the process"
SIGNED = "deliveries are signed, and are records themselves"
OWN = "users and readers read rows with keys that are for that alone"
NO_PERSON = "it has states, counts, and ids of deliveries, not what is stored of a person"
RUNS = "callers of the workflow service read what they have written there"
CONSOLE = "it sends requests to the API, which have the entries"
CALLBACK = "such callbacks are counted by themselves"
#: Routes without an entry, by method and path, and why. A path that ends with * is a prefix.
NOT_AUDITED: dict[str, str] = {
    **dict.fromkeys(
        ("GET /schema*", "GET /registry/*", "GET /asyncapi.json", "GET /health/*", "GET /metrics"),
        PUBLIC,
    ),
    "POST /webhooks/{source:str}": SIGNED,
    **dict.fromkeys(("GET /v1/sync", "GET /v1/me", "GET /v1/imports"), OWN),
    **dict.fromkeys(("GET /v1/runs", "GET /v1/runs/{runId:str}", "GET /api/*"), RUNS),
    "GET /admin/instances/failures": RUNS,
    **dict.fromkeys(
        (f"GET /v1/world/{what}*" for what in ("runs", "steps", "hooks", "waits", "events")), RUNS
    ),
    **dict.fromkeys(
        (
            "GET /v1/deployments",
            "GET /v1/deployments/active",
            "GET /v1/deployments/{deploymentId:str}",
            "GET /v1/world/deployment-id",
            "GET /v1/queues",
            "GET /v1/diagnostics/ownership",
            "GET /v1/endpoints",
            "GET /v1/endpoints/{endpointId:str}",
            "GET /v1/endpoints/{endpointId:str}/deliveries",
            "GET /v1/endpoints/{endpointId:str}/deliveries/{deliveryId:str}",
            "GET /v1/endpoints/{endpointId:str}/replays/{replayId:str}",
            "GET /v1/keys",
            "GET /v1/keys/{keyId:str}",
            "GET /admin/auditor",
            "GET /admin/deliveries",
            "GET /admin/deliveries/{named:str}/receipt",
            "GET /admin/dlq",
            "GET /admin/dlq/reasons",
            "GET /admin/instances",
            "GET /admin/outcomes",
            "GET /admin/outcomes/{event_id:str}",
            "GET /admin/projections",
            "GET /admin/prunes/{prune_id:str}",
            "GET /admin/quality",
            "GET /admin/rebuilds",
            "GET /admin/rebuilds/{rebuild_id:str}",
            "GET /admin/replays/{replay_id:str}",
            "GET /admin/user/{user_id:str}/wipe/{wipe_id:str}",
        ),
        NO_PERSON,
    ),
    **dict.fromkeys(("GET /console*", "POST /console*"), CONSOLE),
    "POST /.well-known/workflow/v1/flow": CALLBACK,
    "POST /.well-known/workflow/v1/step": CALLBACK,
    "POST /api/workflows/_runner/tick": "it states a time, and changes nothing else",
    "POST /api/jobs/activate": "workers repeat it all the time; the history has who took a job",
    "POST /api/jobs/{key:str}/extend": "workers repeat it all the time while they work",
}
#: Operations that another site's redirect begins, which is a GET.
OPERATIONS_BY_GET = {"GET /console/oidc/callback"}
#: Ends of paths of routes that compute, and change nothing.
SIMULATIONS = (
    *(f"/graph/simulate-{what}" for what in ("routing", "synchronization", "migration")),
    "/v1/deployments/{deploymentId:str}/check",
)


def rule_of(method: str, path: str) -> str | None:
    """The rule that excuses a route from having an entry."""
    name = f"{method} {path}"
    if name in NOT_AUDITED:
        return name
    prefixes = (rule for rule in NOT_AUDITED if rule.endswith("*"))
    return next((rule for rule in prefixes if name.startswith(rule[:-1])), None)


def test_every_route_is_audited_or_has_a_reason_why_not(tmp_path: Path):
    without: set[str] = set()
    used: Counter[str] = Counter()
    for route in application(tmp_path).routes:
        if not isinstance(route, HTTPRoute):
            # Deliveries: the sources that were configured, and the home page.
            assert isinstance(route, ASGIRoute), route
            continue
        for handler in route.route_handlers:
            is_operation, is_read = handler.opt.get("audit"), handler.opt.get("audit_read")
            for method in handler.http_methods - {"OPTIONS"}:
                verb = "GET" if method in READS else str(method)
                if is_operation or is_read:
                    changes = verb != "GET" or f"{verb} {route.path}" in OPERATIONS_BY_GET
                    assert bool(is_operation) == changes, route.path
                elif rule := rule_of(verb, route.path):
                    used[rule] += 1
                elif not route.path.endswith(SIMULATIONS):
                    without.add(f"{verb} {route.path}")
    assert without == set()
    assert NOT_AUDITED.keys() - used.keys() == set()


def test_a_new_route_has_no_reason():
    for name in ("POST /admin/new", "GET /admin/new", "DELETE /v1/new", "PUT /api/new", "GET /new"):
        assert rule_of(*name.split()) is None


def test_no_router_replaces_what_appends_attempts(tmp_path: Path):
    for route in application(tmp_path).routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            if handler.opt.get("audit"):
                before = handler.resolve_before_request()
                assert getattr(before, "__name__", None) == "attempt_operation", route.path
