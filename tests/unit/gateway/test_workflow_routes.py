"""The routes of workflows without Postgres, over scripted outcomes: who may, what is refused, and
what is answered when something is away."""

from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.workflows import Denied, RequestContext, WorkflowHooks
from headwater.gateway.api.workflows.query_service import encode
from headwater.gateway.settings.settings import Settings
from headwater.schemas.answers import CurrentStep
from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.schemas.history import (
    CancelRun,
    Label,
    PauseRun,
    ReplySent,
    RestartRun,
    ResumeRun,
    RetryRun,
    SendEvent,
    SetBranchOutput,
    StartRun,
    TerminateRun,
)
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.streams.workflows.client import Addressed, OutcomeUnknown
from tests.ticked import serving
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands, reply

KEY = {"authorization": "Bearer dev-workflow-key"}
TICK_KEY = {"x-api-key": "the-tick-key"}
ASYNC = {**KEY, "prefer": "respond-async"}
BASE = "/api/workflows"
ORDERS = f"{BASE}/workflows/order/instances"
ORDER = f"{ORDERS}/order-1"

Client = TestClient[Any]

#: Every route, with a body that is taken.
ROUTES: list[tuple[str, str, bytes]] = [
    ("GET", f"{BASE}/workflows", b""),
    ("GET", ORDERS, b""),
    ("GET", f"{BASE}/instances", b""),
    ("GET", ORDER, b""),
    ("GET", f"{ORDER}/history", b""),
    ("GET", f"{ORDER}/history/export", b""),
    ("GET", f"{ORDER}/events-stream", b""),
    ("GET", f"{ORDER}/graph/tokens", b""),
    ("GET", f"{ORDER}/graph/explain", b""),
    ("GET", f"{ORDER}/graph/trace", b""),
    ("GET", f"{ORDER}/graph/svg", b""),
    ("GET", f"{ORDER}/graph/mermaid", b""),
    ("POST", f"{ORDER}/graph/simulate-routing", b'{"node":"a"}'),
    ("POST", f"{ORDER}/graph/simulate-synchronization", b'{"token":"0","transition":"a"}'),
    ("POST", f"{ORDER}/graph/simulate-migration", b'{"to":1}'),
    ("POST", f"{ORDER}/migrate", b'{"to":1}'),
    ("POST", f"{ORDER}/move", b'{"deployment":"app"}'),
    ("POST", ORDERS, b"{}"),
    ("POST", f"{BASE}/workflows/order/bulk", b'{"action":"retry","status":"errored"}'),
    ("POST", f"{ORDERS}/batch", b'{"instances":[{"id":"a"}]}'),
    ("POST", f"{ORDER}/pause", b""),
    ("POST", f"{ORDER}/resume", b""),
    ("POST", f"{ORDER}/terminate", b""),
    ("POST", f"{ORDER}/cancel", b""),
    ("POST", f"{ORDER}/restart", b""),
    ("POST", f"{ORDER}/retry", b""),
    ("POST", f"{ORDER}/branch-output", b'{"group":"g","branch":0,"output":{}}'),
    ("POST", f"{ORDER}/events", b'{"type":"go"}'),
    ("POST", f"{BASE}/_runner/tick", b""),
]
READS = [
    route for route in ROUTES if route[0] == "GET" or "simulate" in route[1] or "bulk" in route[1]
]
#: A move to another version reads the versions of its graph first.
WRITES = [route for route in ROUTES[:-1] if route not in READS and "migrate" not in route[1]]


def service(commands: MemoryCommands, hooks: WorkflowHooks, **settings: str) -> Client:
    app = memory_app(
        Settings(max_body_bytes=2_000_000, **settings),
        workflows=memory_workflows(commands=commands, hooks=hooks),
    )
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Client, MemoryCommands]]:
    commands = MemoryCommands()
    with service(commands, WorkflowHooks()) as client:
        yield client, commands


@pytest.fixture
def client(running: tuple[Client, MemoryCommands]) -> Client:
    return running[0]


@pytest.fixture(autouse=True)
def commands(running: tuple[Client, MemoryCommands]) -> MemoryCommands:
    commands = running[1]
    commands.sent.clear()
    commands.ready = True
    commands.answer = lambda _: reply()
    return commands


def ask(client: Client, route: tuple[str, str, bytes], **headers: str) -> httpx2.Response:
    method, path, body = route
    return client.request(method, path, content=body, headers=headers)


def named(route: object) -> str:
    return str(route[1]).removeprefix(BASE) if isinstance(route, tuple) else ascii(route)[:40]


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


def test_of_several_in_a_batch_with_one_id_the_first_is_created(commands: MemoryCommands) -> None:
    with service(commands, WorkflowHooks()) as client:
        body = {"instances": [{"id": "b"}, {"id": "a", "params": 1}, {"id": "a", "params": 2}]}
        answer = client.post(f"{ORDERS}/batch", json=body, headers=ASYNC)
    assert [instance["id"] for instance in answer.json()["instances"]] == ["b", "a"]
    assert [(item.instance_id, item.command.params) for item in commands.sent] == [
        ("b", "null"),
        ("a", "1"),
    ]


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


# -- what is sent, and what comes of it


@pytest.mark.parametrize(
    ("path", "body", "command"),
    [
        (f"{ORDER}/pause", b"", PauseRun()),
        (f"{ORDER}/resume", b"{}", ResumeRun()),
        (f"{ORDER}/terminate", b"", TerminateRun()),
        (f"{ORDER}/terminate", b'{"reason":"sold"}', TerminateRun("sold")),
        (f"{ORDER}/cancel", b"", CancelRun()),
        (f"{ORDER}/cancel", b'{"reason":"sold"}', CancelRun("sold")),
        (f"{ORDER}/restart", b"", RestartRun()),
        (f"{ORDER}/retry", b"", RetryRun()),
        (f"{ORDER}/restart", b'{"deployment":"same"}', RestartRun("same")),
        (f"{ORDER}/retry", b'{"fromStep":"a/b"}', RetryRun("a/b")),
        (f"{ORDER}/retry", b'{"deployment":"dep_1"}', RetryRun(deployment="dep_1")),
        (
            f"{ORDER}/branch-output",
            b'{"group":"g","branch":2,"output":{"a": 1.0},"fork":"0/g"}',
            SetBranchOutput("g", 2, '{"a": 1.0}', "0/g"),
        ),
        (f"{ORDER}/events", b'{"type":"go"}', SendEvent("id-2", "go", "null")),
        (
            f"{ORDER}/events",
            b'{"type":"go","payload":{"a": 1.0},"startIfMissing":{"params":[ ]}}',
            SendEvent("id-2", "go", '{"a": 1.0}', start="[ ]"),
        ),
    ],
    ids=named,
)
def test_a_request_becomes_one_command(
    client: Client, commands: MemoryCommands, path: str, body: bytes, command: msgspec.Struct
) -> None:
    answer = client.post(path, content=body, headers=ASYNC)
    assert answer.status_code == 202
    (sent,) = commands.sent
    assert (sent.workflow, sent.instance_id) == ("order", "order-1")
    if isinstance(command, SendEvent):
        command = msgspec.structs.replace(command, event_id=sent.command.event_id)
        assert sent.command.event_id.startswith("id-")
    assert sent.command == command


@pytest.mark.parametrize(
    "verb", ["pause", "resume", "terminate", "cancel", "restart", "retry", "events"]
)
def test_an_instance_named_batch_is_sent_commands_like_any_other(
    client: Client, commands: MemoryCommands, verb: str
) -> None:
    body = b'{"type":"go"}' if verb == "events" else b""
    assert client.post(f"{ORDERS}/batch/{verb}", content=body, headers=ASYNC).status_code == 202
    (sent,) = commands.sent
    assert (sent.workflow, sent.instance_id) == ("order", "batch")


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


def test_an_instance_without_an_id_is_given_one(client: Client, commands: MemoryCommands) -> None:
    answer = client.post(ORDERS, content=b'{"params":{"a": 1.0}}', headers=ASYNC)
    (sent,) = commands.sent
    assert sent.command == StartRun('{"a": 1.0}')
    assert answer.json() == {"id": sent.instance_id, "details": {"status": "active"}}
    assert answer.headers["headwater-position"] == "workflow-history/1@7"
    assert answer.headers["preference-applied"] == "respond-async"


def test_labels_are_sent_by_name_with_whatever_creates(
    client: Client, commands: MemoryCommands
) -> None:
    labels = {"team": "blue", "region": "eu"}
    sent = (Label("region", "eu"), Label("team", "blue"))
    for path, body in (
        (ORDERS, {"labels": labels}),
        (f"{ORDERS}/batch", {"instances": [{"id": "a", "labels": labels}]}),
        (f"{ORDER}/events", {"type": "go", "startIfMissing": {"labels": labels}}),
    ):
        commands.sent.clear()
        answer = client.post(path, json=body, headers=ASYNC)
        assert commands.sent[0].command.labels == sent
        made = answer.json()
        listed = made if path == ORDERS else made.get("instances", [{"labels": labels}])[0]
        assert listed["labels"] == labels


def sent_under(
    client: Client, commands: MemoryCommands, path: str, key: str, body: str
) -> Addressed:
    commands.sent.clear()
    answer = client.post(path, content=body, headers={**ASYNC, "idempotency-key": key})
    assert answer.status_code == 202, answer.text
    (sent,) = commands.sent
    return sent


def test_a_key_makes_the_id_of_an_instance_that_has_none(
    client: Client, commands: MemoryCommands
) -> None:
    first, again, other, named = (
        sent_under(client, commands, ORDERS, key, body)
        for key, body in (("k", "{}"), ("k", "{}"), ("l", "{}"), ("k", '{"id":"order-1"}'))
    )
    assert first == again
    assert first.instance_id != other.instance_id
    assert named.instance_id == "order-1"
    assert named.command == first.command


@pytest.mark.parametrize("path", [ORDERS, f"{ORDER}/events"])
def test_under_a_key_the_same_values_are_the_same_however_they_are_written(
    client: Client, commands: MemoryCommands, path: str
) -> None:
    field = "params" if path == ORDERS else "payload"
    kind = "" if path == ORDERS else '"type":"go",'
    once = [
        sent_under(client, commands, path, "k", f'{{{kind}"{field}":{text}}}').command.once
        for text in ('{"a":1,"b":[2]}', '{ "b": [2], "a": 1 }', '{"a":1,"b":[3]}')
    ]
    assert once[0] == once[1]
    assert once[0].key == once[2].key == "k"
    assert once[0].digest != once[2].digest


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        (ORDERS, ('{"labels":{"a":"b"}}', '{"labels":{"a":"c"}}', '{"params":1}', "{}")),
        (
            f"{ORDER}/events",
            (
                '{"type":"go"}',
                '{"type":"no"}',
                '{"type":"go","startIfMissing":{}}',
                '{"type":"go","startIfMissing":{"params":1}}',
                '{"type":"go","startIfMissing":{"labels":{"a":"b"}}}',
            ),
        ),
    ],
)
def test_under_a_key_all_that_is_asked_tells_requests_apart(
    client: Client, commands: MemoryCommands, path: str, bodies: tuple[str, ...]
) -> None:
    digests = [sent_under(client, commands, path, "k", body).command.once.digest for body in bodies]
    assert len(set(digests)) == len(bodies)


def test_what_was_done_before_is_answered_as_it_was(
    client: Client, commands: MemoryCommands
) -> None:
    for path, body, code in (
        (ORDERS, b"{}", "INSTANCE_CREATED_BEFORE"),
        (f"{ORDERS}/batch", b'{"instances":[{"id":"a"}]}', "INSTANCE_CREATED_BEFORE"),
        (f"{ORDER}/events", b'{"type":"go"}', "EVENT_ALREADY_RECEIVED"),
    ):
        before = client.post(path, content=body, headers={**ASYNC, "idempotency-key": "k"})
        assert "idempotent-replayed" not in before.headers
        commands.answer = lambda _, code=code: reply(code=code)
        again = client.post(path, content=body, headers={**ASYNC, "idempotency-key": "k"})
        assert (again.status_code, again.json()) == (before.status_code, before.json())
        assert again.headers["idempotent-replayed"] == "true"
        commands.answer = lambda _: reply()


@pytest.mark.parametrize("key", ["a b", "x" * 256, "ü".encode()])
def test_a_key_that_nobody_can_mean_is_refused(client: Client, key: str) -> None:
    answer = client.post(ORDERS, content=b"{}", headers={**ASYNC, "idempotency-key": key})
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == "Idempotency-Key"


def test_a_batch_leaves_out_what_exists(client: Client, commands: MemoryCommands) -> None:
    def outcome(sent: Addressed) -> ReplySent:
        number = int(sent.instance_id)
        exists = "INSTANCE_ID_ALREADY_EXISTS" if number % 2 else ""
        return reply(code=exists, partition=number % 3, position=number)

    commands.answer = outcome
    body = {"instances": [{"id": str(number)} for number in range(6)]}
    answer = client.post(f"{ORDERS}/batch", json=body, headers=ASYNC)
    assert [one["id"] for one in answer.json()["instances"]] == ["0", "2", "4"]
    positions = "workflow-history/0@3, workflow-history/1@4, workflow-history/2@5"
    assert answer.headers["headwater-position"] == positions


def test_a_batch_of_which_some_are_refused_says_which_were_created(
    client: Client, commands: MemoryCommands
) -> None:
    commands.answer = lambda sent: reply(
        code="" if sent.instance_id == "a" else "WORKFLOW_NOT_FOUND", message="no such code here"
    )
    body = {"instances": [{"id": "a"}, {"id": "b"}]}
    answer = client.post(f"{ORDERS}/batch", json=body, headers=ASYNC)
    assert assert_problem(answer, 404, "WORKFLOW_NOT_FOUND")["created"] == ["a"]


@pytest.mark.parametrize("code", ["ALREADY_CANCELLED", "ALREADY_PAUSED", "NOT_PAUSED"])
def test_what_is_so_already_is_done(client: Client, commands: MemoryCommands, code: str) -> None:
    commands.answer = lambda _: reply(code=code, status="paused")
    answer = client.post(f"{ORDER}/pause", headers=ASYNC)
    assert (answer.status_code, answer.json()) == (
        202,
        {"ok": True, "status": {"status": "paused"}},
    )


def test_a_new_run_says_its_number(client: Client, commands: MemoryCommands) -> None:
    commands.answer = lambda _: reply(run_number=3)
    for verb in ("restart", "retry"):
        answer = client.post(f"{ORDER}/{verb}", headers=ASYNC)
        assert answer.json() == {"ok": True, "status": {"status": "active"}, "runNumber": 3}


@pytest.mark.parametrize("route", WRITES, ids=named)
def test_a_refusal_is_a_problem_that_says_where_it_is_recorded(
    client: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    commands.answer = lambda _: reply(code="INSTANCE_TERMINAL", message="it has ended")
    answer = ask(client, route, **ASYNC)
    assert assert_problem(answer, 409, "INSTANCE_TERMINAL")["detail"] == "it has ended"
    assert answer.headers["headwater-position"] == "workflow-history/1@7"


# -- what is away


@pytest.mark.parametrize("route", WRITES, ids=named)
def test_without_a_worker_what_need_not_be_waited_for_is_accepted(
    client: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    def nobody(_: Addressed) -> ReplySent:
        raise OutcomeUnknown("expected a worker", ["c-1"], has_worker=False)

    commands.answer = nobody
    answer = ask(client, route, **ASYNC)
    assert answer.status_code == 202, answer.text
    assert answer.headers["preference-applied"] == "respond-async"
    (accepted,) = answer.json()["accepted"]
    sent = commands.sent[0]
    assert accepted == {
        "workflowName": sent.workflow,
        "id": sent.instance_id,
        "commandId": "c-1",
    }
    assert "headwater worker --app" in answer.json()["detail"]
    assert_problem(ask(client, route, **KEY), 503, "outcome_unknown")


@pytest.mark.parametrize("route", WRITES, ids=named)
def test_without_kafka_or_a_worker_writes_say_what_may_still_happen(
    client: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    def fails(error: Exception) -> None:
        def outcome(_: Addressed) -> ReplySent:
            raise error

        commands.answer = outcome

    fails(OutcomeUnknown("no reply; it may still be executed"))
    answer = ask(client, route, **KEY)
    problem = assert_problem(answer, 503, "outcome_unknown")
    assert "may still be executed" in problem["detail"]
    assert answer.headers["retry-after"]
    fails(BrokerUnavailable("no acknowledgement"))
    problem = assert_problem(ask(client, route, **KEY), 503, "broker_unavailable")
    assert "may still be executed" in problem["detail"]
    fails(Overloaded("expected at most 1 bytes on their way, found 2"))
    answer = ask(client, route, **KEY)
    assert_problem(answer, 503, "overloaded")
    assert answer.headers["retry-after"]
    commands.ready = False
    problem = assert_problem(ask(client, route, **KEY), 503, "broker_unavailable")
    assert "nothing was sent" in problem["detail"]


def test_without_postgres_writes_are_answered_and_reads_are_not(client: Client) -> None:
    answer = client.post(f"{ORDER}/pause", headers=KEY)
    assert (answer.status_code, answer.json()["ok"]) == (202, True)
    assert "preference-applied" not in answer.headers
    answer = client.get(f"{ORDER}?min_position=workflow-history/0@1", headers=KEY)
    assert_problem(answer, 503, "store_unavailable")
    assert answer.headers["retry-after"]


# -- ticks


def test_ticks_are_off_unless_they_have_an_address_and_a_key(commands: MemoryCommands) -> None:
    for settings in ({}, {"tick_url": "http://127.0.0.1:1"}, {"tick_key": "the-tick-key"}):
        with service(commands, WorkflowHooks(), **settings) as client:
            answer = client.post(f"{BASE}/_runner/tick", headers=KEY | TICK_KEY)
            problem = assert_problem(answer, 404, "tick_disabled")
            assert "HEADWATER_TICK_URL" in problem["detail"]


def test_a_tick_asks_for_its_own_key_and_for_a_worker(commands: MemoryCommands) -> None:
    settings = {"tick_url": "http://127.0.0.1:1", "tick_key": "the-tick-key"}
    with service(commands, WorkflowHooks(), **settings) as client:
        path = f"{BASE}/_runner/tick"
        assert_problem(client.post(path), 401, "unauthorized")
        assert_problem(client.post(path, headers=KEY), 403, "insufficient_scope")
        bad = client.post(path, json={"maxSteps": 0}, headers=TICK_KEY)
        assert assert_problem(bad, 400, "invalid_body")["field"] == "maxSteps"
        assert_problem(client.post(path, headers=TICK_KEY), 503, "worker_unavailable")


def test_a_tick_reaches_all_ticked_workers(commands: MemoryCommands) -> None:
    path = f"{BASE}/_runner/tick"
    with serving() as one, serving() as two:
        urls = f"{one.url}, http://127.0.0.1:1, {two.url}"
        settings = {"tick_url": urls, "tick_key": "the-tick-key"}
        with service(commands, WorkflowHooks(), **settings) as client:
            assert client.post(path, headers=TICK_KEY).json() == {"processed": 6}
    assert (one.heard, two.heard) == ([{}], [{}])


def test_what_a_tick_may_do_is_shared_by_the_workers(commands: MemoryCommands) -> None:
    path = f"{BASE}/_runner/tick"
    with serving(4) as one, serving(4) as two:
        settings = {"tick_url": f"{one.url},{two.url}", "tick_key": "the-tick-key"}
        with service(commands, WorkflowHooks(), **settings) as client:
            requested = {"maxInstances": 8, "maxSteps": 20}
            assert client.post(path, json=requested, headers=TICK_KEY).json() == {"processed": 9}
            requested = {"maxSteps": 4}
            assert client.post(path, json=requested, headers=TICK_KEY).json() == {"processed": 3}
    assert two.heard == [
        {"maxInstances": 8, "maxSteps": 20, "continuing": True},
        {"maxInstances": 2, "maxSteps": 12},
    ]
    first = {"maxInstances": 5, "maxSteps": 16, "continuing": True}
    another = {"maxSteps": 4, "continuing": True}
    assert one.heard == [first, another], "with each tick another one is the first"


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
