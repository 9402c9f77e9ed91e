"""Queues over HTTP without Postgres: what a message becomes, and how often it is published."""

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.front import front_of
from headwater.gateway.api.workflows import Denied, RequestContext, WorkflowHooks
from headwater.gateway.api.workflows.runs.run_service import RunPorts
from headwater.processors.queue_messages import DELIVERY
from headwater.processors.triggers.rules import read_rules
from headwater.projections.workflows.runs import Runs
from headwater.schemas.history import Label, StartRun
from headwater.streams.workflows.client import Addressed
from tests.fakes.deployments import MemoryDeployments, with_active_deployment
from tests.unit.gateway.memory_app import memory_app, memory_workflows, without_postgres
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_callers_keys import MemoryKeys
from tests.unit.gateway.workflow_fakes import MemoryCommands

KEY = {"x-api-key": "dev-workflow-key", "prefer": "respond-async"}
WORLD_KEY = {"x-api-key": "dev-world-key"}
ORDER = "/v1/queues/order/messages"
WORLD_NAME = "__wkf_workflow_workflow//./src/order.ts//order"
RULES = """
[[rule]]
name = "begin"
queue = "__wkf_*"
workflow = "order"
mode = "start"
"""


class Served(NamedTuple):
    client: TestClient[Any]
    commands: MemoryCommands
    denied: list[str | None]

    def sent(self) -> Addressed:
        (command,) = self.commands.sent
        self.commands.sent.clear()
        return command


def serving(deployments: MemoryDeployments | None = None) -> Iterator[Served]:
    commands, denied = MemoryCommands(), list[str | None]()

    def may(context: RequestContext) -> Denied | None:
        denied.append(context.workflow_name)
        return Denied() if context.workflow_name == "secret" else None

    ports = RunPorts(
        rows=Runs(without_postgres()),
        keys=MemoryKeys(),
        deployments=deployments or with_active_deployment("order"),
        project_id="default",
    )
    workflows = memory_workflows(
        commands=commands,
        run_ports=ports,
        rules=read_rules(RULES),
        hooks=WorkflowHooks(authorize_instance_creation=may),
    )
    with TestClient(front_of(memory_app(workflows=workflows)), "http://127.0.0.1") as client:
        yield Served(client, commands, denied)


@pytest.fixture
def served() -> Iterator[Served]:
    yield from serving()


def started(command: Addressed) -> StartRun:
    assert isinstance(command.command, StartRun)
    return command.command


def test_a_message_is_a_run_or_is_kept_until_it_is_due(served: Served):
    answer = served.client.post(ORDER, json={"message": {"sku": "x"}}, headers=KEY)
    assert answer.status_code == 200, answer.text
    command = served.sent()
    assert (command.workflow, command.instance_id) == ("order", answer.json()["messageId"])
    assert started(command).params == '{"sku": "x"}'.replace(": ", ":")

    body = {"message": {"sku": "x"}, "delaySeconds": 1.5, "headers": {"a": "b"}}
    answer = served.client.post(ORDER, json=body, headers=KEY)
    command = served.sent()
    assert (command.workflow, command.instance_id) == (DELIVERY, answer.json()["messageId"])
    assert started(command).labels == (Label("queue", "order"),)
    assert msgspec.json.decode(started(command).params) == {
        "queue": "order",
        "body": {"sku": "x"},
        "delay_ms": 1500,
        "headers": {"a": "b"},
        "deployment": None,
    }


def test_a_queue_of_the_world_has_any_name(served: Served):
    answer = served.client.post(
        f"/v1/queues/{quote(WORLD_NAME, safe='')}/messages", json={"message": 1}, headers=KEY
    )
    assert answer.status_code == 200, answer.text
    assert started(served.sent()).labels == (Label("queue", WORLD_NAME),)
    assert served.denied[-1] == "order"
    opts = {"headers": {"a": "b"}, "delaySeconds": 2, "specVersion": 2, "deploymentId": "dep_1"}
    answer = served.client.post(
        "/v1/world/queue/publish",
        json={"queueName": WORLD_NAME, "message": 1, "opts": opts},
        headers=WORLD_KEY,
    )
    assert answer.status_code == 200, answer.text
    queued = msgspec.json.decode(started(served.sent()).params)
    assert (queued["delay_ms"], queued["deployment"][0]) == (2000, "dep_1")


def test_a_key_publishes_once_in_its_queue(served: Served):
    headers = KEY | {"idempotency-key": "k"}
    first = served.client.post(ORDER, json={"delaySeconds": 1}, headers=headers).json()
    again = served.client.post(ORDER, json={"delaySeconds": 9}, headers=headers).json()
    assert again == {"messageId": first["messageId"], "deduped": True}
    assert len(served.commands.sent) == 1
    other = served.client.post("/v1/queues/bill/messages", json={}, headers=headers)
    assert_problem(other, 409, "idempotency_conflict")
    assert len(served.commands.sent) == 1


@pytest.mark.parametrize(
    ("queue", "body", "status", "code"),
    [
        ("no//rule", {}, 404, "WORKFLOW_NOT_FOUND"),
        ("headwater-prune", {}, 404, "WORKFLOW_NOT_FOUND"),
        ("headwater-prune", {"delaySeconds": 1}, 404, "WORKFLOW_NOT_FOUND"),
        ("secret", {}, 403, "forbidden"),
        ("order", {"deploymentId": "dep_none"}, 404, "deployment_not_found"),
        ("order", {"delaySeconds": -1}, 400, "invalid_body"),
        ("order", {"delaySeconds": 1e9}, 400, "invalid_body"),
        ("order", {"headers": {"a": "x" * 2_000}}, 400, "invalid_body"),
        ("order", {"delay": 1}, 400, "invalid_body"),
    ],
)
def test_what_cannot_be_published(served: Served, queue: str, body: object, status: int, code: str):
    path = f"/v1/queues/{quote(queue, safe='')}/messages"
    answer = served.client.post(path, json=body, headers=KEY)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert not served.commands.sent


def test_only_the_world_needs_an_active_deployment():
    for served in serving(MemoryDeployments()):
        assert served.client.post(ORDER, json={}, headers=KEY).status_code == 200
        served.sent()
        answer = served.client.post(
            "/v1/world/queue/publish", json={"queueName": "order"}, headers=WORLD_KEY
        )
        assert_problem(answer, 409, "no_active_deployment")
