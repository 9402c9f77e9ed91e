"""Instances of Headwater's own operations are changed by operators alone."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.api.authentication import Caller, admit
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.authorization import WorkflowHooks
from headwater.gateway.api.workflows.request_guard import attempt_change, is_system_instance
from headwater.gateway.api.workflows.runs.run_service import RunPorts
from headwater.projections.gateway_state import IdempotencyKeys
from headwater.projections.workflows.queries import Page
from headwater.projections.workflows.runs import FoundRun
from headwater.projections.workflows.world import Parts, RunPart
from headwater.schemas.statuses import RunState
from headwater.schemas.v1_answers import Run
from tests.fakes.api_keys import MemoryApiKeys
from tests.fakes.deployments import MemoryDeployments
from tests.unit.gateway.memory_app import memory_app, memory_workflows, without_postgres
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_key_matrix import all_but, all_keys
from tests.unit.gateway.test_run_routes import UpToDate
from tests.unit.gateway.workflow_fakes import AT

BASE = "/api/workflows/workflows"
CHANGES = [
    "headwater-replay/instances/r-1/restart",
    "headwater-forget/instances/f-1/events",
    "headwater-prune/instances/p-1/terminate",
    "headwater-prune/instances/batch/resume",
    "headwater-schedule/instances/headwater-verify/pause",
    "headwater-schedule/bulk",
    "headwater%2Dreplay/instances/r-1/retry",
]
Client = TestClient[Any]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with TestClient(memory_app(api_keys=MemoryApiKeys(all_keys()))) as client:
        yield client


def ask(client: Client, path: str, **headers: str) -> Any:  # noqa: ANN401 (httpx's answer)
    """Ask with a parameter that no route has, which is refused after the key was accepted."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"{BASE}/{path}?lmit=1", headers=named)


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_of_a_system_instance_needs_a_scope_of_its_own(client: Client, path: str):
    for key in (all_but("system:write"), "dev-workflow-key"):
        problem = assert_problem(ask(client, path, x_api_key=key), 403, "insufficient_scope")
        assert problem["needed"] == ["system:write"]
    problem = ask(client, path, x_api_key=all_but("instances:write"))
    assert assert_problem(problem, 403, "insufficient_scope")["needed"] == ["instances:write"]
    assert_problem(ask(client, path), 401, "unauthorized")
    assert_problem(ask(client, path, x_api_key="dev-admin-key"), 400, "unknown_parameter")


def test_messages_and_schedules_of_apps_are_the_callers_own(client: Client):
    for path in (
        "headwater-message/instances/m-1/terminate",
        "headwater-message/bulk",
        "headwater-schedule/instances/nightly/pause",
        "order/instances/headwater-replay/restart",
    ):
        answer = ask(client, path, x_api_key=all_but("system:write"))
        assert_problem(answer, 400, "unknown_parameter")
    answer = client.get(
        f"{BASE}/headwater-replay/instances/r-1?lmit=1",
        headers={"x-api-key": all_but("system:write")},
    )
    assert_problem(answer, 400, "unknown_parameter")


def test_behind_hooks_a_change_of_a_system_instance_needs_a_key():
    hooks = WorkflowHooks(authorize_request=lambda _context: None)
    app = memory_app(workflows=memory_workflows(hooks=hooks))
    with TestClient(app, raise_server_exceptions=False) as client:
        assert_problem(ask(client, "order/instances/o-1/restart"), 400, "unknown_parameter")
        assert_problem(ask(client, CHANGES[0]), 401, "unauthorized")
        answer = ask(client, CHANGES[0], x_admin_key="dev-admin-key")
        assert_problem(answer, 400, "unknown_parameter")


@pytest.mark.parametrize(
    ("workflow", "run_id", "refused"),
    [
        ("headwater-forget", "f-1", True),
        ("headwater-schedule", "headwater-verify", True),
        ("headwater-schedule", "nightly", False),
        ("headwater-message", "m-1", False),
        ("order", "headwater-forget", False),
    ],
)
def test_runs_are_changed_by_id_under_the_same_rule(workflow: str, run_id: str, refused: bool):
    request: Any = SimpleNamespace(scope={"headers": []})
    admit(request.scope, Caller("world:00000000", frozenset({"world:write"})))
    assert is_system_instance(workflow, run_id) is refused
    if refused:
        with pytest.raises(Problem) as raised:
            asyncio.run(attempt_change(request, run_id, workflow))
        assert raised.value.code == "insufficient_scope"
    else:
        asyncio.run(attempt_change(request, run_id, workflow))


READS = ("instances", "instances/n-1", "instances/n-1/history", "instances/n-1/history/export")


@pytest.mark.parametrize("workflow", ["headwater-notification", "headwater-reaction"])
def test_instances_with_rows_are_read_by_those_who_may_read_rows(client: Client, workflow: str):
    for path in READS:
        url = f"{BASE}/{workflow}/{path}?lmit=1"
        for key in (all_but("rows:read"), "dev-workflow-key"):
            answer = client.get(url, headers={"x-api-key": key})
            problem = assert_problem(answer, 403, "insufficient_scope")
            assert problem["needed"] == ["rows:read"]
        answer = client.get(url, headers={"x-api-key": all_but("system:write")})
        assert_problem(answer, 400, "unknown_parameter")


def test_behind_hooks_instances_with_rows_are_read_with_a_key():
    hooks = WorkflowHooks(authorize_request=lambda _context: None)
    app = memory_app(workflows=memory_workflows(hooks=hooks))
    url = f"{BASE}/headwater-notification/instances/n-1?lmit=1"
    with TestClient(app, raise_server_exceptions=False) as client:
        assert_problem(client.get(url), 401, "unauthorized")
        answer = client.get(url, headers={"x-admin-key": "dev-admin-key"})
        assert_problem(answer, 400, "unknown_parameter")


class WithRows:
    """A run of every id, with a notification."""

    async def find(self, run_id: str, workflow: str | None = None) -> list[FoundRun]:
        del workflow
        run = Run(
            run_id=run_id,
            workflow_name="headwater-notification",
            status=RunState.COMPLETED,
            deployment_id=None,
            created_at=AT,
            started_at=AT,
            updated_at=AT,
            completed_at=AT,
            input=None,
        )
        return [FoundRun(run=run, partition=0, offset=1)]

    async def page(self, **_: object) -> Page[Any]:
        return Page(rows=[], cursor=None)

    async def parts(self, part: RunPart, limit: int, after: str | None) -> Parts:
        del part, limit, after
        return Parts(["headwater-notification"], Page(rows=[], cursor=None))

    steps = hooks = waits = events = parts


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/n-1",
        "/v1/world/runs?workflowName=headwater-notification",
        "/v1/world/runs/n-1",
        "/v1/world/events?runId=n-1",
        "/v1/world/steps/attempt?runId=n-1",
    ],
)
def test_runs_with_rows_are_read_by_id_under_the_same_rule(path: str):
    rows: Any = WithRows()
    ports = RunPorts(
        rows=rows,
        keys=IdempotencyKeys(without_postgres()),
        deployments=MemoryDeployments(),
        project_id="default",
    )
    app = memory_app(
        workflows=memory_workflows(run_ports=ports, world=rows, workflows=UpToDate()),
        api_keys=MemoryApiKeys(all_keys()),
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get(path, headers={"x-api-key": all_but("rows:read")})
        assert assert_problem(answer, 403, "insufficient_scope")["needed"] == ["rows:read"]
        answer = client.get(path, headers={"x-api-key": all_but("system:write")})
        assert answer.status_code in {200, 404}, answer.text
