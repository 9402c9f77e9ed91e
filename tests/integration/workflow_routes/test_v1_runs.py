"""Runs below `/v1` on real parts: two gateways, a worker, a projector, Kafka and Postgres.

From here on a deployment is active, also in the modules that follow by name.
"""

import asyncio
import itertools
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx2
import psycopg
import pytest
from click.testing import CliRunner

from headwater.gateway.cli.main import cli
from headwater.gateway.client.client import Client
from headwater.processors.canonical_json import canonical_hash
from headwater.processors.idempotency_keys import (
    REMEMBERED_MS,
    IdempotencyKey,
    reservation,
)
from headwater.projections.gateway_state import IdempotencyKeys
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.failures import IdempotencyConflictError
from headwater.streams.clock import now_ms
from tests.e2e.system import System
from tests.integration.workflow_routes.v1_requests import (
    KEY,
    create,
    fresh,
    get,
    instances_with,
    post,
    problem,
    publish,
    remembered,
    tell,
    until,
)

NONE_ACTIVE = "No active deployment. Activate a deployment before triggering runs."


@pytest.fixture(scope="module")
def system(parts: System, first: str) -> System:
    """The system, with an active deployment; it has other workflows than the worker's own app."""
    assert first
    return parts


# -- before anything is active


def test_without_an_active_deployment_nothing_begins(parts: System) -> None:
    body = {"workflowName": "echo", "input": fresh("nothing")}
    key = fresh("none-active")
    answer = create(parts, body, key)
    assert problem(answer) == (409, "no_active_deployment")
    assert answer.json()["message"] == NONE_ACTIVE
    assert problem(publish(parts, queueName="echo")) == (409, "no_active_deployment")
    reported = tell(parts, "early", "run_created", eventData={"workflowName": "echo"})
    assert problem(reported) == (409, "no_active_deployment")
    # The key is not bound to what could not be.
    assert remembered(parts, key) is None


# -- once under a key


def test_a_run_is_created_shown_and_ends(system: System) -> None:
    params = {"for": fresh("shown")}
    made = create(system, {"workflowName": "echo", "input": params}, fresh("key"))
    assert made.status_code == 201, made.text
    run_id = made.json()["runId"]
    assert made.json() | {"status": ""} == {
        "runId": run_id,
        "workflowName": "echo",
        "status": "",
        "deploymentId": "app",
    }
    assert "idempotent-replayed" not in made.headers
    result = until(system, run_id, "completed")
    assert (result["input"], result["output"], result["workflowName"]) == (params, params, "echo")
    assert instances_with(system, params) == [run_id]


def test_a_key_is_required(system: System) -> None:
    answer = post(system, "/v1/runs", {"workflowName": "echo"})
    assert problem(answer) == (400, "idempotency_required")
    assert answer.json()["message"] == "Idempotency-Key header is required"


def test_of_many_at_once_through_two_gateways_one_run_comes(system: System) -> None:
    async def act() -> None:
        async with httpx2.AsyncClient(headers=KEY, timeout=30) as client:

            async def ask(number: int, key: str, params: object) -> httpx2.Response:
                url = system.url(("gateway", "gateway2")[number % 2]) + "/v1/runs"
                body = {"workflowName": "waiting", "input": params}
                while True:
                    answer = await client.post(url, json=body, headers={"idempotency-key": key})
                    # On a busy machine the answer may come too late; then the same is asked again.
                    if answer.status_code != 503:
                        return answer

            async def one_key() -> None:
                key, params = fresh("at-once"), {"of": fresh("at-once")}
                answers = await asyncio.gather(*(ask(n, key, params) for n in range(8)))
                assert {answer.status_code for answer in answers} == {201}
                (body,) = {answer.text for answer in answers}
                assert instances_with(system, params) == [json.loads(body)["runId"]]
                (again,) = [await ask(0, key, params)]
                assert (again.text, again.headers["idempotent-replayed"]) == (body, "true")

            async with asyncio.timeout(120):
                await asyncio.gather(*(one_key() for _ in range(10)))

    asyncio.run(act())


def test_the_order_of_names_does_not_matter_and_all_else_does(system: System) -> None:
    key, name = fresh("order"), fresh("order")
    first = f'{{"workflowName": "echo", "input": {{"a": 1, "b": [1, 2], "name": "{name}"}}}}'
    same = (
        f'{{"input":{{"name":"{name}","b":[1.0,2],"a":1}},'
        '"deploymentId":null,"workflowName":"echo"}'
    )
    other = first.replace("[1, 2]", "[2, 1]")
    made = create(system, first, key)
    again = create(system, same, key, "gateway2")
    assert (again.status_code, again.text) == (201, made.text)
    assert again.headers["idempotent-replayed"] == "true"
    for gateway in ("gateway", "gateway2"):
        assert problem(create(system, other, key, gateway)) == (409, "idempotency_conflict")
    assert len(instances_with(system, {"a": 1, "b": [1, 2], "name": name})) == 1


def test_after_a_day_a_key_is_new(system: System) -> None:
    key, params = fresh("day"), {"day": fresh("day")}
    body = {"workflowName": "echo", "input": params}
    runs = [create(system, body, key).json()["runId"]]
    for age_ms in (REMEMBERED_MS - 60_000, REMEMBERED_MS):
        with psycopg.connect(system.dsn) as connection:
            connection.execute(
                "update idempotency set created_at = %s where idempotency_key = %s",
                [now_ms() - age_ms, key],
            )
        runs.append(create(system, body, key).json()["runId"])
    assert runs[0] == runs[1] != runs[2]
    assert sorted(instances_with(system, params)) == sorted({*runs})


def test_who_comes_after_a_gateway_died_makes_the_run_that_it_had_reserved(system: System) -> None:
    """It died after it had reserved the key, and before it sent anything."""
    key, params = fresh("died"), {"died": fresh("died")}

    async def reserve() -> None:
        async with PooledReader(system.dsn) as reader:
            requested = canonical_hash(["echo", params, None])
            reserved = reservation(fresh("run_reserved"), requested)
            await IdempotencyKeys(reader).reserve(
                IdempotencyKey("default", key, "runs.create"), reserved
            )

    asyncio.run(reserve())
    reserved = remembered(system, key)
    assert reserved is not None
    made = create(system, {"workflowName": "echo", "input": params}, key)
    assert (made.status_code, made.json()["runId"]) == (201, reserved["run_id"])
    assert instances_with(system, params) == [reserved["run_id"]]
    other = create(system, {"workflowName": "echo", "input": "else"}, key)
    assert problem(other) == (409, "idempotency_conflict")


def test_a_gateway_that_is_killed_before_it_answers_costs_no_second_run(system: System) -> None:
    """A hundred equal requests; both gateways are killed in turn, after the key is reserved.

    The worker stands still meanwhile, so that no command is decided before.
    """
    key, params = fresh("killed"), {"killed": fresh("killed")}
    body = {"workflowName": "waiting", "input": params}
    worker = system.parts["worker"]

    def ask(number: int) -> httpx2.Response:
        for gateway in itertools.cycle(("gateway", "gateway2")[:: -1 if number % 2 else 1]):
            with suppress(httpx2.TransportError):
                answer = create(system, body, key, gateway)
                # Its outcome may come too late; then the same is asked again.
                if answer.status_code != 503:
                    return answer
            time.sleep(0.1)
        raise AssertionError

    with ThreadPoolExecutor(100) as pool:
        worker.send_signal(signal.SIGSTOP)
        try:
            requested = [pool.submit(ask, number) for number in range(100)]
            system.wait(lambda: remembered(system, key) is not None, "the key to be reserved")
            reserved = remembered(system, key)
            assert reserved is not None
            assert reserved["state"] == "in_progress"
            for gateway in ("gateway2", "gateway"):
                system.kill(gateway)
                system.start(gateway)
        finally:
            worker.send_signal(signal.SIGCONT)
        answers = [one.result(timeout=180) for one in requested]
    (answer,) = {(one.status_code, one.text) for one in answers}
    assert answer[0] in {201, 202}
    assert json.loads(answer[1])["runId"] == reserved["run_id"]
    assert instances_with(system, params) == [reserved["run_id"]]


def test_while_postgres_is_away_nothing_is_made(system: System) -> None:
    key, params = fresh("away"), {"away": fresh("away")}
    system.postgres_of["gateway3"] = "postgresql://headwater@127.0.0.1:1/headwater"
    system.start("gateway3")
    try:
        answer = create(system, {"workflowName": "echo", "input": params}, key, "gateway3")
        assert problem(answer) == (503, "store_unavailable")
    finally:
        system.kill("gateway3")
    assert instances_with(system, params) == []
    assert create(system, {"workflowName": "echo", "input": params}, key).status_code == 201


# -- what there is not


def test_what_cannot_begin_is_refused_and_binds_no_key_to_it(system: System) -> None:
    key = fresh("refused")
    unknown = create(system, {"workflowName": "echo", "deploymentId": "dep_none"}, key)
    assert problem(unknown) == (404, "deployment_not_found")
    assert remembered(system, key) is None
    missing = create(system, {"workflowName": "no-such"}, key)
    assert problem(missing) == (404, "WORKFLOW_NOT_FOUND")
    wrong = create(system, {"workflowName": "no-such-either"}, key, "gateway2")
    assert problem(wrong) == (404, "WORKFLOW_NOT_FOUND")
    corrected = {"workflowName": "echo", "input": fresh("corrected")}
    made = create(system, corrected, key)
    assert made.status_code == 201, made.text
    again = create(system, corrected, key, "gateway2")
    assert (again.text, again.headers["idempotent-replayed"]) == (made.text, "true")
    assert problem(create(system, {"workflowName": "no-such"}, key)) == (
        409,
        "idempotency_conflict",
    )
    of_system = create(system, {"workflowName": "headwater-prune"}, fresh("refused"))
    assert problem(of_system) == (403, "forbidden")
    for body in ({}, {"workflowName": ""}, {"workflowName": "echo", "inpt": 1}):
        assert problem(create(system, body, fresh("refused"))) == (400, "invalid_body")
    assert problem(get(system, "/v1/runs/run_none")) == (404, "run_not_found")
    assert problem(get(system, "/v1/runs", status="paused")) == (400, "invalid_parameter")


# -- reading and cancelling


def test_runs_are_listed_and_cancelled(system: System) -> None:
    made = [create(system, {"workflowName": "waiting"}, fresh("list")).json() for _ in range(3)]
    names = [item["runId"] for item in made]
    first = get(system, "/v1/runs", workflowName="waiting", limit=2).json()
    assert [item["runId"] for item in first["data"]] == names[:0:-1]
    assert first["hasMore"] is True
    second = get(system, "/v1/runs", workflowName="waiting", limit=2, cursor=first["cursor"]).json()
    assert second["data"][0]["runId"] == names[0]
    cancelled = post(system, f"/v1/runs/{names[0]}/cancel", {"reason": "enough"})
    assert cancelled.status_code == 200, cancelled.text
    result = until(system, names[0], "cancelled")
    assert "enough" in result["error"]["message"]
    again = post(system, f"/v1/runs/{names[0]}/cancel", "")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    of_them = get(system, "/v1/runs", status="cancelled", limit=1_000).json()
    assert names[0] in [item["runId"] for item in of_them["data"]]
    ended = create(system, {"workflowName": "echo"}, fresh("list")).json()["runId"]
    until(system, ended, "completed")
    assert problem(post(system, f"/v1/runs/{ended}/cancel", "")) == (409, "INSTANCE_TERMINAL")


def test_a_program_and_a_command_create_list_show_and_cancel_runs(system: System) -> None:
    url, key = system.url() + "/api/workflows", "dev-workflow-key"

    async def program() -> str:
        async with Client(url, key=key) as client:
            once = fresh("program")
            made = await client.runs.create("waiting", 7, key=once)
            assert await client.runs.create("waiting", 7, key=once) == made
            with pytest.raises(IdempotencyConflictError):
                await client.runs.create("waiting", 8, key=once)
            result = await client.runs.get(made.run_id)
            assert (result.status, result.input) == ("running", 7)
            newest = [item async for item in client.runs.all(workflow="waiting", status="running")]
            assert newest[0].run_id == made.run_id
            await client.runs.cancel(made.run_id, "enough")
            return made.run_id

    def command(*arguments: str) -> str:
        environment = {"HEADWATER_URL": url, "HEADWATER_WORKFLOW_KEY": key}
        result = CliRunner().invoke(cli, ["runs", *arguments], env=environment)
        assert result.exit_code == 0, result.output
        return result.stdout

    run_id = asyncio.run(program())
    until(system, run_id, "cancelled")
    assert json.loads(command("show", run_id, "--json"))["status"] == "cancelled"
    other = command("create", "waiting", "--idempotency-key", fresh("command")).strip()
    assert command("list", "-w", "waiting", "--limit", "2").splitlines()[1].startswith(other)
    command("cancel", other, "--reason", "too late")
    assert "too late" in until(system, other, "cancelled")["error"]["message"]


def test_the_audit_log_says_what_was_asked_for_and_whether_it_was_done_before(
    system: System,
) -> None:
    key = fresh("audited")
    made = [create(system, {"workflowName": "echo"}, key).json()["runId"] for _ in range(2)]
    once = fresh("audited")
    for _ in range(2):
        publish(system, queueName="echo", opts={"idempotencyKey": once})
    run_id = fresh("wrun")
    tell(system, run_id, "run_created", eventData={"workflowName": "echo"})
    last = fresh("audited")
    create(system, {"workflowName": "no-such"}, last)

    def entries() -> list[dict[str, Any]]:
        admin = {"x-admin-key": "dev-admin-key"}
        answer = httpx2.get(system.url() + "/v1/audit", params={"limit": 1000}, headers=admin)
        assert answer.status_code == 200, answer.text
        results = [
            entry
            for entry in answer.json()["entries"]
            if entry["result"] != "attempted" and not entry["action"].startswith("audit.")
        ]
        return list(reversed(results[:6]))

    def all_there() -> bool:
        return bool(entries()[-1]["metadata"].get("idempotencyKey") == last)

    system.wait(all_there, "the last entry", 20)
    result = [
        (entry["action"], entry["result"], entry["metadata"]["lane"], entry["metadata"]["deduped"])
        for entry in entries()
    ]
    assert result == [
        ("runs.create", "success", "public", False),
        ("runs.create", "success", "public", True),
        ("world.queue.publish", "success", "world_proxy", False),
        ("world.queue.publish", "success", "world_proxy", True),
        ("world.events.create", "success", "world_proxy", False),
        ("runs.create", "failure", "public", False),
    ]
    metadata = [entry["metadata"] for entry in entries()]
    assert [item["idempotencyKey"] for item in metadata[:4]] == [key, key, once, once]
    assert [item["runId"] for item in metadata[:2]] == made
    assert metadata[4]["idempotencyKey"] == f"world.events.create:run_created:{run_id}"
    assert (metadata[4]["runId"], metadata[4]["eventType"]) == (run_id, "run_created")


def audited(system: System, run_id: str) -> list[tuple[str, str | None]]:
    """What `headwater audit list --run-id` lists: actions with a result, and types of events."""
    result = CliRunner().invoke(
        cli,
        ["audit", "list", "--run-id", run_id, "--json"],
        env={"HEADWATER_URL": system.url(), "HEADWATER_ADMIN_KEY": "dev-admin-key"},
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["entries"]
    results = [row for row in rows if row["result"] != "attempted"]
    return [(row["action"], row["metadata"].get("eventType")) for row in reversed(results)]


def test_the_entries_of_a_run_are_those_that_touched_it(system: System) -> None:
    """Whatever headers the callers send, and also where an operation was about many runs."""
    foreign = {"x-run-id": fresh("foreign"), "x-correlation-id": "theirs"}

    def event(run_id: str, event_type: str, **more: object) -> None:
        body = {"runId": run_id, "data": {"eventType": event_type, **more}}
        answer = post(system, "/v1/world/events/create", body, **foreign)
        assert answer.status_code == 200, answer.text

    run_id, batched = fresh("wrun"), [fresh("batched"), fresh("batched")]
    event(run_id, "run_created", eventData={"workflowName": "waiting"})
    event(run_id, "run_cancelled")
    path = "/api/workflows/workflows/waiting/instances/batch"
    made = post(system, path, {"instances": [{"id": one} for one in batched]}, **foreign)
    assert made.status_code == 200, made.text
    published = post(system, "/v1/world/queue/publish", {"queueName": "echo"}, **foreign).json()
    expected = {
        run_id: [("world.events.create", "run_created"), ("world.events.create", "run_cancelled")],
        published["messageId"]: [("world.queue.publish", None)],
        **{one: [("instances.create_many", None)] for one in batched},
        foreign["x-run-id"]: [],
    }
    for name, entries in expected.items():
        system.wait(lambda n=name, e=entries: audited(system, n) == e, f"the entries of {name}", 20)
