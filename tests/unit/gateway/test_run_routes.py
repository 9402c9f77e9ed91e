"""The routes of runs without Postgres: who may, and what is asked before anything is done."""

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.workflows import Denied, RequestContext, WorkflowHooks
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands

KEY = {"x-api-key": "dev-workflow-key", "idempotency-key": "key"}
WORLD_KEY = {"x-api-key": "dev-world-key"}

Client = TestClient[Any]


@pytest.fixture
def asked() -> list[RequestContext]:
    return []


@pytest.fixture
def commands() -> MemoryCommands:
    return MemoryCommands()


@pytest.fixture
def client(asked: list[RequestContext], commands: MemoryCommands) -> Iterator[Client]:
    def deny(context: RequestContext) -> Denied:
        asked.append(context)
        return Denied()

    hooks = WorkflowHooks(
        authorize_instance_creation=deny, authorize_instance_read=deny, authorize_management=deny
    )
    app = memory_app(workflows=memory_workflows(hooks=hooks, commands=commands))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_hooks_are_asked_about_the_workflow_that_a_run_is_of(
    client: Client, asked: list[RequestContext], commands: MemoryCommands
) -> None:
    body = {"workflowName": "order", "input": {"sku": "x"}}
    assert_problem(client.post("/v1/runs", json=body, headers=KEY), 403, "forbidden")
    assert_problem(client.get("/v1/runs?workflowName=order", headers=KEY), 403, "forbidden")
    assert_problem(client.get("/v1/runs", headers=KEY), 403, "forbidden")
    assert [(each.policy, each.workflow_name, each.instance_id, each.body) for each in asked] == [
        ("instance_creation", "order", None, {"id": None, "params": {"sku": "x"}}),
        ("instance_read", "order", None, None),
        ("instance_read", None, None, None),
    ]
    assert not commands.sent


def test_what_is_wrong_is_said_as_message_too(client: Client) -> None:
    wrong = [
        client.post("/v1/runs", json={"workflowName": "order"}, headers={}),
        client.post(
            "/v1/runs", json={"workflowName": "order"}, headers={"x-api-key": KEY["x-api-key"]}
        ),
        client.post("/v1/runs", content=b"{", headers=KEY),
        client.get("/v1/runs?lmit=1", headers=KEY),
        client.get("/v1/runs?limit=1001", headers=KEY),
        client.post("/v1/world/queue/publish", json={"queueName": "order"}, headers=WORLD_KEY),
    ]
    codes = [
        *("unauthorized", "idempotency_required", "invalid_body", "unknown_parameter"),
        *("invalid_parameter", "no_active_deployment"),
    ]
    for answer, code in zip(wrong, codes, strict=True):
        problem = assert_problem(answer, answer.status_code, code)
        assert problem["message"] == problem["detail"]
    elsewhere = client.get("/api/workflows/workflows?lmit=1", headers=KEY).json()
    assert "message" not in elsewhere
