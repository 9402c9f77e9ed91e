"""Runs that operators move to other code: what is checked before a command is sent."""

from collections.abc import Iterator

import pytest
from litestar.testing import TestClient

from headwater.gateway.settings.settings import Settings
from headwater.schemas.history import MoveRun
from tests.fakes.deployments import with_active_deployment
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.workflow_fakes import MemoryCommands

KEY = {"authorization": "Bearer dev-workflow-key"}
MOVE = "/api/workflows/workflows/order/instances/order-1/move"
BULK = "/api/workflows/workflows/order/bulk"


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
    assert move(client, deployment=requested) == (202, "")
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


def test_a_dry_run_reads_the_instance_and_sends_nothing(
    client: TestClient, commands: MemoryCommands
) -> None:
    commands.sent.clear()
    assert move(client, deployment="dep_1", dryRun=True) == (503, "store_unavailable")
    assert not commands.sent
