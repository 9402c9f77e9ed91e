"""Workers that are ticked run code only then, and all that is ready when nobody says how much."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from tests.e2e.system import System, free_port, opened
from tests.waiting import ANSWERED_WITHIN_S

KEYS = {"authorization": "Bearer dev-workflow-key"}
SCHEDULE = "headwater-schedule/instances/terra-reconcile"
TICK_KEY = {"authorization": "Bearer the-tick-key"}


@pytest.fixture(scope="module")
def system(scratch: Path, module_database: str) -> Iterator[System]:
    directory = scratch / "ticks"
    directory.mkdir()
    system = System(
        directory,
        module_database,
        HEADWATER_APP="tests.apps.service",
        HEADWATER_TICK_URL=",".join(f"http://127.0.0.1:{free_port()}" for _ in range(2)),
        HEADWATER_TICK_KEY="the-tick-key",
        HEADWATER_VERIFY_CRON="",
    )
    with opened(system, ("project", "gateway")):
        for part in ("worker", "worker2"):
            system.start(part, "--tick")
            system.wait(lambda: len(names(system)) > 0, "the workflows to be known")
        system.wait(lambda: owners(system) == 2, "the partitions to be shared")
        # Each start of a worker declares the schedule again, at its own time, for ticks to count.
        system.wait(lambda: terminated(system, SCHEDULE), "the schedule to be terminated")
        yield system


def base(system: System) -> str:
    return f"{system.url()}/api/workflows"


def names(system: System) -> list[Any]:
    answer = httpx2.get(f"{base(system)}/workflows", headers=KEYS, timeout=ANSWERED_WITHIN_S)
    complete = answer.headers.get("headwater-position", "").count("@") == 4
    return list(answer.json()["workflows"]) if answer.is_success and complete else []


def owners(system: System) -> int:
    with psycopg.connect(system.dsn) as connection:
        result = connection.execute("select count(distinct owner) from workflow_owner").fetchone()
        return int(result[0]) if result else 0


def terminated(system: System, instance: str) -> bool:
    url = f"{base(system)}/workflows/{instance}/terminate"
    return httpx2.post(url, headers=KEYS, timeout=ANSWERED_WITHIN_S).is_success


def create(system: System, workflow: str, count: int) -> list[str]:
    made = [f"{workflow}-{number}" for number in range(1, count + 1)]
    body = {"instances": [{"id": name, "params": n} for n, name in enumerate(made, 1)]}
    url = f"{base(system)}/workflows/{workflow}/instances/batch"

    def taken() -> bool:
        return httpx2.post(url, json=body, headers=KEYS, timeout=ANSWERED_WITHIN_S).is_success

    # What an answer that came too late was of is there; those that exist are left alone.
    system.wait(taken, f"{made} to be taken")
    return made


def statuses(system: System, made: list[str]) -> list[str]:
    """The statuses of the instances that are projected."""
    with psycopg.connect(system.dsn) as connection:
        query = "select status from workflow_instance where instance_id = any(%s)"
        return [status for (status,) in connection.execute(query, [made])]


def tick(system: System, **asked: int) -> int:
    url = f"{base(system)}/_runner/tick"
    answer = httpx2.post(url, json=asked, headers=TICK_KEY, timeout=2 * ANSWERED_WITHIN_S)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["processed"])


def test_code_runs_when_it_is_ticked_and_as_much_as_is_asked(system: System):
    made = create(system, "echo", 5)
    system.wait(lambda: statuses(system, made) == ["active"] * 5, "them to be projected")
    assert tick(system, maxInstances=2) == 2
    system.wait(
        lambda: sorted(statuses(system, made)) == ["active"] * 3 + ["complete"] * 2,
        "two of them to end",
    )
    assert tick(system) == 3
    system.wait(lambda: statuses(system, made) == ["complete"] * 5, "all of them to end")
    assert tick(system) == 0


def test_as_many_steps_are_begun_as_are_asked_for(system: System):
    made = create(system, "slow", 30)
    for done in (1, 8):
        tick(system, maxSteps=done if done == 1 else 7)
        system.wait(
            lambda: statuses(system, made).count("complete") == done,  # noqa: B023
            "their instances to end",
        )
    assert tick(system) == 22


def test_what_goes_on_comes_before_what_begins(system: System):
    (waiting,) = create(system, "waiting", 1)
    assert tick(system) == 1
    create(system, "echo", 8)
    url = f"{base(system)}/workflows/waiting/instances/{waiting}/events"
    assert httpx2.post(
        url, json={"type": "go", "payload": 1}, headers=KEYS, timeout=ANSWERED_WITHIN_S
    ).is_success
    assert tick(system, maxInstances=1) == 1
    system.wait(lambda: statuses(system, [waiting]) == ["complete"], "it to go on")
