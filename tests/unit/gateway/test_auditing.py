"""What is done with a key has an entry before it is answered; what has none is counted."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import pytest
from litestar import Litestar, Request, post
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath
from litestar.testing import TestClient
from litestar.types import HTTPReceiveMessage

from headwater.gateway.api.audit import Auditing, attempt_operation, note
from headwater.gateway.api.authentication import Caller, admit, key_id
from headwater.gateway.api.front import front_of
from headwater.gateway.api.monitoring import Metrics
from headwater.gateway.api.problems import HANDLERS
from headwater.gateway.api.request_scope import STATE_NAME, AnyConnection, peer_resolver
from headwater.gateway.api.workflows.authorization import RequestContext, WorkflowHooks
from headwater.gateway.client.requests import Failure, failure_of
from headwater.gateway.settings.settings import Settings
from headwater.processors.graph.catalogue import Catalogue
from headwater.schemas.history import ReplySent
from headwater.schemas.records import OperationAudited
from headwater.streams.workflows.client import Addressed, OutcomeUnknown
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.definitions import MemoryDefinitions
from tests.fakes.deployments import with_active_deployment
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_all_routes import application
from tests.unit.gateway.workflow_fakes import MemoryCommands

KEY = {"x-api-key": "dev-workflow-key"}
ADMIN = {"x-admin-key": "dev-admin-key"}
GRAPH = {"initialNodeRef": "start", "nodes": [{"ref": "start", "task": "noop"}]}
AT_MS = 1_782_900_000_000


class Running(NamedTuple):
    """A gateway, and what it stands on."""

    client: TestClient[Any]
    audit: MemoryAudit
    definitions: MemoryDefinitions


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """Made once: to make an application takes longer than what most tests do."""
    audit, definitions = MemoryAudit(), MemoryDefinitions()
    app = memory_app(
        Settings(project="shop"),
        audit=audit,
        clock=lambda: AT_MS,
        workflows=memory_workflows(definitions=definitions),
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Running(client, audit, definitions)


@pytest.fixture
def audit(running: Running) -> MemoryAudit:
    running.audit.clear()
    return running.audit


@pytest.fixture
def definitions(running: Running) -> MemoryDefinitions:
    running.definitions.catalogue = Catalogue()
    return running.definitions


@pytest.fixture
def client(running: Running, audit: MemoryAudit, definitions: MemoryDefinitions) -> TestClient[Any]:
    """As if nothing had been asked yet, but for what is counted."""
    return running.client


def metadata(entry: OperationAudited) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(entry.metadata)
    return result


def counted(client: TestClient[Any], name: str) -> Counter[str]:
    """What is counted under a name, by labels."""
    lines = client.get("/metrics").text.splitlines()
    counts = (line.removeprefix(name).split(" ") for line in lines if line.startswith(name))
    return Counter({labels: int(float(count)) for labels, count in counts})


def test_what_is_done_has_an_entry(client: TestClient[Any], audit: MemoryAudit):
    answer = client.put(
        "/api/graphs/review",
        json=GRAPH,
        headers=KEY | {"user-agent": "a robot", "x-correlation-id": "theirs", "x-run-id": "run-7"},
    )
    assert answer.status_code == 201
    (entry,) = audit.entries
    digest = sha256(b"dev-workflow-key").hexdigest()
    assert entry.key_id == f"workflow:{digest[:8]}"
    assert entry.project_id == "shop"
    assert (entry.action, entry.resource) == ("graphs.deploy", "/api/graphs/review")
    assert (entry.result, entry.at_ms, entry.user_agent) == ("success", AT_MS, "a robot")
    held = metadata(entry)
    assert held.pop("digest") == answer.headers["etag"].strip('"')
    assert held == {
        "attempt": audit.attempts[0].id,
        "version": 1,
        "correlationId": answer.headers["x-request-id"],
        "claimedCorrelationId": "theirs",
        "claimedRunId": "run-7",
        "deduped": False,
        "lane": "public",
        "status": 201,
        "workflow": "review",
    }


def test_what_is_refused_has_an_entry_with_its_code(client: TestClient[Any], audit: MemoryAudit):
    refused = client.put("/api/graphs/review", json={}, headers=KEY)
    assert_problem(refused, 400, "GRAPH_INVALID")
    (entry,) = audit.entries
    assert entry.result == "failure"
    assert metadata(entry)["status"] == 400
    assert metadata(entry)["code"] == "GRAPH_INVALID"


def test_a_bug_has_an_entry_and_a_log_line_with_the_id_of_the_request(
    audit: MemoryAudit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # The toy's own configuration of logging replaces the handlers of the root.
    monkeypatch.setattr(logging.getLogger("headwater.gateway"), "handlers", [caplog.handler])
    with TestClient(toy(audit), raise_server_exceptions=False) as client:
        answer = client.post("/bug")
        assert answer.status_code == 500
    assert metadata(audit.entries[0])["code"] == "internal_error"
    (line,) = [one for one in caplog.records if one.getMessage() == "POST /bug failed"]
    assert line.__dict__["request_id"] == answer.json()["request_id"]


def test_reads_have_none(client: TestClient[Any], audit: MemoryAudit):
    assert client.get("/api/graphs", headers=KEY).status_code == 200
    assert not audit.entries


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "guessed"}])
def test_what_has_no_valid_key_is_counted_and_has_no_entry(
    client: TestClient[Any], audit: MemoryAudit, headers: dict[str, str]
):
    before = counted(client, "headwater_unaudited_requests_total")
    assert_problem(client.put("/api/graphs/g", json=GRAPH, headers=headers), 401, "unauthorized")
    assert_problem(client.post("/admin/dlq/replay", json={"all": True}), 401, "unauthorized")
    assert not audit.entries
    more = counted(client, "headwater_unaudited_requests_total") - before
    assert more == {'{action="graphs.deploy"}': 1, '{action="dead_letters.replay"}': 1}


@pytest.mark.parametrize("full", [False, True])
def test_without_its_attempt_an_operation_does_not_happen(
    client: TestClient[Any], audit: MemoryAudit, definitions: MemoryDefinitions, full: bool
):
    before = counted(client, "headwater_audit_entries_total")
    audit.away, audit.full = not full, full
    answer = client.put("/api/graphs/review", json=GRAPH, headers=KEY)
    problem = assert_problem(answer, 503, "audit_unavailable")
    assert "nothing was done" in problem["detail"]
    assert answer.headers["retry-after"]
    assert failure_of(answer.status_code, problem["code"]) is Failure.NOT_TAKEN
    assert definitions.catalogue.newest("review") is None
    audit.clear()
    again = client.put("/api/graphs/review", json=GRAPH, headers=KEY)
    assert (again.status_code, again.json()["version"]) == (201, 1)
    more = counted(client, "headwater_audit_entries_total") - before
    assert more == {
        '{result="lost"}': 1, '{result="attempted"}': 1, '{result="success"}': 1
    }  # fmt: skip


def test_what_is_done_without_its_result_is_said_to_be_done(
    client: TestClient[Any], audit: MemoryAudit, definitions: MemoryDefinitions
):
    """Clients send again what was not begun, also what must not be done twice."""
    audit.away_after = 1
    answer = client.put("/api/graphs/review", json=GRAPH, headers=KEY)
    assert definitions.catalogue.newest("review") is not None
    problem = assert_problem(answer, 500, "result_not_recorded")
    assert "retry-after" not in answer.headers
    assert failure_of(answer.status_code, problem["code"]) is Failure.UNKNOWN
    (attempt,) = audit.log
    assert problem["attempt"] == attempt.id


def test_the_attempt_precedes_the_effect_and_the_result_names_it(
    client: TestClient[Any], audit: MemoryAudit, definitions: MemoryDefinitions
):
    client.put("/api/graphs/review", json=GRAPH, headers=KEY)
    attempt, result = audit.log
    assert (attempt.result, result.result) == ("attempted", "success")
    assert metadata(result)["attempt"] == attempt.id
    assert {"status", "version"}.isdisjoint(metadata(attempt))
    for same in ("workflow", "digest", "correlationId"):
        assert metadata(attempt)[same] == metadata(result)[same]


def test_a_gateway_that_is_killed_in_between_leaves_the_attempt(audit: MemoryAudit):
    """As killed: the handler's task ends without any answer."""
    app = toy(audit)

    async def killed() -> None:
        async def receive() -> HTTPReceiveMessage:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_message: object) -> None:
            raise AssertionError("expected no answer")

        scope: Any = {
            "type": "http", "method": "POST", "path": "/hangs", "raw_path": b"/hangs",
            "query_string": b"", "headers": [], "client": ("127.0.0.1", 1), "server": ("h", 80),
            "scheme": "http", "http_version": "1.1", "root_path": "", "app": app,
            "path_params": {}, "state": {},
        }  # fmt: skip
        task = asyncio.create_task(app(scope, receive, send))
        async with asyncio.timeout(60):
            await audit.stored.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(killed())
    assert [entry.result for entry in audit.log] == ["attempted"]


def test_what_failed_is_answered_as_it_is_also_without_its_entry(
    client: TestClient[Any], audit: MemoryAudit
):
    audit.away = True
    refused = client.put("/api/graphs/review", json={}, headers=KEY)
    assert_problem(refused, 400, "GRAPH_INVALID")


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_only_asked_what_a_replay_would_do_says_so(
    client: TestClient[Any], audit: MemoryAudit, dry_run: bool
):
    body = {"positions": [{"partition": 0, "offset": 3}], "dry_run": dry_run}
    client.post("/admin/dlq/replay", json=body, headers=ADMIN)
    (entry,) = audit.entries
    assert entry.action == "dead_letters.replay"
    assert metadata(entry).get("dryRun", False) is dry_run


def test_who_is_wiped_is_not_named_whatever_the_name(audit: MemoryAudit, tmp_path: Path):
    """Over the front: what servers hand on has no slash within a segment any more."""
    app = front_of(application(tmp_path, audit=audit))

    async def wipe(user_id: str) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            path = f"/admin/user/{quote(user_id, safe='')}/wipe"
            return await asking.post(path, headers=ADMIN)

    for user_id in ("a/b", "/", "ü ?#%2F"):
        audit.clear()
        assert asyncio.run(wipe(user_id)).json()["code"] == "store_unavailable"
        (entry,) = audit.entries
        assert entry.resource == f"/admin/user/sha256:{sha256(user_id.encode()).hexdigest()}/wipe"


def test_who_is_wiped_is_not_named(audit: MemoryAudit):
    with TestClient(toy(audit), raise_server_exceptions=False) as client:
        assert client.post("/user/user_bo/wipe").status_code == 201
    (entry,) = audit.entries
    assert entry.resource == f"/user/sha256:{sha256(b'user_bo').hexdigest()}/wipe"


def test_notes_are_in_the_metadata(audit: MemoryAudit):
    with TestClient(toy(audit), raise_server_exceptions=False) as client:
        client.post("/v1/world/noted", headers={"idempotency-key": "theirs"})
        client.post("/v1/world/noted", headers={"x-run-id": "run-of-header"})
    first, second = map(metadata, audit.entries)
    assert (first["lane"], first["deduped"], first["runId"]) == ("world_proxy", True, "run-1")
    assert (first["idempotencyKey"], first["claimedIdempotencyKey"]) == ("of-body", "theirs")
    assert (second["runId"], second["claimedRunId"]) == ("run-1", "run-of-header")
    assert (second["idempotencyKey"], "claimedIdempotencyKey" in second) == ("of-body", False)


def test_what_callers_say_is_held_to_a_length_and_can_be_stored(audit: MemoryAudit):
    with TestClient(toy(audit), raise_server_exceptions=False) as client:
        client.post(
            f"/user/%00{'x' * 3000}/wipe",
            headers={"user-agent": "u" * 3000, "x-correlation-id": "c" * 3000},
        )
    (entry,) = audit.entries
    assert "\0" not in entry.resource
    assert len(entry.resource) <= 1024
    assert len(entry.user_agent) == 256
    assert len(metadata(entry)["claimedCorrelationId"]) == 256


async def known(_context: RequestContext) -> None:
    """Lets everybody pass."""


def test_whom_a_hook_lets_in_is_named_by_what_they_brought(audit: MemoryAudit):
    hooks = WorkflowHooks(authorize_request=known)
    app = memory_app(audit=audit, workflows=memory_workflows(hooks=hooks))
    with TestClient(app) as client:
        for headers, credential in (
            ({"authorization": "Bearer theirs"}, b"theirs"),
            ({"x-api-key": "a-key"}, b"a-key"),
            ({}, b""),
        ):
            client.put("/api/graphs/review", json=GRAPH, headers=headers)
            assert audit.entries[-1].key_id == f"hook:{sha256(credential).hexdigest()[:8]}"


def toy(audit: MemoryAudit) -> Litestar:
    """Routes of a few lines, all of whose callers have a key."""

    async def guard(connection: AnyConnection, _handler: BaseRouteHandler) -> None:
        admit(connection.scope, Caller(key_id("toy", "k"), frozenset()))

    @post("/bug", audit="toy.bug")
    async def bug() -> None:
        raise ZeroDivisionError

    @post("/user/{user_id:str}/wipe", audit="toy.wipe")
    async def wipe(request: Request[Any, Any, Any], user_id: FromPath[str]) -> None:
        pass

    @post("/hangs", audit="toy.hang")
    async def hangs() -> None:
        await asyncio.Event().wait()

    @post("/v1/world/noted", opt={"audit": "toy.note"})
    async def noted(request: Request[Any, Any, Any]) -> None:
        note(request, run_id="run-1", idempotency_key="of-body")
        note(request, deduped=True)

    auditing = Auditing(
        audit,
        project="toys",
        peer_of=peer_resolver([]),
        metrics=Metrics(),
        clock=lambda: AT_MS,
        new_id=lambda: "entry",
    )
    app = Litestar(
        [bug, wipe, noted, hangs],
        guards=[guard],
        middleware=[auditing],
        before_request=attempt_operation,
        exception_handlers=HANDLERS,
    )
    app.state[STATE_NAME] = lambda: "request-1"
    return app


def test_the_instance_that_was_made_is_named(client: TestClient[Any], audit: MemoryAudit):
    path = "/api/workflows/workflows/order/instances"
    client.post(path, json={"id": "order-1"}, headers=KEY)
    (entry,) = audit.entries
    assert (entry.action, entry.resource) == ("instances.create", path)
    assert metadata(entry)["runId"] == "order-1"
    assert metadata(entry)["workflow"] == "order"


CLAIMS = {"x-run-id": "foreign-run", "x-correlation-id": "c", "idempotency-key": "k-1"}
ORDER = "/api/workflows/workflows/order/instances"


#: Paths and bodies of operations, and what their entries have to name.
TOUCHING: dict[str, tuple[object, dict[str, Any]]] = {
    ORDER: ({"id": "own"}, {"runId": "own", "idempotencyKey": "k-1"}),
    f"{ORDER}/own/pause": ({}, {"runId": "own"}),
    f"{ORDER}/own/cancel": ({}, {"runId": "own"}),
    f"{ORDER}/own/retry": ({}, {"runId": "own"}),
    f"{ORDER}/own/events": (
        {"type": "paid"},
        {"runId": "own", "eventType": "paid", "idempotencyKey": "k-1"},
    ),
    f"{ORDER}/batch": (
        {"instances": [{"id": "own"}, {"id": "own-2"}]},
        {"runIds": ["own", "own-2"], "idempotencyKey": "k-1"},
    ),
    "/api/jobs/order.own.0.1.1/complete": ({}, {"runId": "own"}),
    "/api/jobs/order.own.0.1.1/fail": (
        {"error": {"name": "E", "message": "m"}},
        {"runId": "own"},
    ),
    "/v1/runs/own/cancel": ({}, {"runId": "own", "workflow": None}),
}


def test_an_entry_names_the_run_that_was_touched_whatever_the_caller_says(
    client: TestClient[Any], audit: MemoryAudit
):
    for path, (body, named) in TOUCHING.items():
        audit.clear()
        client.post(path, json=body, headers=KEY | CLAIMS)
        (entry,) = audit.entries
        held = metadata(entry)
        expected = {"workflow": "order", **named}
        assert {name: held.get(name) for name in expected} == expected, path
        assert (held["claimedRunId"], held["claimedCorrelationId"]) == ("foreign-run", "c"), path
        claimed = None if "idempotencyKey" in expected else "k-1"
        assert held.get("claimedIdempotencyKey") == claimed, path


WORLD_KEY = {"x-api-key": "dev-world-key"}
EVENTS: dict[str, dict[str, Any]] = {
    "run_created": {"eventData": {"workflowName": "order"}},
    "run_cancelled": {},
    "hook_received": {"correlationId": "paid"},
}


def test_an_entry_of_an_event_names_its_type_and_its_run(
    client: TestClient[Any], audit: MemoryAudit
):
    for event_type, more in EVENTS.items():
        audit.clear()
        body = {"runId": "own", "data": {"eventType": event_type, **more}}
        client.post("/v1/world/events/create", json=body, headers=WORLD_KEY | CLAIMS)
        (entry,) = audit.entries
        held = metadata(entry)
        assert (held["runId"], held["eventType"]) == ("own", event_type)
        assert (held["claimedRunId"], held["claimedIdempotencyKey"]) == ("foreign-run", "k-1")


def test_an_entry_of_a_message_names_its_run_also_when_nobody_knows_what_came_of_it(
    audit: MemoryAudit,
):
    commands = MemoryCommands()

    def away(_: Addressed) -> ReplySent:
        raise OutcomeUnknown("no worker", ["c"], has_worker=False)

    commands.answer = away
    deployments = with_active_deployment("order")
    workflows = memory_workflows(deployments=deployments, commands=commands)
    with TestClient(memory_app(audit=audit, workflows=workflows)) as client:
        body = {"queueName": "order", "message": 1}
        client.post("/v1/world/queue/publish", json=body, headers=WORLD_KEY | CLAIMS)
    (entry,) = audit.entries
    assert entry.result == "failure"
    assert metadata(entry)["runId"] == commands.sent[0].instance_id
    assert metadata(entry)["workflow"] == "order"
