"""Runs below `/v1` on real parts, while deployments are switched and removed."""

import asyncio
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import httpx2
import pytest

from tests.deployed_apps import code_of, deploying
from tests.e2e.system import ADMIN, System
from tests.integration.workflow_routes.v1_requests import (
    KEY,
    create,
    fresh,
    get,
    problem,
    publish,
    tell,
    until,
)


@pytest.fixture(scope="module")
def system(parts: System, first: str) -> System:
    """The system, with an active deployment; it has other workflows than the worker's own app."""
    assert first
    return parts


def test_a_run_begins_on_the_active_deployment_or_on_one_that_is_named(
    system: System, first: str
) -> None:
    def begun(**more: object) -> dict[str, Any]:
        made = create(system, {"workflowName": "order", **more}, fresh("deployed"))
        assert made.status_code == 201, made.text
        return dict(made.json())

    async def activate(code: str) -> str:
        async with deploying(system.bootstrap) as deployer:
            return await deployer.release(code)

    old = begun()
    second = asyncio.run(activate(code_of("second", steps=1)))
    new, named = begun(), begun(deploymentId=first)
    assert [item["deploymentId"] for item in (old, new, named)] == [first, second, first]
    message = publish(
        system, queueName="order", opts={"deploymentId": first, "idempotencyKey": fresh("on")}
    ).json()
    taken = tell(system, fresh("wrun"), "run_created", eventData={"workflowName": "order"}).json()
    runs = [*(item["runId"] for item in (old, new, named)), message["messageId"], taken["runId"]]
    for run_id in runs:
        reported = tell(system, run_id, "hook_received", correlationId="go")
        assert reported.status_code == 200, reported.text
    result = {run_id: until(system, run_id, "completed") for run_id in runs}
    # What each step said, the last in a child: its code is that of the run's deployment.
    said = [result[run_id]["output"] for run_id in runs[:3]]
    assert said == [["first"] * 3, ["second"] * 3, ["first"] * 3]
    assert [result[run_id]["deploymentId"] for run_id in runs[3:]] == [first, second]
    listed = get(system, "/v1/runs", deploymentId=second, workflowName="order").json()["data"]
    assert [item["runId"] for item in listed] == [taken["runId"], new["runId"]]
    other = create(system, {"workflowName": "echo", "deploymentId": first}, fresh("deployed"))
    assert problem(other) == (404, "WORKFLOW_NOT_FOUND")


class Load:
    """Clients that create runs, some on a deployment that they name, until it is stopped.

    Attributes:
        runs: The runs that were created.
        refused: Codes of the refusals.
    """

    def __init__(self, system: System, named: list[str]) -> None:
        self._system, self._named = system, named
        self.runs: list[str] = []
        self.refused: list[str] = []
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        self._begun = [self._pool.submit(self._create_all, number) for number in range(2)]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for client in self._begun:
            client.result()
        self._pool.shutdown()

    def _create_all(self, client: int) -> None:
        for number in itertools.count(client):
            if self._is_over.is_set():
                return
            names = [None, *self._named]
            self._create(names[number % len(names)])

    def _create(self, name: str | None) -> None:
        key = fresh("switched")
        body = {"workflowName": "parcel", "input": key} | ({"deploymentId": name} if name else {})
        while True:
            try:
                answer = create(self._system, body, key)
            except httpx2.TransportError:  # Its outcome is not known, and the key is the same.
                continue
            if answer.is_success:
                self.runs.append(answer.json()["runId"])
                return
            code = answer.json()["code"]
            if answer.status_code != 503:  # The worker is killed: the same request is sent again.
                self.refused.append(code)
                return

    def grows(self) -> None:
        """Return when further runs were created."""
        before = len(self.runs)
        self._system.wait(lambda: len(self.runs) > before + 3, "further runs")


class Operator:
    """Whoever switches deployments."""

    def __init__(self, system: System) -> None:
        self._system = system

    def deploy(self, *texts: str) -> list[str]:
        async def deployed() -> list[str]:
            async with deploying(self._system.bootstrap) as deployer:
                return [await deployer.deploy(code_of(text, steps=1)) for text in texts]

        return asyncio.run(deployed())

    def change(self, path: str, **body: object) -> dict[str, Any]:
        url = f"{self._system.url()}/v1/deployments/{path}"
        # Workers that were killed are awaited before an activation.
        answer = httpx2.post(url, json=body, headers=ADMIN, timeout=300)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def remove(self, name: str, wait: int = 0) -> httpx2.Response:
        url = f"{self._system.url('gateway2')}/v1/deployments/{name}"
        return httpx2.delete(url, params={"wait": wait}, headers=ADMIN, timeout=180)

    def remove_drained(self, name: str) -> None:
        """Remove a deployment when its runs have ended, however long they take."""

        def is_removed() -> bool:
            answer = self.remove(name, wait=30)
            # While a worker restarts, its partitions do not answer.
            later = {"deployment_in_use", "store_unavailable", "outcome_unknown"}
            assert answer.status_code == 204 or problem(answer)[1] in later, answer.text
            return answer.status_code == 204

        self._system.wait(is_removed, f"{name} to be removed", _SOAK_S)

    def restart_worker(self) -> None:
        self._system.kill("worker")
        self._system.start("worker")


#: Longer than the hosts of all deployments need for the runs that wait for them.
_SOAK_S = 900


def switch(system: System, operator: Operator, load: Load, names: list[str]) -> str:
    """Switch from one deployment to the next under load; return a run that was moved."""
    one, two, three = names
    load.grows()
    assert operator.change(f"{two}/activate", percent=30)["percent"] == 30
    operator.restart_worker()
    load.grows()
    active = get(system, "/v1/deployments/active").json()
    assert (active["id"], [item["percent"] for item in active["shares"]]) == (one, [70, 30])
    assert problem(operator.remove(two)) == (409, "deployment_active")
    assert operator.change(f"{two}/activate")["replaces"] == one
    # Clients begin runs on it all the time, until it is closed.
    assert operator.remove(one, wait=60).status_code == 204
    assert problem(get(system, f"/v1/deployments/{one}")) == (410, "deployment_removed")
    operator.restart_worker()
    load.grows()
    made = create(system, {"workflowName": "order", "deploymentId": two}, fresh("moved")).json()
    operator.change(f"{three}/activate", percent=50)
    load.grows()
    assert operator.change("rollback")["id"] == two
    operator.change(f"{three}/activate")
    refused = operator.remove(two)
    assert problem(refused) == (409, "deployment_in_use")
    assert refused.json()["openRuns"] >= 1
    return str(made["runId"])


def test_no_run_is_lost_or_on_two_deployments_while_operators_switch(
    system: System, first: str
) -> None:
    """Activations, shares, a move and removals, with the worker killed in between."""
    operator = Operator(system)
    names = one, two, three = operator.deploy("one", "two", "three")
    operator.change(f"{one}/activate")
    with Load(system, [one, two]) as load:
        moved = switch(system, operator, load, names)
    instance = f"{system.url()}/api/workflows/workflows/order/instances/{moved}"
    answer = httpx2.post(f"{instance}/move", json={"deployment": three}, headers=KEY, timeout=30)
    assert answer.is_success, answer.text
    assert operator.remove(two, wait=60).status_code == 204
    assert tell(system, moved, "hook_received", correlationId="go").is_success
    assert until(system, moved, "completed")["output"] == ["two", "three", "three"]
    assert set(load.refused) == {"deployment_removed"}
    versions = {first: "first"} | dict(zip(names, ("one", "two", "three"), strict=True))
    result = [until(system, run_id, "completed") for run_id in load.runs]
    assert [run["output"] for run in result] == [versions[run["deploymentId"]] for run in result]
    assert {run["deploymentId"] for run in result} == set(names)
    unpacked = system.directory / "data" / "state" / "deployments"
    system.wait(lambda: not (unpacked / two).exists(), "its folder to be removed")
    assert (unpacked / three).exists()


def switch_at_random(operator: Operator, draw: random.Random, names: list[str]) -> str:
    """Do one switch among deployments that are not removed; return a removed one, or ""."""
    active, *others = draw.sample(names, len(names))
    kind = draw.choice(["activate", "share", "rollback", "remove", "kill"])
    match kind:
        case "activate":
            operator.change(f"{active}/activate")
        case "share":
            operator.change(f"{active}/activate")
            operator.change(f"{others[0]}/activate", percent=draw.choice([1, 30, 99]))
        case "rollback":
            operator.change(f"{others[0]}/activate")
            operator.change(f"{active}/activate")
            operator.change("rollback")
        case "kill":
            operator.restart_worker()
        case "remove" if len(names) > 2:
            operator.change(f"{active}/activate")
            operator.remove_drained(others[0])
            return others[0]
        case _:
            pass
    return ""


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_fifty_switches_lose_no_run_and_move_none(system: System, first: str) -> None:
    operator, draw = Operator(system), random.Random(50)
    texts = [f"soak-{number}" for number in range(12)]
    names = operator.deploy(*texts)
    versions = {first: "first"} | dict(zip(names, texts, strict=True))
    operator.change(f"{names[0]}/activate")
    with Load(system, list(names)) as load:
        for _ in range(50):
            load.grows()
            removed = switch_at_random(operator, draw, names)
            names = [name for name in names if name != removed]
    assert set(load.refused) <= {"deployment_removed"}
    result = [until(system, run_id, "completed", _SOAK_S) for run_id in load.runs]
    assert [run["output"] for run in result] == [versions[run["deploymentId"]] for run in result]
