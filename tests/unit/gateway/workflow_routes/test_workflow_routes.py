"""Routes of workflows without Postgres: who may, what is refused, and how they are described."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headwater.gateway.api.workflows import Denied, RequestContext, WorkflowHooks
from headwater.gateway.api.workflows.query_service import encode
from headwater.schemas.answers import CurrentStep
from headwater.schemas.statuses import EntryKind, EntryStatus
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands
from tests.unit.gateway.workflow_routes.workflow_requests import (
    ASYNC,
    BASE,
    KEY,
    ORDER,
    ORDERS,
    ROUTES,
    WRITES,
    Client,
    ask,
    named,
    service,
)

# -- who may


@pytest.mark.parametrize("route", ROUTES[:-1], ids=named)
@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"x-admin-key": "wrong"}])
def test_every_route_asks_for_the_key_before_it_looks_at_anything_else(
    client: Client,
    commands: MemoryCommands,
    route: tuple[str, str, bytes],
    headers: dict[str, str],
) -> None:
    method, path, _ = route
    answer = ask(client, (method, f"{path}?pageSize=x", b"{"), **headers)
    assert_problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not commands.sent


@pytest.fixture(scope="module")
def denying(running: tuple[Client, MemoryCommands]) -> Iterator[Client]:
    """A service whose hook lets nobody in."""

    def deny(context: RequestContext) -> Denied:
        return Denied(403, "NOT_TODAY", f"{context.policy} {context.workflow_name}")

    hooks = WorkflowHooks(authorize_request=deny)
    ticking = {"tick_url": "http://127.0.0.1:1", "tick_key": "the-tick-key"}
    with service(running[1], hooks, **ticking) as client:
        yield client


@pytest.mark.parametrize("route", ROUTES, ids=named)
def test_a_hook_may_deny_every_route(
    denying: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    assert_problem(ask(denying, route, **KEY), 403, "NOT_TODAY")
    assert not commands.sent


def test_a_batch_is_asked_about_one_by_one_and_refused_as_a_whole(commands: MemoryCommands) -> None:
    requested: list[tuple[str | None, Any]] = []

    def only_small(context: RequestContext) -> Denied | None:
        requested.append((context.instance_id, context.body))
        return Denied(403, "TOO_LARGE", "") if context.body["params"] > 1 else None

    with service(commands, WorkflowHooks(authorize_instance_creation=only_small)) as client:
        body = {"instances": [{"id": "a", "params": 1}, {"id": "b", "params": 2}]}
        answer = client.post(f"{ORDERS}/batch", json=body, headers=KEY)
    assert answer.status_code == 403
    assert requested == [("a", {"id": "a", "params": 1}), ("b", {"id": "b", "params": 2})]
    assert not commands.sent


def test_an_event_that_may_start_an_instance_is_asked_about_twice(commands: MemoryCommands) -> None:
    requested: list[Any] = []
    hooks = WorkflowHooks(
        authorize_send_event=lambda context: requested.append((context.policy, context.body)),
        authorize_instance_creation=lambda context: requested.append(
            (context.policy, context.body)
        ),
    )
    with service(commands, hooks) as client:
        for body in ({"type": "go"}, {"type": "go", "payload": 1, "startIfMissing": {"params": 2}}):
            answer = client.post(f"{ORDER}/events", json=body, headers=ASYNC)
            assert answer.status_code == 202
    assert requested == [
        ("send_event", {"type": "go", "payload": None}),
        ("send_event", {"type": "go", "payload": 1}),
        ("instance_creation", {"id": "order-1", "params": 2}),
    ]


# -- what is refused: nothing is sent


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "field"),
    [
        (ORDERS, b'{"id":"-"}', 400, "INVALID_INSTANCE_ID", "id"),
        (ORDERS, b'{"id":"a","extra":1}', 400, "invalid_body", "extra"),
        (f"{BASE}/workflows/order/bulk", b'{"action":"retry"}', 400, "invalid_body", "status"),
        (
            f"{BASE}/workflows/order/bulk",
            b'{"action":"restart","status":"errored"}',
            *(400, "invalid_body", "action"),
        ),
        (
            f"{BASE}/workflows/order/bulk",
            b'{"action":"pause","status":"active","reason":"why"}',
            *(400, "invalid_body", "reason"),
        ),
        (ORDERS, b'{"labels":{"a b":"c"}}', 400, "INVALID_LABELS", "labels"),
        (ORDERS, b'{"labels":{"a":1}}', 400, "invalid_body", "labels[...]"),
        (
            f"{ORDERS}/batch",
            b'{"instances":[{"id":"a","labels":{"":"c"}}]}',
            *(400, "INVALID_LABELS", "instances[0].labels"),
        ),
        (ORDERS, b'{"params":NaN}', 400, "invalid_body", "body"),
        (f"{ORDERS}/batch", b'{"instances":[]}', 400, "invalid_body", "instances"),
        (f"{ORDER}/pause", b'{"reason":"x"}', 400, "invalid_body", "reason"),
        (f"{ORDER}/retry", b'{"from":"x"}', 400, "invalid_body", "from"),
        (f"{ORDER}/events", b'{"type":"a b"}', 400, "INVALID_EVENT_TYPE", "type"),
        (f"{ORDER}/events", b"{}", 400, "invalid_body", "type"),
        (f"{BASE}/workflows/-x/instances", b"{}", 404, "WORKFLOW_NOT_FOUND", None),
        (f"{BASE}/workflows/{'x' * 65}/instances", b"{}", 404, "WORKFLOW_NOT_FOUND", None),
        (f"{BASE}/workflows/%00/instances", b"{}", 404, "WORKFLOW_NOT_FOUND", None),
        (f"{BASE}/workflows/%ff/instances", b"{}", 404, "WORKFLOW_NOT_FOUND", None),
        (f"{BASE}/workflows/headwater-prune/instances", b"{}", 403, "forbidden", None),
        (
            f"{BASE}/workflows/headwater-prune/instances/batch",
            b'{"instances":[{"id":"a"}]}',
            *(403, "forbidden", None),
        ),
        (
            f"{BASE}/workflows/headwater-forget/instances/a/events",
            b'{"type":"go","startIfMissing":{}}',
            *(403, "insufficient_scope", None),
        ),
        (f"{ORDERS}/a%20b/pause", b"", 404, "INSTANCE_NOT_FOUND", None),
        (f"{ORDERS}/{'a' * 101}/terminate", b"", 404, "INSTANCE_NOT_FOUND", None),
        (f"{ORDERS}/%00/events", b'{"type":"go"}', 404, "INSTANCE_NOT_FOUND", None),
        (
            f"{ORDERS}/%00/events",
            b'{"type":"go","startIfMissing":{}}',
            400,
            "INVALID_INSTANCE_ID",
            "instanceId",
        ),
    ],
    ids=named,
)
def test_bad_input_is_named_and_nothing_is_sent(  # noqa: PLR0917 (a row of the table)
    client: Client,
    commands: MemoryCommands,
    path: str,
    body: bytes,
    status: int,
    code: str,
    field: str | None,
) -> None:
    answer = client.post(path, content=body, headers=KEY)
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert problem.get("field") == field
    assert answer.headers["content-type"] == "application/problem+json"
    assert not commands.sent


@pytest.mark.parametrize("route", WRITES, ids=named)
def test_a_body_that_is_too_large_or_something_else_is_refused(
    client: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    method, path, _ = route
    large = b'{"params":"%s"}' % (b"x" * 2_000_000)
    assert_problem(ask(client, (method, path, large), **KEY), 413, "body_too_large")
    form = ask(client, (method, path, b"id=a"), **KEY, **{"content-type": "text/plain"})
    assert assert_problem(form, 400, "invalid_body")["field"] == "content-type"
    assert not commands.sent


@pytest.mark.parametrize(
    ("path", "name", "values"),
    [
        (ORDERS, "status", ["done", "", "Active", "active&status=active"]),
        (ORDERS, "updatedSince", ["", "today", "2026-07-01"]),
        (ORDERS, "updatedBefore", ["1 day"]),
        (ORDERS, "label", ["", "a", "=b", "a=b&label=a=c", "a b=c", "a=" + "x" * 257]),
        (ORDERS, "cursor", ["", "a" * 1_025, "a&cursor=b"]),
        (ORDERS, "min_position", ["3", ""]),
        *[
            (
                path,
                "pageSize",
                ["0", "-1", "101", "ten", "", "%205", "1_0", "9" * 30, "1&pageSize=2"],
            )
            for path in (ORDERS, f"{ORDER}/history")
        ],
        (ORDERS, "pageSize", ["1e1", "1.0"]),
        (f"{ORDER}/history", "pageSize", ["1e1", "1.0", "101", "5001&includeTrimmed=true"]),
        (f"{ORDER}/history", "runNumber", ["0e0", "-1", "2147483648", "x"]),
        (f"{ORDER}/history", "order", ["up", ""]),
        (f"{ORDER}/history", "includeLogs", ["yes", ""]),
        (f"{ORDER}/history", "logLevel", ["trace", ""]),
        (f"{ORDER}/history", "logCategory", ["", "a" * 257]),
        (f"{ORDER}/history", "stepsCursor", [""]),
        (f"{ORDER}/history", "eventsCursor", [""]),
        (f"{ORDER}/history", "logsCursor", [""]),
        (f"{ORDER}/events-stream", "lastEventId", ["-2", "x", str(2**63)]),
    ],
    ids=named,
)
def test_a_bad_query_is_named(client: Client, path: str, name: str, values: list[str]) -> None:
    for value in values:
        answer = client.get(f"{path}?{name}={value}", headers=KEY)
        assert assert_problem(answer, 400, "invalid_parameter")["field"] == name, value


def test_what_a_query_may_be_is_listed_where_it_is_one_of_a_few(client: Client) -> None:
    answer = client.get(f"{ORDERS}?status=ACTIVE", headers=KEY)
    detail = assert_problem(answer, 400, "invalid_parameter")["detail"]
    assert detail.startswith("status: expected one of active, ")
    assert detail.endswith(", found 'ACTIVE'")


def test_a_bad_header_is_named(client: Client) -> None:
    answer = client.get(f"{ORDER}/events-stream", headers={**KEY, "last-event-id": "abc"})
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == "Last-Event-ID"


# -- hooks, and paths


def test_a_hook_may_answer_any_4xx_with_a_body_and_headers_of_its_own(
    commands: MemoryCommands,
) -> None:
    def deny(context: RequestContext) -> Denied:
        if context.workflow_name != "order":
            return Denied(499, "NOT_HERE", "expected one of yours")
        return Denied(429, body={"plan": "free", "left": 0}, headers={"Retry-After": "60"})

    with service(commands, WorkflowHooks(authorize_request=deny)) as client:
        answer = client.get(ORDERS)
        assert (answer.status_code, answer.json()) == (429, {"plan": "free", "left": 0})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["retry-after"] == "60"
        assert answer.headers["x-request-id"]
        assert_problem(client.get("/api/workflows/workflows"), 499, "NOT_HERE")


@pytest.mark.parametrize("verb", ["", "/history", "/events-stream"])
def test_an_instance_named_batch_is_read_like_any_other(client: Client, verb: str) -> None:
    answer = client.get(f"{ORDERS}/batch{verb}", headers=KEY)
    assert_problem(answer, 503, "store_unavailable")


def test_hooks_are_told_of_the_instance_named_batch(commands: MemoryCommands) -> None:
    def deny(context: RequestContext) -> Denied:
        return Denied(403, "NOT_TODAY", f"{context.instance_id}")

    with service(commands, WorkflowHooks(authorize_request=deny)) as client:
        for method, name in (("GET", "batch"), ("POST", "None")):
            answer = client.request(method, f"{ORDERS}/batch")
            assert assert_problem(answer, 403, "NOT_TODAY")["detail"] == name


LOOKS = {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (ORDERS, {*LOOKS, "POST"}),
        (f"{ORDERS}/batch", {*LOOKS, "POST"}),
        (ORDER, LOOKS),
        *[
            (f"{ORDERS}/{name}/{verb}", methods)
            for name in ("batch", "order-1")
            for verb, methods in (
                ("history", LOOKS),
                ("events-stream", LOOKS),
                ("pause", {"OPTIONS", "POST"}),
            )
        ],
    ],
)
def test_a_path_names_the_methods_that_it_takes(
    client: Client, path: str, methods: set[str]
) -> None:
    refused = client.request("PUT", path)
    assert_problem(refused, 405, "method_not_allowed")
    requested = client.options(path)
    assert requested.status_code == 204
    for answer in (refused, requested):
        assert set(answer.headers["allow"].split(", ")) == methods


# -- the description


def test_a_wait_is_spelled_in_camel_case_over_http(client: Client) -> None:
    described = client.get("/schema/openapi.json").text
    assert '"waitForEvent"' in described
    assert '"wait_for_event"' not in described
    step = CurrentStep(
        step_key="approval",
        name="approval",
        type=EntryKind.WAIT,
        status=EntryStatus.WAITING,
        attempts=0,
        max_attempts=1,
        timeout_ms=None,
        next_retry_at=None,
        wake_at=None,
        wait_event_type="approval",
        last_attempt_at=None,
    )
    sent = encode(step)
    assert msgspec.json.decode(sent)["type"] == "waitForEvent"
    read = msgspec.json.decode(sent, type=CurrentStep)
    assert read.type is EntryKind.WAIT, "a client has the word of Python"


def test_the_description_names_every_route_and_has_examples(client: Client) -> None:
    described = client.get("/schema/openapi.json").json()
    paths = {path: entry for path, entry in described["paths"].items() if path.startswith(BASE)}
    operations = [operation for entry in paths.values() for operation in entry.values()]
    assert len(operations) == len(ROUTES)
    assert {operation["operationId"] for operation in operations} == {
        "listWorkflows",
        "listAllInstances",
        "listInstances",
        "getInstance",
        "getHistory",
        "exportHistory",
        "followInstance",
        "introspectTokens",
        "explainInstance",
        "traceInstance",
        "drawInstance",
        "drawInstanceInMermaid",
        "simulateRouting",
        "simulateSynchronization",
        "simulateMigration",
        "migrateInstance",
        "moveInstance",
        "createInstance",
        "createInstances",
        "changeInstances",
        "pauseInstance",
        "resumeInstance",
        "terminateInstance",
        "cancelInstance",
        "restartInstance",
        "retryInstance",
        "sendEvent",
        "setBranchOutput",
        "tick",
    }
    for operation in operations:
        assert operation["tags"] == ["workflows"]
        (content,) = operation["responses"]["200"]["content"].values()
        assert content["examples"], operation["operationId"]
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], status
        assert {"400", "401", "403", "500"} <= set(operation["responses"])


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/restart", "409", "RECORD_TOO_LARGE"),
        ("/retry", "409", "RECORD_TOO_LARGE"),
        ("/pause", "503", "not_yet_readable"),
    ],
)
def test_the_description_has_what_a_write_may_be_refused_with(
    client: Client, path: str, status: str, code: str
) -> None:
    paths = client.get("/schema/openapi.json").json()["paths"]
    written = f"{BASE}/workflows/{{workflowName}}/instances/{{instanceId}}{path}"
    assert code in paths[written]["post"]["responses"][status]["description"]


def test_the_page_loads_nothing_from_others(client: Client) -> None:
    page = client.get("/schema/swagger")
    assert page.status_code == 200
    assert "http" not in page.text.replace("<!doctype html>", "")
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"/schema/assets/{name}" in page.text
        asset = client.get(f"/schema/assets/{name}")
        assert asset.status_code == 200
        assert len(asset.content) > 100_000
