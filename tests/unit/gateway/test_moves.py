"""Runs that operators move to other code: what is checked before a command is sent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.settings.settings import Settings
from headwater.schemas.failures import INSTANCE_NOT_FOUND, INSTANCE_TERMINAL, REPLAY_DIVERGED
from headwater.schemas.history import MoveRun
from tests.fakes.deployments import with_active_deployment
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.test_deployment_routes import artifact
from tests.unit.gateway.test_replay_gate import Gate, code, opened
from tests.unit.gateway.workflow_fakes import MemoryCommands

KEY = {"authorization": "Bearer dev-workflow-key"}
MOVE = "/api/workflows/workflows/order/instances/order-1/move"
BULK = "/api/workflows/workflows/order/bulk"


FORCED = {"force": True, "reason": "it is fixed"}


@pytest.fixture(scope="module")
def commands() -> MemoryCommands:
    return MemoryCommands()


@pytest.fixture(scope="module")
def client(commands: MemoryCommands) -> Iterator[TestClient]:
    workflows = memory_workflows(with_active_deployment("order"), commands=commands)
    with TestClient(memory_app(Settings(), workflows=workflows)) as client:
        yield client


def move(client: TestClient, **body: object) -> tuple[int, str]:
    headers = {**KEY, "prefer": "respond-async"}
    answer = client.post(MOVE, json=body, headers=headers)
    return answer.status_code, answer.json().get("code", "")


@pytest.mark.parametrize(
    ("requested", "sent"), [("dep_1", "dep_1"), ("active", "dep_1"), ("app", "app")]
)
def test_a_move_is_sent_with_the_id_of_the_deployment(
    client: TestClient, commands: MemoryCommands, requested: str, sent: str
) -> None:
    commands.sent.clear()
    forced = {} if requested == "app" else FORCED
    assert move(client, deployment=requested, **forced) == (202, "")
    assert [item.command for item in commands.sent] == [MoveRun(sent)]


def test_a_move_to_a_deployment_without_the_workflow_is_refused_and_not_sent(
    client: TestClient, commands: MemoryCommands
) -> None:
    commands.sent.clear()
    assert move(client, deployment="dep_none") == (404, "deployment_not_found")
    for path in (MOVE.replace("/order/", "/news/"), BULK.replace("/order/", "/news/")):
        body = {"deployment": "dep_1"}
        if path.endswith("bulk"):
            body |= {"action": "move", "status": "waiting"}
        answer = client.post(path, json=body, headers=KEY)
        assert (answer.status_code, answer.json()["code"]) == (404, "WORKFLOW_NOT_FOUND")
    assert not commands.sent


@pytest.mark.parametrize("dry_run", [True, False])
def test_without_postgres_a_run_cannot_be_replayed_and_is_not_moved(
    client: TestClient, commands: MemoryCommands, dry_run: bool
) -> None:
    commands.sent.clear()
    assert move(client, deployment="dep_1", dryRun=dry_run) == (503, "store_unavailable")
    assert not commands.sent


# -- replayed before

POLL = "/api/workflows/workflows/poll"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    yield from opened(Gate(data_dir=tmp_path))


def posted(gate: Gate, path: str, **body: object) -> tuple[int, dict[str, Any]]:
    answer = gate.client.post(f"{POLL}/{path}", json=body, headers=KEY)
    return answer.status_code, answer.json()


def moved(gate: Gate) -> list[tuple[str, object]]:
    return [(item.instance_id, item.command) for item in gate.commands.sent]


def test_a_run_that_fits_the_code_is_moved(gate: Gate) -> None:
    gate.record("p-1", deployment="dep_old")
    name = gate.deploy(code(), latest=False)
    assert posted(gate, "instances/p-1/move", deployment=name, dryRun=True)[0] == 200
    assert not moved(gate)
    assert posted(gate, "instances/p-1/move", deployment=name)[0] in {200, 202}
    assert moved(gate) == [("p-1", MoveRun(name))]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_run_that_does_not_fit_is_refused_with_the_first_difference(
    gate: Gate, dry_run: bool
) -> None:
    gate.record("p-1", deployment="dep_old")
    name = gate.deploy(code("load"), latest=False)
    status, problem = posted(gate, "instances/p-1/move", deployment=name, dryRun=dry_run)
    assert (status, problem["code"]) == (409, REPLAY_DIVERGED)
    assert f"expected poll/p-1 to fit {name}" in problem["detail"]
    difference = "(recorded: do fetch, event 1; requested: do load at orders.py:6)"
    assert difference in problem["detail"]
    (run,) = problem["report"]["runs"]
    assert run["moves"]
    assert not moved(gate)


def test_a_forced_move_needs_a_reason_and_is_audited_with_it(gate: Gate) -> None:
    gate.record("p-1", deployment="dep_old")
    name = gate.deploy(code("load"), latest=False)
    where = "instances/p-1/move"
    for half in ({"force": True}, {"reason": "it is fixed"}):
        assert posted(gate, where, deployment=name, **half)[0] == 400
        assert (
            posted(gate, "bulk", action="move", status="waiting", deployment=name, **half)[0] == 400
        )
    assert posted(gate, where, deployment=name, **FORCED)[0] in {200, 202}
    assert moved(gate) == [("p-1", MoveRun(name))]
    details = [entry.metadata for entry in gate.audit.entries if entry.result == "success"][-1]
    assert '"forced":"it is fixed"' in details
    assert '"diverged":["poll/p-1"]' in details


DIFFERS_FOR_ONE = """
from headwater import workflow

@workflow("poll")
async def poll(event, step):
    await step.do("load" if event.instance_id == "p-2" else "fetch", str)
    await step.wait_for_event("go", type="go")
"""


def test_of_a_page_those_that_fit_are_moved(gate: Gate) -> None:
    gate.record("p-1", "p-2", deployment="dep_old")
    name = gate.deploy(artifact(orders=DIFFERS_FOR_ONE), latest=False)
    change = {"action": "move", "status": "waiting", "deployment": name}
    for dry_run in (True, False):
        status, page = posted(gate, "bulk", **change, dryRun=dry_run)
        assert status in {200, 202}
        results = {row["id"]: row.get("code") for row in page["instances"]}
        assert results == {"p-1": None, "p-2": REPLAY_DIVERGED}
        (refused,) = [row for row in page["instances"] if "code" in row]
        assert "requested: do load at orders.py:6" in refused["detail"]
        assert moved(gate) == ([] if dry_run else [("p-1", MoveRun(name))])
    gate.commands.sent.clear()
    _, page = posted(gate, "bulk", **change, **FORCED)
    assert [row.get("code") for row in page["instances"]] == [None, None]
    assert len(moved(gate)) == 2


def test_a_move_to_the_code_of_apps_states_that_nothing_was_replayed(gate: Gate) -> None:
    gate.record("p-1", deployment="dep_old")
    _, answer = posted(gate, "instances/p-1/move", deployment="app", dryRun=True)
    _, page = posted(gate, "bulk", action="move", status="waiting", deployment="app")
    for body in (answer, page):
        assert "the code of --app is with the workers" in body["notReplayed"]
    assert moved(gate) == [("p-1", MoveRun("app"))]


@pytest.mark.parametrize("why", ["history", "code"])
def test_a_run_that_cannot_be_replayed_is_not_moved(gate: Gate, why: str) -> None:
    gate.record("p-1", deployment="dep_old")
    name = gate.deploy(code() if why == "history" else b"no zip", latest=False)
    if why == "history":
        gate.runs.records.clear()
    status, problem = posted(gate, "instances/p-1/move", deployment=name)
    assert (status, problem["code"]) == (409, REPLAY_DIVERGED)
    reason = "its history is not complete" if why == "history" else "expected a zip"
    assert f"it could not be replayed: {reason}" in problem["detail"]


def test_what_is_there_already_is_not_replayed_and_what_has_ended_is_refused(gate: Gate) -> None:
    name = gate.deploy(code("load"), latest=False)
    gate.record("p-1", deployment=name)
    gate.record("p-2", ended=["p-2"], deployment="dep_old")
    assert posted(gate, "instances/p-1/move", deployment=name)[0] in {200, 202}
    assert posted(gate, "instances/p-2/move", deployment=name)[1]["code"] == INSTANCE_TERMINAL
    assert posted(gate, "instances/p-3/move", deployment=name)[1]["code"] == INSTANCE_NOT_FOUND
    assert moved(gate) == [("p-1", MoveRun(name))]
