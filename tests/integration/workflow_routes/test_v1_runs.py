"""Runs below `/v1` on real parts: two gateways, a worker, a projector, Kafka and Postgres.

The last but one of this folder by name: from here on a deployment is active.
"""

import asyncio
import itertools
import json
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

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
from tests.deployed_apps import code_of, deploying
from tests.e2e.system import ADMIN, System

KEY = {"authorization": "Bearer dev-workflow-key"}
WORLD_KEY = {"x-api-key": "dev-world-key"}
NONE_ACTIVE = "No active deployment. Activate a deployment before triggering runs."

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def first(parts: System) -> str:
    """The deployment that is active from now on."""

    async def release() -> str:
        async with deploying(parts.bootstrap) as deployer:
            return await deployer.release(code_of("first", steps=1))

    return asyncio.run(release())


@pytest.fixture(scope="module")
def system(parts: System, first: str) -> System:
    """The system, with an active deployment; it has other workflows than the worker's own app."""
    assert first
    return parts


def fresh(what: str) -> str:
    return f"{what}-{next(_NUMBERS)}"


def post(
    system: System, path: str, body: object, *, gateway: str = "gateway", **headers: str
) -> httpx2.Response:
    known = WORLD_KEY if path.startswith("/v1/world") else KEY
    content = body if isinstance(body, str) else json.dumps(body)
    return httpx2.post(
        system.url(gateway) + path,
        content=content,
        headers={**known, "content-type": "application/json", **headers},
        timeout=30,
    )


def create(system: System, body: object, key: str, gateway: str = "gateway") -> httpx2.Response:
    return post(system, "/v1/runs", body, gateway=gateway, **{"idempotency-key": key})


def publish(system: System, **message: object) -> httpx2.Response:
    return post(system, "/v1/world/queue/publish", message)


def tell(system: System, run_id: str | None, event_type: str, **more: object) -> httpx2.Response:
    body = {"runId": run_id, "data": {"eventType": event_type, **more}}
    return post(system, "/v1/world/events/create", body)


def get(system: System, path: str, **asked: object) -> httpx2.Response:
    params: dict[str, Any] = asked
    return httpx2.get(system.url() + path, params=params, headers=KEY, timeout=30)


def until(system: System, run_id: str, status: str, within_s: float = 20) -> dict[str, Any]:
    result: dict[str, Any] = {}

    def stands() -> bool:
        result.update(get(system, f"/v1/runs/{run_id}").json())
        return bool(result["status"] == status)

    system.wait(stands, f"{run_id} to be {status}", within_s)
    return result


def instances_with(system: System, params: object) -> list[str]:
    """The instances that were started with something, in whatever workflow."""
    with psycopg.connect(system.dsn) as connection:
        rows = connection.execute(
            # Other tests' params may have what jsonb cannot hold.
            "select instance_id from workflow_instance where case "
            "when strpos(params::text, '\\u0000') = 0 then params::jsonb = %s::jsonb end",
            [json.dumps(params)],
        ).fetchall()
    return [instance_id for (instance_id,) in rows]


def remembered(system: System, key: str) -> dict[str, Any] | None:
    with psycopg.connect(system.dsn) as connection:
        row = connection.execute(
            "select state, response_run_id from idempotency where idempotency_key = %s", [key]
        ).fetchone()
    return None if row is None else {"state": row[0], "run_id": row[1]}


def problem(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert answer.json()["message"] == answer.json()["detail"]
    return answer.status_code, answer.json()["code"]


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


# -- on which deployment


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


# -- queues and events of programs elsewhere


def test_without_a_key_each_call_publishes_and_with_one_the_first(system: System) -> None:
    message = {"n": fresh("message")}
    item = [publish(system, queueName="echo", message=message).json() for _ in range(3)]
    assert {one["deduped"] for one in item} == {False}
    assert len({one["messageId"] for one in item}) == 3
    opts = {"idempotencyKey": fresh("unique")}
    first = publish(system, queueName="echo", message=message, opts=opts).json()
    # The key alone decides: a message that is sent again may say when it was.
    again = publish(system, queueName="echo", message={"other": 1}, opts=opts).json()
    assert first["deduped"] is False
    assert again == {"messageId": first["messageId"], "deduped": True}
    assert len(instances_with(system, message)) == 4
    assert until(system, first["messageId"], "completed")["output"] == message


def test_a_message_published_through_two_gateways_at_once_is_one(system: System) -> None:
    message = {"n": fresh("both")}
    body = {"queueName": "echo", "message": message, "opts": {"idempotencyKey": fresh("both")}}

    def ask(number: int) -> dict[str, Any]:
        gateway = ("gateway", "gateway2")[number % 2]
        answer = post(system, "/v1/world/queue/publish", body, gateway=gateway)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    (message_id,) = {answer["messageId"] for answer in answers}
    assert sorted(answer["deduped"] for answer in answers) == [False, *[True] * 7]
    assert instances_with(system, message) == [message_id]


def test_a_key_is_that_of_one_queue(system: System) -> None:
    """Also while nobody knows what came of the first: else there would be a run in each queue."""
    message, key = {"n": fresh("queues")}, fresh("queues")
    body = {"message": message, "opts": {"idempotencyKey": key}}
    first = publish(system, queueName="echo", **body).json()
    for state in ("completed", "in_progress"):
        with psycopg.connect(system.dsn) as connection:
            connection.execute(
                "update idempotency set state = %s where idempotency_key = %s", [state, key]
            )
        elsewhere = publish(system, queueName="waiting", **body)
        assert problem(elsewhere) == (409, "idempotency_conflict")
        assert publish(system, queueName="echo", **body).json() == first | {"deduped": True}
    assert instances_with(system, message) == [first["messageId"]]


def test_a_message_that_waits_survives_a_kill_and_is_delivered_once(system: System) -> None:
    message = {"n": fresh("delayed")}
    headers = {"idempotency-key": fresh("delayed")}
    body = {"message": message, "delaySeconds": 5}
    sent = [post(system, "/v1/queues/echo/messages", body, **headers).json() for _ in range(2)]
    assert [one["deduped"] for one in sent] == [False, True]
    assert {"name": "echo", "waiting": 1} in get(system, "/v1/queues").json()["data"]
    system.kill("worker")
    system.start("worker")
    assert until(system, sent[0]["messageId"], "completed", 120)["output"] == message
    assert instances_with(system, message) == [sent[0]["messageId"]]


def test_a_hook_resumes_its_run_once(system: System) -> None:
    run_id = create(system, {"workflowName": "hooked"}, fresh("hook")).json()["runId"]
    steps: list[dict[str, Any]] = []

    def has_hook() -> bool:
        url = f"{system.url()}/v1/world/steps"
        answer = httpx2.get(url, params={"runId": run_id}, headers=WORLD_KEY, timeout=30)
        steps[:] = answer.json()["data"]
        return bool(steps)

    system.wait(has_hook, "the hook", 60)
    token = steps[0]["output"]["url"].rpartition("/")[2]
    for number in range(2):
        called = post(system, f"/v1/hooks/{token}", {"n": number}, gateway="gateway2")
        assert (called.status_code, called.json()) == (200, {"accepted": True})
    assert until(system, run_id, "completed", 60)["output"] == {"n": 0}
    again = post(system, f"/v1/hooks/{token}", {"n": 2})
    assert (again.status_code, again.json()) == (200, {"accepted": True})


def test_an_event_creates_a_run_of_one_workflow(system: System) -> None:
    """Of two that name the same run in two workflows at once, through two gateways."""
    for _ in range(5):
        run_id, params = fresh("wrun"), {"n": fresh("one-of-two")}

        def ask(number: int, run_id: str = run_id, params: object = params) -> int:
            data = {"workflowName": ("waiting", "echo")[number % 2], "input": params}
            event = {"eventType": "run_created", "eventData": data}
            body = {"runId": run_id, "data": event}
            gateway = ("gateway", "gateway2")[number % 2]
            return post(system, "/v1/world/events/create", body, gateway=gateway).status_code

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(ask, range(2))) == [200, 409]
        assert instances_with(system, params) == [run_id]


def test_a_run_is_created_once_by_its_event(system: System) -> None:
    run_id, params = fresh("wrun"), {"n": fresh("event")}
    data = {"workflowName": "waiting", "input": params}
    with ThreadPoolExecutor(4) as pool:
        requested = pool.map(
            lambda _: tell(system, run_id, "run_created", eventData=data), range(4)
        )
        answers = [answer.json() for answer in requested]
    assert {answer["runId"] for answer in answers} == {run_id}
    assert sorted(answer["deduped"] for answer in answers) == [False, True, True, True]
    assert remembered(system, f"world.events.create:run_created:{run_id}") is not None
    assert instances_with(system, params) == [run_id]
    # Its row is there, and so is the run when the key is forgotten.
    with psycopg.connect(system.dsn) as connection:
        connection.execute("delete from idempotency")
    assert tell(system, run_id, "run_created", eventData=data).json()["deduped"] is True
    assert instances_with(system, params) == [run_id]
    elsewhere = tell(system, run_id, "run_created", eventData={"workflowName": "echo"})
    assert problem(elsewhere) == (409, "INSTANCE_ID_ALREADY_EXISTS")
    unnamed = [tell(system, None, "run_created", eventData=data).json() for _ in range(2)]
    assert len({item["runId"] for item in unnamed}) == 2


def test_a_hook_is_heard_and_a_run_cancelled_by_events(system: System) -> None:
    run_id = create(system, {"workflowName": "waiting", "input": 1}, fresh("hook")).json()["runId"]
    reported = tell(
        system, run_id, "hook_received", correlationId="go", eventData={"payload": {"a": 1}}
    )
    assert reported.json() == {"runId": run_id, "eventType": "hook_received", "deduped": False}
    assert until(system, run_id, "completed")["output"] == [{"a": 1}]
    other = create(system, {"workflowName": "waiting"}, fresh("hook")).json()["runId"]
    assert tell(system, other, "run_cancelled").json()["deduped"] is False
    until(system, other, "cancelled")
    assert tell(system, other, "run_cancelled").json()["deduped"] is True
    assert problem(tell(system, run_id, "run_cancelled")) == (409, "INSTANCE_TERMINAL")


@pytest.mark.parametrize(
    ("run_id", "data", "field"),
    [
        ("a", {"eventType": "step_completed"}, "data.eventType"),
        ("a", {"type": "run_created"}, "data.eventType"),
        ("a", {"eventType": 5}, "data.eventType"),
        ("a", {"eventType": "run_created"}, "data.eventData"),
        (
            "a",
            {"eventType": "run_created", "eventData": {"workflow": 1}},
            "data.eventData.workflow",
        ),
        ("a", {"eventType": "hook_received"}, "data.correlationId"),
        (None, {"eventType": "run_cancelled"}, "runId"),
    ],
)
def test_an_event_that_is_not_taken_is_named(
    system: System, run_id: str | None, data: dict[str, Any], field: str
) -> None:
    answer = post(system, "/v1/world/events/create", {"runId": run_id, "data": data})
    assert problem(answer) == (400, "invalid_body")
    assert answer.json()["field"] == field
    if field == "data.eventType":
        result = data.get("eventType", "none")
        shown = "found none" if result == "none" else f"found {result!r}"
        assert f"run_created, run_cancelled, hook_received, {shown}" in answer.json()["detail"]


def test_the_world_has_a_key_of_its_own(system: System) -> None:
    for path in ("/v1/world/queue/publish", "/v1/world/events/create"):
        answer = httpx2.post(system.url() + path, json={}, headers=KEY)
        assert problem(answer) == (403, "insufficient_scope")
    answer = httpx2.post(system.url() + "/v1/runs", json={}, headers=WORLD_KEY)
    assert problem(answer) == (403, "insufficient_scope")
