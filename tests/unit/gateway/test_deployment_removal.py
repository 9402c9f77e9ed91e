"""Removals over HTTP: what is removed, what is refused, and what a run that begins meanwhile does.

Rows and replies of workers are scripted; that a fence orders both is proven on real brokers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.projections.workflows.queries import DeploymentRuns, Workflows
from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRetired,
)
from headwater.streams.workflows.client import Addressed
from tests.fakes.deployments import MemoryDeployments
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands, reply

OPERATOR = {"x-admin-key": "dev-admin-key"}
NIGHTLY = '{"workflow": "order", "cron": "0 2 * * *", "timezone": "UTC"}'
ONE, TWO = (f"dep_{number:020}" for number in (1, 2))


class System:
    """Two deployments, of which the second is active, and the open runs of the first.

    Attributes:
        open: Open runs at each count; the last number stays.
    """

    def __init__(self) -> None:
        self.log = MemoryDeployments()
        self.commands = MemoryCommands()
        self.open = [0]
        self.counted = 0
        self.client: TestClient[Any]
        for name in (ONE, TWO):
            self.log.deployments.apply(created(name))
            self.log.deployments.apply(
                DeploymentActivated(id=name, after="", rollback=False, by="k", at_ms=1)
            )

    async def runs(self, deployments: dict[str, list[str]]) -> dict[str, DeploymentRuns]:
        number = self.open[min(self.counted, len(self.open) - 1)]
        self.counted += 1
        return dict.fromkeys(deployments, DeploymentRuns(number, None))

    def remove(self, name: str = ONE, **query: object) -> httpx2.Response:
        return self.client.delete(f"/v1/deployments/{name}", headers=OPERATOR, params=query)  # type: ignore[arg-type]

    @property
    def is_open(self) -> bool:
        return ONE not in self.log.deployments.retired


def created(name: str) -> DeploymentCreated:
    return DeploymentCreated(
        id=name,
        app="orders",
        digest="d",
        size=1,
        offset=0,
        workflows=(
            DeployedWorkflow(name="order", kind="replay"),
            DeployedWorkflow(name="plan", kind="graph", document="{}"),
        ),
        by="admin:1",
        at_ms=1,
        schedules=(DeployedSchedule(name="nightly", declared=NIGHTLY),),
    )


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    system = System()

    async def applied(_: Workflows) -> dict[int, int]:
        return {1: 8}

    async def runs(_: Workflows, deployments: dict[str, list[str]]) -> dict[str, DeploymentRuns]:
        return await system.runs(deployments)

    monkeypatch.setattr(Workflows, "next_offsets", applied)
    monkeypatch.setattr(Workflows, "runs_of_deployments", runs)
    workflows = memory_workflows(deployments=system.log, commands=system.commands)
    with TestClient(memory_app(workflows=workflows), raise_server_exceptions=False) as client:
        system.client = client
        yield system


def test_what_no_run_is_on_is_removed(system: System):
    assert system.remove().status_code == 204
    assert system.log.discarded == [ONE]
    fold = system.log.deployments
    assert (list(fold.by_id), fold.activations, fold.is_removed(ONE)) == ([TWO], [TWO], True)
    # Workers still have to end what it had declared, and the active one declares it as well.
    assert fold.retired[ONE].schedules == ("nightly",)
    assert fold.retired[ONE].graphs == ("plan",)
    for answer in (
        system.client.get(f"/v1/deployments/{ONE}", headers=OPERATOR),
        system.client.post(f"/v1/deployments/{ONE}/activate", headers=OPERATOR),
        system.remove(),
    ):
        problem = assert_problem(answer, 410, "deployment_removed")
        assert "deploy the same artifact again" in problem["detail"]
    # A gateway may have been killed before it deleted the records: a repetition does it.
    assert system.log.discarded == [ONE, ONE]


def test_open_runs_keep_it(system: System):
    system.open = [3]
    problem = assert_problem(system.remove(), 409, "deployment_in_use")
    assert problem["openRuns"] == 3
    assert (system.is_open, system.log.discarded) == (True, [])


def test_a_run_that_begins_meanwhile_keeps_it(system: System):
    system.open = [0, 0, 1]
    problem = assert_problem(system.remove(), 409, "deployment_in_use")
    assert problem["openRuns"] == 1
    assert len(system.commands.sent) == 2, "a fence through both partitions"
    assert (system.is_open, system.log.discarded) == (True, [])


def test_the_fence_comes_after_the_closing_and_before_the_count(system: System):
    system.open = [0]
    seen: list[tuple[bool, int]] = []

    def answer(_: Addressed) -> Any:  # noqa: ANN401 (a reply)
        seen.append((system.is_open, system.counted))
        return reply(code="INSTANCE_NOT_FOUND")

    system.commands.answer = answer
    assert system.remove().status_code == 204
    assert seen == [(False, 2), (False, 2)]
    assert system.counted == 3


def test_who_waits_gets_it_removed_when_its_runs_have_ended(system: System):
    system.open = [2, 1, 0]
    assert system.remove(wait=60).status_code == 204
    assert system.log.discarded == [ONE]


def test_who_waits_too_short_has_it_closed(system: System, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.gateway.api.deployments.removals._POLL_S", 1.0)
    system.open = [2]
    assert_problem(system.remove(wait=1), 409, "deployment_in_use")
    shown = system.client.get(f"/v1/deployments/{ONE}", headers=OPERATOR).json()
    assert (shown["status"], shown["openRuns"]) == ("removing", 2)
    for number in (0, 61, -1, "x"):
        if number:
            assert_problem(system.remove(wait=number), 400, "invalid_parameter")


def test_who_does_not_wait_leaves_it_closed_to_those_who_do(system: System):
    closing = DeploymentRetired(id=ONE, stage=CLOSED, closing="theirs", by="k", at_ms=1)
    system.log.deployments.apply(closing)
    system.open = [0, 0, 1]
    assert_problem(system.remove(), 409, "deployment_in_use")
    assert system.log.deployments.retired[ONE] == closing


def test_what_gets_new_runs_is_not_removed(system: System):
    assert_problem(system.remove(TWO), 409, "deployment_active")
    shared = {"percent": 10}
    system.client.post(f"/v1/deployments/{ONE}/activate", headers=OPERATOR, json=shared)
    assert_problem(system.remove(), 409, "deployment_active")
    unknown = f"dep_{9:020}"
    assert_problem(system.remove(unknown), 404, "deployment_not_found")


def test_without_postgres_or_workers_nothing_is_removed(
    system: System, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headwater.gateway.api.workflows.command_service._FENCE_TIMEOUT_S", 0.05)
    system.commands.answer = lambda _: reply(position=9)
    assert_problem(system.remove(), 503, "store_unavailable")
    assert (system.is_open, system.log.discarded) == (True, [])
    # Whoever waits keeps it closed: the request is repeated.
    assert_problem(system.remove(wait=1), 503, "store_unavailable")
    assert (system.is_open, system.log.discarded) == (False, [])


@pytest.mark.parametrize("runs", [[1], [0, 0, 1]])
def test_a_closing_of_a_gateway_that_was_killed_ends_with_the_next_request(
    system: System, runs: list[int]
):
    left = DeploymentRetired(id=ONE, stage=CLOSED, closing="c", by="k", at_ms=1, temporary=True)
    system.log.deployments.apply(left)
    system.open = runs
    assert_problem(system.remove(), 409, "deployment_in_use")
    assert system.is_open


def test_who_waits_keeps_it_closed_also_if_another_closing_was_temporary(system: System):
    left = DeploymentRetired(id=ONE, stage=CLOSED, closing="c", by="k", at_ms=1, temporary=True)
    system.log.deployments.apply(left)
    system.open = [2]
    assert_problem(system.remove(wait=1), 409, "deployment_in_use")
    system.open = [3]
    assert_problem(system.remove(), 409, "deployment_in_use")
    assert not system.is_open


@pytest.mark.parametrize("again", ["closed", "reopened"])
def test_what_is_reopened_meanwhile_is_counted_again(system: System, again: str):
    """Another request reopens it, and runs begin; it is not removed on the count from before."""
    write: Callable[..., Any] = system.log.write
    counted: list[int] = []
    closings: list[str] = []

    async def reopening(record: Any) -> Any:  # noqa: ANN401 (as there)
        if getattr(record, "stage", "") == CLOSED:
            closings.append(record.closing)
        if getattr(record, "stage", "") == REMOVED and not counted:
            counted.append(system.counted)
            closing = record.closing
            for stage in ("reopened", "closed")[: 2 if again == "closed" else 1]:
                await write(
                    DeploymentRetired(
                        id=ONE,
                        stage=stage,
                        closing=closing if stage == "reopened" else "theirs",
                        by="k",
                        at_ms=1,
                    )
                )
        return await write(record)

    system.log.write = reopening  # type: ignore[method-assign]
    assert system.remove().status_code == 204
    assert system.counted > counted[0]
    # Whoever had counted before the deployment was reopened cannot remove it after that.
    assert len(set(closings)) == len(closings) == 2
