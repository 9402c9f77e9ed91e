"""Operations append their attempt before they change anything; appends are counted."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.schemas.deployments import DeployedWorkflow, DeploymentCreated
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.definitions import MemoryDefinitions
from tests.fakes.delivery_log import MemoryReplays
from tests.fakes.deployments import MemoryDeployments, with_active_deployment
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_auditing import (
    ADMIN,
    EVENTS,
    GRAPH,
    KEY,
    ORDER,
    TOUCHING,
    WORLD_KEY,
    metadata,
)
from tests.unit.gateway.workflow_fakes import MemoryCommands


class System(NamedTuple):
    """A gateway over memory, and everything that its operations change."""

    client: TestClient[Any]
    audit: MemoryAudit
    commands: MemoryCommands
    definitions: MemoryDefinitions
    deployments: MemoryDeployments
    replays: MemoryReplays

    def changes(self) -> tuple[object, ...]:
        return (
            len(self.commands.sent),
            self.definitions.catalogue.newest("review"),
            self.deployments.deployments.active,
            len(self.deployments.deployments.by_id),
            len(self.replays.replayed),
        )


@pytest.fixture(scope="module")
def served() -> Iterator[System]:
    audit, commands, definitions = MemoryAudit(), MemoryCommands(), MemoryDefinitions()
    deployments, replays = with_active_deployment("order"), MemoryReplays()
    deployments.deployments.apply(
        DeploymentCreated(
            id="dep_2",
            app="shop",
            digest="ab12",
            size=1,
            offset=0,
            workflows=(DeployedWorkflow(name="order", kind="code"),),
            by="admin:00000000",
            at_ms=3,
        )
    )
    workflows = memory_workflows(
        commands=commands, definitions=definitions, deployments=deployments
    )
    app = memory_app(audit=audit, workflows=workflows, replays=replays)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield System(client, audit, commands, definitions, deployments, replays)


@pytest.fixture
def system(served: System) -> System:
    served.audit.clear()
    return served


Send = Callable[[TestClient[Any]], httpx2.Response]


def posts(path: str, body: object, key: dict[str, str]) -> Send:
    return lambda client: client.post(path, json=body, headers=key)


POSITIONS = [{"partition": 0, "offset": offset} for offset in (3, 4)]
#: Operations that need no Postgres to change something.
OPERATIONS: dict[str, Send] = {
    **{
        path: posts(path, body, KEY) for path, (body, _) in TOUCHING.items() if "/runs/" not in path
    },
    "publish": posts("/v1/world/queue/publish", {"queueName": "order", "message": 1}, WORLD_KEY),
    "run_created": posts(
        "/v1/world/events/create",
        {"runId": None, "data": {"eventType": "run_created", **EVENTS["run_created"]}},
        WORLD_KEY,
    ),
    "graph": lambda client: client.put("/api/graphs/review", json=GRAPH, headers=KEY),
    "dead letters": posts("/admin/dlq/replay", {"positions": POSITIONS}, ADMIN),
    "activate": posts("/v1/deployments/dep_2/activate", {}, ADMIN),
    "rollback": posts("/v1/deployments/rollback", {}, ADMIN),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_its_attempt_an_operation_changes_nothing(system: System, operation: str):
    before = system.changes()
    system.audit.away = True
    assert_problem(OPERATIONS[operation](system.client), 503, "audit_unavailable")
    assert system.changes() == before
    system.audit.clear()
    answer = OPERATIONS[operation](system.client)
    assert answer.is_success, answer.text
    assert system.changes() != before
    # The cost of an operation: two entries. Of a rejected request it is one, see below.
    assert [entry.result for entry in system.audit.log] == ["attempted", "success"]


@pytest.mark.parametrize(
    "send",
    [
        posts(ORDER, {"id": "a", "params": {}, "more": 1}, KEY),
        posts(f"{ORDER}/batch", {"instances": []}, KEY),
        posts("/v1/world/queue/publish", {"queueName": ""}, WORLD_KEY),
        posts("/v1/deployments/dep_none/activate", {}, ADMIN),
        posts("/admin/dlq/replay", {"all": True, "positions": POSITIONS}, ADMIN),
        posts("/admin/dlq/replay", {"positions": POSITIONS, "dry_run": True}, ADMIN),
        posts("/v1/runs", {"workflowName": "order"}, KEY),
    ],
)
def test_what_is_rejected_or_only_counted_has_one_entry(system: System, send: Send):
    before = system.changes()
    send(system.client)
    assert [entry.result for entry in system.audit.log] != ["attempted"]
    assert len(system.audit.log) == 1
    assert system.changes() == before


def held(system: System) -> tuple[dict[str, Any], dict[str, Any]]:
    attempt, result = system.audit.log
    return metadata(attempt), metadata(result)


def test_entries_of_an_activation_name_both_deployments(system: System):
    for send, deployment, replaces in (
        (OPERATIONS["activate"], "dep_2", "dep_1"),
        (OPERATIONS["rollback"], "dep_1", "dep_2"),
    ):
        if system.deployments.deployments.active.id == deployment:  # type: ignore[union-attr]
            posts(f"/v1/deployments/{replaces}/activate", {}, ADMIN)(system.client)
        system.audit.clear()
        assert send(system.client).status_code == 200
        for entry in held(system):
            assert (entry["deployment"], entry["replaces"]) == (deployment, replaces)
            assert entry["app"] == ("shop" if deployment == "dep_2" else "app")
            assert entry["digest"] == ("ab12" if deployment == "dep_2" else "00")


def test_entries_of_a_replay_of_dead_letters_name_their_positions(system: System):
    OPERATIONS["dead letters"](system.client)
    for entry in held(system):
        assert (entry["positions"], entry["count"]) == (["0@3", "0@4"], 2)


def test_many_positions_are_in_the_entry_as_their_digest_and_number(system: System):
    many = [{"partition": 0, "offset": offset} for offset in range(101)]
    posts("/admin/dlq/replay", {"positions": many}, ADMIN)(system.client)
    for entry in held(system):
        assert entry["count"] == entry["positions"]["count"] == 101
        assert len(entry["positions"]["sha256"]) == 64


def test_an_attempt_to_create_a_run_names_the_run(system: System):
    for operation in ("publish", "run_created", ORDER):
        system.audit.clear()
        OPERATIONS[operation](system.client)
        attempt, result = held(system)
        assert attempt["runId"] == result["runId"] == system.commands.sent[-1].instance_id
        assert attempt["workflow"] == result["workflow"] == "order"
