"""The routes of runs without Postgres: who may, and what is asked before anything is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient
from typing_extensions import override

from headwater.gateway.api.workflows import Denied, RequestContext, WorkflowHooks
from headwater.gateway.api.workflows.runs.run_service import RunPorts
from headwater.projections.gateway_state import IdempotencyKeys
from headwater.projections.workflows.queries import Workflows
from headwater.projections.workflows.runs import FoundRun
from headwater.schemas.statuses import RunState
from headwater.schemas.v1_answers import Run
from tests.fakes.deployments import MemoryDeployments
from tests.unit.gateway.memory_app import memory_app, memory_workflows, without_postgres
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import AT, MemoryCommands

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
    assert [(item.policy, item.workflow_name, item.instance_id, item.body) for item in asked] == [
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


class UpToDate(Workflows):
    """A projection of nothing, which is as far as the history."""

    def __init__(self) -> None:
        super().__init__(without_postgres())

    @override
    async def next_offsets(self) -> dict[int, int]:
        return {}


class MemoryRunRows:
    """Runs by their workflows and ids; counts how often it was asked."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._names = names
        self.asked = 0

    async def find(self, run_id: str, workflow: str | None = None) -> list[FoundRun]:
        self.asked += 1
        return [
            FoundRun(run=_run(name, one), partition=0, offset=1)
            for name, one in self._names
            if one == run_id and workflow in {None, name}
        ]


def _run(workflow: str, run_id: str) -> Run:
    return Run(
        run_id=run_id,
        workflow_name=workflow,
        status=RunState.CANCELLED,
        deployment_id=None,
        created_at=AT,
        started_at=AT,
        updated_at=AT,
        completed_at=AT,
        input=None,
    )


#: A caller asks for a run, and names its workflow or not.
ASKS: list[Callable[[Client, str, str], httpx2.Response]] = [
    lambda client, run, query: client.get(f"/v1/runs/{run}{query}", headers=KEY),
    lambda client, run, query: client.post(f"/v1/runs/{run}/cancel{query}", headers=KEY),
]


@contextmanager
def tenants(rows: MemoryRunRows, *seen: str | None) -> Iterator[Client]:
    """A gateway whose hooks show workflows of these names; None stands for no name."""

    def only_theirs(context: RequestContext) -> Denied | None:
        return None if context.workflow_name in seen else Denied(detail="not yours")

    hooks = WorkflowHooks(authorize_instance_read=only_theirs, authorize_management=only_theirs)
    run_ports = RunPorts(
        rows=rows,  # type: ignore[arg-type]
        keys=IdempotencyKeys(without_postgres()),
        deployments=MemoryDeployments(),
        project_id="default",
    )
    app = memory_app(
        workflows=memory_workflows(hooks=hooks, run_ports=run_ports, workflows=UpToDate())
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def _answer(answer: httpx2.Response) -> tuple[int, dict[str, Any]]:
    body = answer.json()
    return answer.status_code, {name: body[name] for name in ("code", "detail", "title")}


@pytest.mark.parametrize("seen", [("mine",), ("mine", None)])
def test_a_run_that_hooks_keep_from_the_caller_is_answered_as_one_that_does_not_exist(
    seen: tuple[str | None, ...],
) -> None:
    rows = MemoryRunRows(("theirs", "run-1"), ("others", "run-1"))
    with tenants(rows, *seen) as client, tenants(MemoryRunRows(), *seen) as empty:
        for ask in ASKS:
            for query in ("?workflowName=theirs", "?workflowName=none"):
                assert _answer(ask(client, "run-1", query)) == _answer(ask(empty, "run-1", query))
                assert ask(client, "run-1", query).status_code == 403
        assert rows.asked == 0
        for ask in ASKS:
            result = _answer(ask(client, "run-1", ""))
            assert result == _answer(ask(empty, "run-1", ""))
            assert result[0] == (404 if None in seen else 403)


def test_of_the_runs_of_an_id_the_caller_is_told_of_those_that_it_may_see() -> None:
    rows = MemoryRunRows(
        *(("theirs", "run-1"), ("mine", "run-1")),
        *(("theirs", "run-2"), ("mine", "run-2"), ("ours", "run-2")),
    )
    with tenants(rows, "mine", "ours") as client:
        for ask in ASKS:
            for query in ("", "?workflowName=mine"):
                answer = ask(client, "run-1", query)
                assert (answer.status_code, answer.json()["workflowName"]) == (200, "mine")
            problem = assert_problem(ask(client, "run-2", ""), 409, "ambiguous_run")
            assert "found it in mine and ours;" in problem["detail"]
            assert "theirs" not in problem["detail"]


def test_a_hook_that_is_broken_is_not_taken_for_one_that_denies() -> None:
    def broken(_: RequestContext) -> None:
        raise RuntimeError("a bug of the hook's")

    run_ports = RunPorts(
        rows=MemoryRunRows(("theirs", "run-1")),  # type: ignore[arg-type]
        keys=IdempotencyKeys(without_postgres()),
        deployments=MemoryDeployments(),
        project_id="default",
    )
    hooks = WorkflowHooks(authorize_instance_read=broken, authorize_management=broken)
    app = memory_app(
        workflows=memory_workflows(hooks=hooks, run_ports=run_ports, workflows=UpToDate())
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        for ask in ASKS:
            assert_problem(ask(client, "run-1", ""), 500, "internal_error")
