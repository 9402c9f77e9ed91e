"""Jobs are given to workers outside."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psycopg
import pytest

from headwater import Client
from headwater.schemas.answers import InstanceStatus
from tests.e2e.system import System
from tests.integration.workflow_routes.asking import KEY, base, create, of, problem, status
from tests.integration.workflow_routes.workers import (
    NODE,
    activate,
    end,
    listed,
    node_workers,
    python_worker,
)


@pytest.mark.skipif(NODE is None, reason="there is no Node.js here, which the page's worker is for")
def test_workers_in_javascript_take_jobs_fail_them_and_die_at_them(
    system: System, api: httpx2.Client, tmp_path: Path
) -> None:
    names = {first: create(api, "paying", {"amount": 5, "first": first}) for first in
             ("succeeds", "fails")}  # fmt: skip

    def ended(first: str) -> bool:
        return bool(status(api, "paying", names[first])["status"] == "complete")

    def receipt(first: str) -> list[str]:
        return str(status(api, "paying", names[first])["output"]["receipt"]).split()

    with node_workers(tmp_path, f"{system.url()}/api/jobs", 1) as (dies,):
        system.wait(lambda: ended("succeeds") and ended("fails"), "both to be paid")
        names["stays"] = create(api, "paying", {"amount": 5, "first": "stays"})
        system.wait(lambda: taken(system, names["stays"]) == f"node {dies.pid}", "it to be taken")
        dies.kill()
        dies.wait()
        with node_workers(tmp_path, f"{system.url()}/api/jobs", 1):
            system.wait(lambda: ended("stays"), "another worker to take it")
    assert receipt("succeeds")[:2] == ["5", "1"]
    assert receipt("fails")[:2] == ["5", "2"]
    assert receipt("stays")[:2] == ["5", "2"]
    assert len({receipt(first)[2] for first in names}) == 3


def test_a_worker_in_python_takes_a_job_and_reads_what_has_come_of_it(system: System) -> None:
    async def works() -> InstanceStatus:
        async with Client(base(system), headers=KEY) as client:
            params = {"amount": 5, "first": "succeeds"}
            instance = await client.workflow("paying").create(params=params)
            await python_worker()["take"](client)
            return await instance.status()

    result = asyncio.run(works())
    assert (result.status, result.output["receipt"].split()[:2]) == ("complete", ["5", "paid,"])


def taken(system: System, name: str) -> str | None:
    """Who has the job of an instance."""
    query = "select worker from workflow_token where instance_id = %s"
    with psycopg.connect(system.dsn) as connection:
        result = connection.execute(query, [name]).fetchone()
    return result[0] if result else None


def test_each_job_is_given_to_one_of_many_who_ask_at_once(api: httpx2.Client) -> None:
    names = {create(api, "refunding", {}) for _ in range(12)}
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda _: activate(api, "refund", max=3, waitMs=1_000), range(6))
        jobs = [job for answer in answers for job in answer]
        while len(jobs) < len(names):
            jobs += activate(api, "refund", max=12, waitMs=5_000)
    assert sorted(job["instanceId"] for job in jobs) == sorted(names)
    assert all(end(api, job, "complete", {"output": 1}).is_success for job in jobs)
    assert activate(api, "refund") == []


def test_whoever_asks_first_is_answered_when_a_job_comes(api: httpx2.Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        requested = pool.submit(activate, api, "refund", waitMs=30_000)
        name = create(api, "refunding", {"n": 1})
        (job,) = requested.result()
    assert (job["instanceId"], job["workflow"], job["attempt"]) == (name, "refunding", 1)
    assert end(api, job, "complete", {}).is_success


def test_what_is_said_of_a_job_is_answered_by_what_the_owner_knows(api: httpx2.Client) -> None:
    name = create(api, "refunding", {})
    (job,) = activate(api, "refund", waitMs=10_000, leaseMs=60_000)
    longer = end(api, job, "extend", {"leaseMs": 120_000})
    assert longer.json()["leaseUntil"] > job["leaseUntil"]
    (shown,) = listed(api, "refund", longer.headers["headwater-position"])
    assert shown.items() > {key: job[key] for key in ("workflow", "instanceId", "attempt")}.items()
    assert (shown["status"], shown["worker"]) == ("taken", "test")
    assert job["leaseUntil"] < shown["leaseUntil"]
    done = end(api, job, "complete", {"output": {"a": 1}})
    assert done.json() == {"ok": True}
    assert end(api, job, "complete", {"output": {"a": 1}}).json() == {"ok": True}
    assert problem(end(api, job, "complete", {"output": 2})) == (409, "JOB_ALREADY_ENDED")
    assert problem(end(api, job, "fail", {"error": {"message": "no"}})) == (
        409,
        "JOB_ALREADY_ENDED",
    )
    other = {**job, "key": f"refunding.{name}.0.9.1"}
    assert problem(end(api, other, "complete", {})) == (404, "JOB_NOT_FOUND")
    assert problem(end(api, {"key": "order"}, "complete", {})) == (404, "JOB_NOT_FOUND")
    assert problem(end(api, {"key": "refunding.none.0.0.1"}, "extend", {})) == (
        404,
        "INSTANCE_NOT_FOUND",
    )
    assert listed(api, "refund", done.headers["headwater-position"]) == []
    again = create(api, "refunding", {})
    (job,) = activate(api, "refund", waitMs=10_000)
    assert api.post(of("refunding", again, "terminate")).is_success
    assert problem(end(api, job, "complete", {})) == (410, "JOB_CANCELLED")


def test_a_worker_is_told_until_when_it_has_a_job_in_truth(api: httpx2.Client) -> None:
    """No lease goes beyond the time of its attempt, ten minutes here, nor gets shorter."""
    create(api, "refunding", {})
    (job,) = activate(api, "refund", waitMs=10_000, leaseMs=3_600_000)
    for lease_ms in (7_200_000, 1_000):
        extended = end(api, job, "extend", {"leaseMs": lease_ms})
        (shown,) = listed(api, "refund", extended.headers["headwater-position"])
        until = {result["leaseUntil"] for result in (job, extended.json(), shown)}
        assert len(until) == 1, until
    assert end(api, job, "complete", {}).is_success


def test_a_worker_that_is_gone_while_it_waits_is_given_nothing(
    system: System, api: httpx2.Client
) -> None:
    async def leave() -> None:
        async with httpx2.AsyncClient(base_url=f"{system.url()}/api", headers=KEY) as client:
            body = {"types": ["refund"], "worker": "gone", "waitMs": 30_000}
            asking = asyncio.create_task(client.post("/jobs/activate", json=body))
            await asyncio.wait([asking], timeout=1)
            asking.cancel()

    asyncio.run(leave())
    name = create(api, "refunding", {})
    (job,) = activate(api, "refund", waitMs=10_000)
    assert (job["instanceId"], job["attempt"]) == (name, 1)
    assert end(api, job, "complete", {}).is_success


def test_an_activation_that_finds_nothing_waits_as_long_as_it_said(api: httpx2.Client) -> None:
    begun = time.monotonic()
    assert activate(api, "nobody", waitMs=700) == []
    assert time.monotonic() - begun >= 0.7
