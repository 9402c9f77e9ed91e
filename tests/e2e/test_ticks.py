"""Workers that are ticked run code only then, and all that is ready when nobody says how much."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.e2e.house import House, free_port, opened
from tests.waiting import ANSWERED_WITHIN_S

KEYS = {"authorization": "Bearer dev-workflow-key"}
TICK_KEY = {"authorization": "Bearer the-tick-key"}


@pytest.fixture(scope="module")
def house(scratch: Path, module_database: str) -> Iterator[House]:
    directory = scratch / "ticks"
    directory.mkdir()
    house = House(
        directory,
        module_database,
        HEADWATER_APP="tests.apps.service",
        HEADWATER_TICK_URL=",".join(f"http://127.0.0.1:{free_port()}" for _ in range(2)),
        HEADWATER_TICK_KEY="the-tick-key",
    )
    with opened(house, ("project", "gateway")):
        for part in ("worker", "worker2"):
            house.start(part, "--tick")
            house.wait(lambda: len(names(house)) > 0, "the workflows to be known")
        house.wait(lambda: owners(house) == 2, "the partitions to be shared")
        house.wait(lambda: tick(house) == 1, "the house's own schedule to wait for its time")
        yield house


def base(house: House) -> str:
    return f"{house.url()}/api/workflows"


def names(house: House) -> list[Any]:
    answer = httpx.get(f"{base(house)}/workflows", headers=KEYS, timeout=ANSWERED_WITHIN_S)
    complete = answer.headers.get("headwater-position", "").count("@") == 4
    return list(answer.json()["workflows"]) if answer.is_success and complete else []


def owners(house: House) -> int:
    with psycopg.connect(house.dsn) as connection:
        found = connection.execute("select count(distinct owner) from workflow_owner").fetchone()
        return int(found[0]) if found else 0


def create(house: House, workflow: str, count: int) -> list[str]:
    made = [f"{workflow}-{number}" for number in range(1, count + 1)]
    body = {"instances": [{"id": name, "params": n} for n, name in enumerate(made, 1)]}
    url = f"{base(house)}/workflows/{workflow}/instances/batch"

    def taken() -> bool:
        return httpx.post(url, json=body, headers=KEYS, timeout=ANSWERED_WITHIN_S).is_success

    # What an answer that came too late was of is there; those that exist are left alone.
    house.wait(taken, f"{made} to be taken")
    return made


def status(house: House, workflow: str, name: str) -> str:
    url = f"{base(house)}/workflows/{workflow}/instances/{name}"
    answer = httpx.get(url, headers=KEYS, timeout=ANSWERED_WITHIN_S)
    # What was taken is not there until it is projected.
    return str(answer.json()["details"]["status"]) if answer.is_success else ""


def tick(house: House, **asked: int) -> int:
    url = f"{base(house)}/_runner/tick"
    answer = httpx.post(url, json=asked, headers=TICK_KEY, timeout=2 * ANSWERED_WITHIN_S)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["processed"])


def statuses(house: House, workflow: str, made: list[str]) -> list[str]:
    return [status(house, workflow, name) for name in made]


def test_code_runs_when_it_is_ticked_and_as_much_as_is_asked(house: House):
    made = create(house, "echo", 5)
    house.wait(lambda: statuses(house, "echo", made) == ["active"] * 5, "them to be projected")
    assert tick(house, maxInstances=2) == 2
    house.wait(
        lambda: sorted(statuses(house, "echo", made)) == ["active"] * 3 + ["complete"] * 2,
        "two of them to end",
    )
    assert tick(house) == 3
    house.wait(lambda: statuses(house, "echo", made) == ["complete"] * 5, "all of them to end")
    assert tick(house) == 0


def test_as_many_steps_are_begun_as_are_asked_for(house: House):
    made = create(house, "slow", 30)
    for done in (1, 8):
        tick(house, maxSteps=done if done == 1 else 7)
        house.wait(
            lambda: statuses(house, "slow", made).count("complete") == done,  # noqa: B023
            "their instances to end",
        )
    assert tick(house) == 22


def test_what_goes_on_comes_before_what_begins(house: House):
    (waiting,) = create(house, "waiting", 1)
    assert tick(house) == 1
    create(house, "echo", 8)
    url = f"{base(house)}/workflows/waiting/instances/{waiting}/events"
    assert httpx.post(
        url, json={"type": "go", "payload": 1}, headers=KEYS, timeout=ANSWERED_WITHIN_S
    ).is_success
    assert tick(house, maxInstances=1) == 1
    house.wait(lambda: status(house, "waiting", waiting) == "complete", "it to go on")
