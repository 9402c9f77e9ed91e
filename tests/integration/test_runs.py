"""Runs below `/v1` on real parts: two gateways, a worker, a projector, Kafka and Postgres."""

import asyncio
import itertools
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from click.testing import CliRunner

from headwater.gateway.cli.main import cli
from headwater.gateway.client import Client
from headwater.processors.idempotency import (
    REMEMBERED_MS,
    IdempotencyKey,
    canonical_hash,
    reservation,
)
from headwater.projections.idempotency import IdempotencyKeys
from headwater.projections.postgres.reader import PooledReader
from headwater.schemas.failures import IdempotencyConflictError
from headwater.streams.clock import now_ms
from tests.deployed_apps import code_of, deploying
from tests.e2e.house import House, opened

KEY = {"authorization": "Bearer dev-workflow-key"}
WORLD_KEY = {"x-api-key": "dev-world-key"}
NONE_ACTIVE = "No active deployment. Activate a deployment before triggering runs."

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def empty(scratch: Path, module_database: str) -> Iterator[House]:
    """A house in which nothing is deployed, yet."""
    directory = scratch / "runs"
    directory.mkdir()
    house = House(directory, module_database, HEADWATER_APP="tests.apps.service")
    with opened(house, ("worker", "project", "gateway", "gateway2")):
        house.wait(lambda: _knows_workflows(house), "the workflows to be known")
        yield house


def _knows_workflows(house: House) -> bool:
    answer = httpx.get(f"{house.url()}/api/workflows/workflows", headers=KEY)
    return answer.is_success and bool(answer.json()["workflows"])


@pytest.fixture(scope="module")
def first(empty: House) -> str:
    """The deployment that is active from now on."""

    async def release() -> str:
        async with deploying(empty.bootstrap) as deployer:
            return await deployer.release(code_of("first", steps=1))

    return asyncio.run(release())


@pytest.fixture(scope="module")
def house(empty: House, first: str) -> House:
    """The house, with an active deployment; it has other workflows than the worker's own app."""
    assert first
    return empty


def fresh(what: str) -> str:
    return f"{what}-{next(_NUMBERS)}"


def post(
    house: House, path: str, body: object, *, gateway: str = "gateway", **headers: str
) -> httpx.Response:
    known = WORLD_KEY if path.startswith("/v1/world") else KEY
    content = body if isinstance(body, str) else json.dumps(body)
    return httpx.post(
        house.url(gateway) + path,
        content=content,
        headers={**known, "content-type": "application/json", **headers},
        timeout=30,
    )


def create(house: House, body: object, key: str, gateway: str = "gateway") -> httpx.Response:
    return post(house, "/v1/runs", body, gateway=gateway, **{"idempotency-key": key})


def publish(house: House, **message: object) -> httpx.Response:
    return post(house, "/v1/world/queue/publish", message)


def tell(house: House, run_id: str | None, event_type: str, **more: object) -> httpx.Response:
    body = {"runId": run_id, "data": {"eventType": event_type, **more}}
    return post(house, "/v1/world/events/create", body)


def get(house: House, path: str, **asked: object) -> httpx.Response:
    params: dict[str, Any] = asked
    return httpx.get(house.url() + path, params=params, headers=KEY, timeout=30)


def until(house: House, run_id: str, status: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def stands() -> bool:
        found.update(get(house, f"/v1/runs/{run_id}").json())
        return bool(found["status"] == status)

    house.wait(stands, f"{run_id} to be {status}", 20)
    return found


def instances_with(house: House, params: object) -> list[str]:
    """The instances that were started with something, in whatever workflow."""
    with psycopg.connect(house.dsn) as connection:
        rows = connection.execute(
            "select instance_id from workflow_instance where params::jsonb = %s::jsonb",
            [json.dumps(params)],
        ).fetchall()
    return [instance_id for (instance_id,) in rows]


def remembered(house: House, key: str) -> dict[str, Any] | None:
    with psycopg.connect(house.dsn) as connection:
        row = connection.execute(
            "select state, response_run_id from idempotency where idempotency_key = %s", [key]
        ).fetchone()
    return None if row is None else {"state": row[0], "run_id": row[1]}


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert answer.json()["message"] == answer.json()["detail"]
    return answer.status_code, answer.json()["code"]


# -- before anything is active


def test_without_an_active_deployment_nothing_begins(empty: House) -> None:
    body = {"workflowName": "echo", "input": fresh("nothing")}
    key = fresh("none-active")
    answer = create(empty, body, key)
    assert problem(answer) == (409, "no_active_deployment")
    assert answer.json()["message"] == NONE_ACTIVE
    assert problem(publish(empty, queueName="echo")) == (409, "no_active_deployment")
    told = tell(empty, "early", "run_created", eventData={"workflowName": "echo"})
    assert problem(told) == (409, "no_active_deployment")
    # The key is not bound to what could not be.
    assert remembered(empty, key) is None


# -- once under a key


def test_a_run_is_created_shown_and_ends(house: House) -> None:
    params = {"for": fresh("shown")}
    made = create(house, {"workflowName": "echo", "input": params}, fresh("key"))
    assert made.status_code == 201, made.text
    run_id = made.json()["runId"]
    assert made.json() == {"runId": run_id, "workflowName": "echo", "status": made.json()["status"]}
    assert "idempotent-replayed" not in made.headers
    found = until(house, run_id, "completed")
    assert (found["input"], found["output"], found["workflowName"]) == (params, params, "echo")
    assert instances_with(house, params) == [run_id]


def test_a_key_is_required(house: House) -> None:
    answer = post(house, "/v1/runs", {"workflowName": "echo"})
    assert problem(answer) == (400, "idempotency_required")
    assert answer.json()["message"] == "Idempotency-Key header is required"


def test_of_many_at_once_through_two_gateways_one_run_comes(house: House) -> None:
    async def act() -> None:
        async with httpx.AsyncClient(headers=KEY, timeout=30) as client:

            async def ask(number: int, key: str, params: object) -> httpx.Response:
                gateway = ("gateway", "gateway2")[number % 2]
                return await client.post(
                    house.url(gateway) + "/v1/runs",
                    json={"workflowName": "waiting", "input": params},
                    headers={"idempotency-key": key},
                )

            async def one_key() -> None:
                key, params = fresh("at-once"), {"of": fresh("at-once")}
                answers = await asyncio.gather(*(ask(n, key, params) for n in range(8)))
                assert {answer.status_code for answer in answers} == {201}
                (body,) = {answer.text for answer in answers}
                assert instances_with(house, params) == [json.loads(body)["runId"]]
                (again,) = [await ask(0, key, params)]
                assert (again.text, again.headers["idempotent-replayed"]) == (body, "true")

            await asyncio.gather(*(one_key() for _ in range(10)))

    asyncio.run(act())


def test_the_order_of_names_does_not_matter_and_all_else_does(house: House) -> None:
    key, name = fresh("order"), fresh("order")
    first = f'{{"workflowName": "echo", "input": {{"a": 1, "b": [1, 2], "name": "{name}"}}}}'
    same = (
        f'{{"input":{{"name":"{name}","b":[1.0,2],"a":1}},'
        '"deploymentId":null,"workflowName":"echo"}'
    )
    other = first.replace("[1, 2]", "[2, 1]")
    made = create(house, first, key)
    again = create(house, same, key, "gateway2")
    assert (again.status_code, again.text) == (201, made.text)
    assert again.headers["idempotent-replayed"] == "true"
    for gateway in ("gateway", "gateway2"):
        assert problem(create(house, other, key, gateway)) == (409, "idempotency_conflict")
    assert len(instances_with(house, {"a": 1, "b": [1, 2], "name": name})) == 1


def test_after_a_day_a_key_is_new(house: House) -> None:
    key, params = fresh("day"), {"day": fresh("day")}
    body = {"workflowName": "echo", "input": params}
    runs = [create(house, body, key).json()["runId"]]
    for age_ms in (REMEMBERED_MS - 60_000, REMEMBERED_MS):
        with psycopg.connect(house.dsn) as connection:
            connection.execute(
                "update idempotency set created_at = %s where idempotency_key = %s",
                [now_ms() - age_ms, key],
            )
        runs.append(create(house, body, key).json()["runId"])
    assert runs[0] == runs[1] != runs[2]
    assert sorted(instances_with(house, params)) == sorted({*runs})


def test_who_comes_after_a_gateway_died_makes_the_run_that_it_had_reserved(house: House) -> None:
    """It died after it had reserved the key, and before it sent anything."""
    key, params = fresh("died"), {"died": fresh("died")}

    async def reserve() -> None:
        async with PooledReader(house.dsn) as reader:
            asked = canonical_hash(["echo", params, None])
            reserved = reservation(fresh("run_reserved"), asked)
            await IdempotencyKeys(reader).reserve(
                IdempotencyKey("default", key, "runs.create"), reserved
            )

    asyncio.run(reserve())
    reserved = remembered(house, key)
    assert reserved is not None
    made = create(house, {"workflowName": "echo", "input": params}, key)
    assert (made.status_code, made.json()["runId"]) == (201, reserved["run_id"])
    assert instances_with(house, params) == [reserved["run_id"]]
    other = create(house, {"workflowName": "echo", "input": "else"}, key)
    assert problem(other) == (409, "idempotency_conflict")


def test_a_gateway_that_is_killed_before_it_answers_costs_no_second_run(house: House) -> None:
    """kill -9 while the command is sent and not decided: the worker stands still meanwhile."""
    key, params = fresh("killed"), {"killed": fresh("killed")}
    body = {"workflowName": "waiting", "input": params}
    worker = house.parts["worker"]
    with ThreadPoolExecutor(1) as pool:
        worker.send_signal(signal.SIGSTOP)
        try:
            asked = pool.submit(create, house, body, key, "gateway2")
            house.wait(lambda: remembered(house, key) is not None, "the key to be reserved")
            house.kill("gateway2")
            assert isinstance(asked.exception(), httpx.TransportError)
        finally:
            worker.send_signal(signal.SIGCONT)
    reserved = remembered(house, key)
    assert reserved is not None
    assert reserved["state"] == "in_progress"
    answers = [create(house, body, key) for _ in range(3)]
    house.start("gateway2")
    answers.append(create(house, body, key, "gateway2"))
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.json()["runId"] for answer in answers} == {reserved["run_id"]}
    assert instances_with(house, params) == [reserved["run_id"]]


def test_while_postgres_is_away_nothing_is_made(house: House) -> None:
    key, params = fresh("away"), {"away": fresh("away")}
    house.postgres_of["gateway3"] = "postgresql://headwater@127.0.0.1:1/headwater"
    house.start("gateway3")
    try:
        answer = create(house, {"workflowName": "echo", "input": params}, key, "gateway3")
        assert problem(answer) == (503, "store_unavailable")
    finally:
        house.kill("gateway3")
    assert instances_with(house, params) == []
    assert create(house, {"workflowName": "echo", "input": params}, key).status_code == 201


# -- what there is not


def test_what_cannot_begin_is_refused_and_binds_no_key_to_it(house: House) -> None:
    key = fresh("refused")
    unknown = create(house, {"workflowName": "echo", "deploymentId": "dep_none"}, key)
    assert problem(unknown) == (404, "deployment_not_found")
    assert remembered(house, key) is None
    missing = create(house, {"workflowName": "no-such"}, key)
    assert problem(missing) == (404, "WORKFLOW_NOT_FOUND")
    wrong = create(house, {"workflowName": "no-such-either"}, key, "gateway2")
    assert problem(wrong) == (404, "WORKFLOW_NOT_FOUND")
    corrected = {"workflowName": "echo", "input": fresh("corrected")}
    made = create(house, corrected, key)
    assert made.status_code == 201, made.text
    again = create(house, corrected, key, "gateway2")
    assert (again.text, again.headers["idempotent-replayed"]) == (made.text, "true")
    assert problem(create(house, {"workflowName": "no-such"}, key)) == (409, "idempotency_conflict")
    of_house = create(house, {"workflowName": "headwater-prune"}, fresh("refused"))
    assert problem(of_house) == (403, "forbidden")
    for body in ({}, {"workflowName": ""}, {"workflowName": "echo", "inpt": 1}):
        assert problem(create(house, body, fresh("refused"))) == (400, "invalid_body")
    assert problem(get(house, "/v1/runs/run_none")) == (404, "run_not_found")
    assert problem(get(house, "/v1/runs", status="paused")) == (400, "invalid_parameter")


# -- reading and cancelling


def test_runs_are_listed_and_cancelled(house: House) -> None:
    made = [create(house, {"workflowName": "waiting"}, fresh("list")).json() for _ in range(3)]
    names = [each["runId"] for each in made]
    first = get(house, "/v1/runs", workflowName="waiting", limit=2).json()
    assert [each["runId"] for each in first["data"]] == names[:0:-1]
    assert first["hasMore"] is True
    second = get(house, "/v1/runs", workflowName="waiting", limit=2, cursor=first["cursor"]).json()
    assert second["data"][0]["runId"] == names[0]
    cancelled = post(house, f"/v1/runs/{names[0]}/cancel", {"reason": "enough"})
    assert cancelled.status_code == 200, cancelled.text
    found = until(house, names[0], "cancelled")
    assert "enough" in found["error"]["message"]
    again = post(house, f"/v1/runs/{names[0]}/cancel", "")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    of_them = get(house, "/v1/runs", status="cancelled", limit=1_000).json()
    assert names[0] in [each["runId"] for each in of_them["data"]]
    ended = create(house, {"workflowName": "echo"}, fresh("list")).json()["runId"]
    until(house, ended, "completed")
    assert problem(post(house, f"/v1/runs/{ended}/cancel", "")) == (409, "INSTANCE_TERMINAL")


def test_a_program_and_a_command_create_list_show_and_cancel_runs(house: House) -> None:
    url, key = house.url() + "/api/workflows", "dev-workflow-key"

    async def program() -> str:
        async with Client(url, key=key) as client:
            once = fresh("program")
            made = await client.runs.create("waiting", 7, key=once)
            assert await client.runs.create("waiting", 7, key=once) == made
            with pytest.raises(IdempotencyConflictError):
                await client.runs.create("waiting", 8, key=once)
            found = await client.runs.get(made.run_id)
            assert (found.status, found.input) == ("running", 7)
            newest = [each async for each in client.runs.all(workflow="waiting", status="running")]
            assert newest[0].run_id == made.run_id
            await client.runs.cancel(made.run_id, "enough")
            return made.run_id

    def command(*arguments: str) -> str:
        environment = {"HEADWATER_URL": url, "HEADWATER_WORKFLOW_KEY": key}
        found = CliRunner().invoke(cli, ["runs", *arguments], env=environment)
        assert found.exit_code == 0, found.output
        return found.stdout

    run_id = asyncio.run(program())
    until(house, run_id, "cancelled")
    assert json.loads(command("show", run_id, "--json"))["status"] == "cancelled"
    other = command("create", "waiting", "--idempotency-key", fresh("command")).strip()
    assert command("list", "-w", "waiting", "--limit", "2").splitlines()[1].startswith(other)
    command("cancel", other, "--reason", "too late")
    assert "too late" in until(house, other, "cancelled")["error"]["message"]


def test_the_audit_log_says_what_was_asked_for_and_whether_it_was_done_before(
    house: House,
) -> None:
    key = fresh("audited")
    made = [create(house, {"workflowName": "echo"}, key).json()["runId"] for _ in range(2)]
    once = fresh("audited")
    for _ in range(2):
        publish(house, queueName="echo", opts={"idempotencyKey": once})
    run_id = fresh("wrun")
    tell(house, run_id, "run_created", eventData={"workflowName": "echo"})
    last = fresh("audited")
    create(house, {"workflowName": "no-such"}, last)

    def entries() -> list[dict[str, Any]]:
        admin = {"x-admin-key": "dev-admin-key"}
        answer = httpx.get(house.url() + "/v1/audit", params={"limit": 50}, headers=admin)
        assert answer.status_code == 200, answer.text
        return list(reversed(answer.json()["entries"][:6]))

    def all_there() -> bool:
        return bool(entries()[-1]["metadata"].get("idempotencyKey") == last)

    house.wait(all_there, "the last entry", 20)
    found = [
        (each["action"], each["result"], each["metadata"]["lane"], each["metadata"]["deduped"])
        for each in entries()
    ]
    assert found == [
        ("runs.create", "success", "public", False),
        ("runs.create", "success", "public", True),
        ("world.queue.publish", "success", "world_proxy", False),
        ("world.queue.publish", "success", "world_proxy", True),
        ("world.events.create", "success", "world_proxy", False),
        ("runs.create", "failure", "public", False),
    ]
    metadata = [each["metadata"] for each in entries()]
    assert [each["idempotencyKey"] for each in metadata[:4]] == [key, key, once, once]
    assert [each["runId"] for each in metadata[:2]] == made
    assert metadata[4]["idempotencyKey"] == f"world.events.create:run_created:{run_id}"
    assert (metadata[4]["runId"], metadata[4]["eventType"]) == (run_id, "run_created")


def audited(house: House, run_id: str) -> list[tuple[str, str | None]]:
    """What `headwater audit list --run-id` lists: actions, with the types of their events."""
    found = CliRunner().invoke(
        cli,
        ["audit", "list", "--run-id", run_id, "--json"],
        env={"HEADWATER_URL": house.url(), "HEADWATER_ADMIN_KEY": "dev-admin-key"},
    )
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["entries"]
    return [(each["action"], each["metadata"].get("eventType")) for each in reversed(rows)]


def test_the_entries_of_a_run_are_those_that_touched_it(house: House) -> None:
    """Whatever headers the callers send, and also where an operation was about many runs."""
    foreign = {"x-run-id": fresh("foreign"), "x-correlation-id": "theirs"}

    def event(run_id: str, event_type: str, **more: object) -> None:
        body = {"runId": run_id, "data": {"eventType": event_type, **more}}
        answer = post(house, "/v1/world/events/create", body, **foreign)
        assert answer.status_code == 200, answer.text

    run_id, batched = fresh("wrun"), [fresh("batched"), fresh("batched")]
    event(run_id, "run_created", eventData={"workflowName": "waiting"})
    event(run_id, "run_cancelled")
    path = "/api/workflows/workflows/waiting/instances/batch"
    made = post(house, path, {"instances": [{"id": one} for one in batched]}, **foreign)
    assert made.status_code == 200, made.text
    published = post(house, "/v1/world/queue/publish", {"queueName": "echo"}, **foreign).json()
    expected = {
        run_id: [("world.events.create", "run_created"), ("world.events.create", "run_cancelled")],
        published["messageId"]: [("world.queue.publish", None)],
        **{one: [("instances.create_many", None)] for one in batched},
        foreign["x-run-id"]: [],
    }
    for name, entries in expected.items():
        house.wait(lambda n=name, e=entries: audited(house, n) == e, f"the entries of {name}", 20)


# -- on which deployment


def test_a_run_begins_on_the_active_deployment_or_on_one_that_is_named(
    house: House, first: str
) -> None:
    def begun(**more: object) -> dict[str, Any]:
        made = create(house, {"workflowName": "order", **more}, fresh("deployed"))
        assert made.status_code == 201, made.text
        return dict(made.json())

    async def activate(code: str) -> str:
        async with deploying(house.bootstrap) as deployer:
            return await deployer.release(code)

    old = begun()
    second = asyncio.run(activate(code_of("second", steps=1)))
    new, named = begun(), begun(deploymentId=first)
    assert [each["deploymentId"] for each in (old, new, named)] == [first, second, first]
    message = publish(
        house, queueName="order", opts={"deploymentId": first, "idempotencyKey": fresh("on")}
    ).json()
    taken = tell(house, fresh("wrun"), "run_created", eventData={"workflowName": "order"}).json()
    runs = [*(each["runId"] for each in (old, new, named)), message["messageId"], taken["runId"]]
    for run_id in runs:
        told = tell(house, run_id, "hook_received", correlationId="go")
        assert told.status_code == 200, told.text
    found = {run_id: until(house, run_id, "completed") for run_id in runs}
    # What each step said, the last in a child: its code is that of the run's deployment.
    said = [found[run_id]["output"] for run_id in runs[:3]]
    assert said == [["first"] * 3, ["second"] * 3, ["first"] * 3]
    assert [found[run_id]["deploymentId"] for run_id in runs[3:]] == [first, second]
    listed = get(house, "/v1/runs", deploymentId=second, workflowName="order").json()["data"]
    assert [each["runId"] for each in listed] == [taken["runId"], new["runId"]]
    other = create(house, {"workflowName": "echo", "deploymentId": first}, fresh("deployed"))
    assert problem(other) == (404, "WORKFLOW_NOT_FOUND")


# -- queues and events of programs elsewhere


def test_without_a_key_each_call_publishes_and_with_one_the_first(house: House) -> None:
    message = {"n": fresh("message")}
    each = [publish(house, queueName="echo", message=message).json() for _ in range(3)]
    assert {one["deduped"] for one in each} == {False}
    assert len({one["messageId"] for one in each}) == 3
    opts = {"idempotencyKey": fresh("unique")}
    first = publish(house, queueName="echo", message=message, opts=opts).json()
    # The key alone decides: a message that is sent again may say when it was.
    again = publish(house, queueName="echo", message={"other": 1}, opts=opts).json()
    assert first["deduped"] is False
    assert again == {"messageId": first["messageId"], "deduped": True}
    assert len(instances_with(house, message)) == 4
    assert until(house, first["messageId"], "completed")["output"] == message


def test_a_message_published_through_two_gateways_at_once_is_one(house: House) -> None:
    message = {"n": fresh("both")}
    body = {"queueName": "echo", "message": message, "opts": {"idempotencyKey": fresh("both")}}

    def ask(number: int) -> dict[str, Any]:
        gateway = ("gateway", "gateway2")[number % 2]
        answer = post(house, "/v1/world/queue/publish", body, gateway=gateway)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    (message_id,) = {each["messageId"] for each in answers}
    assert sorted(each["deduped"] for each in answers) == [False, *[True] * 7]
    assert instances_with(house, message) == [message_id]


def test_a_key_is_that_of_one_queue(house: House) -> None:
    """Also while nobody knows what came of the first: else there would be a run in each queue."""
    message, key = {"n": fresh("queues")}, fresh("queues")
    body = {"message": message, "opts": {"idempotencyKey": key}}
    first = publish(house, queueName="echo", **body).json()
    for state in ("completed", "in_progress"):
        with psycopg.connect(house.dsn) as connection:
            connection.execute(
                "update idempotency set state = %s where idempotency_key = %s", [state, key]
            )
        elsewhere = publish(house, queueName="waiting", **body)
        assert problem(elsewhere) == (409, "idempotency_conflict")
        assert publish(house, queueName="echo", **body).json() == first | {"deduped": True}
    assert instances_with(house, message) == [first["messageId"]]


def test_an_event_creates_a_run_of_one_workflow(house: House) -> None:
    """Of two that name the same run in two workflows at once, through two gateways."""
    for _ in range(5):
        run_id, params = fresh("wrun"), {"n": fresh("one-of-two")}

        def ask(number: int, run_id: str = run_id, params: object = params) -> int:
            data = {"workflowName": ("waiting", "echo")[number % 2], "input": params}
            event = {"eventType": "run_created", "eventData": data}
            body = {"runId": run_id, "data": event}
            gateway = ("gateway", "gateway2")[number % 2]
            return post(house, "/v1/world/events/create", body, gateway=gateway).status_code

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(ask, range(2))) == [200, 409]
        assert instances_with(house, params) == [run_id]


def test_a_run_is_created_once_by_its_event(house: House) -> None:
    run_id, params = fresh("wrun"), {"n": fresh("event")}
    data = {"workflowName": "waiting", "input": params}
    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(lambda _: tell(house, run_id, "run_created", eventData=data), range(4))
        answers = [answer.json() for answer in asked]
    assert {each["runId"] for each in answers} == {run_id}
    assert sorted(each["deduped"] for each in answers) == [False, True, True, True]
    assert remembered(house, f"world.events.create:run_created:{run_id}") is not None
    assert instances_with(house, params) == [run_id]
    # Its row is there, and so is the run when the key is forgotten.
    with psycopg.connect(house.dsn) as connection:
        connection.execute("delete from idempotency")
    assert tell(house, run_id, "run_created", eventData=data).json()["deduped"] is True
    assert instances_with(house, params) == [run_id]
    elsewhere = tell(house, run_id, "run_created", eventData={"workflowName": "echo"})
    assert problem(elsewhere) == (409, "INSTANCE_ID_ALREADY_EXISTS")
    unnamed = [tell(house, None, "run_created", eventData=data).json() for _ in range(2)]
    assert len({each["runId"] for each in unnamed}) == 2


def test_a_hook_is_heard_and_a_run_cancelled_by_events(house: House) -> None:
    run_id = create(house, {"workflowName": "waiting", "input": 1}, fresh("hook")).json()["runId"]
    told = tell(house, run_id, "hook_received", correlationId="go", eventData={"payload": {"a": 1}})
    assert told.json() == {"runId": run_id, "eventType": "hook_received", "deduped": False}
    assert until(house, run_id, "completed")["output"] == [{"a": 1}]
    other = create(house, {"workflowName": "waiting"}, fresh("hook")).json()["runId"]
    assert tell(house, other, "run_cancelled").json()["deduped"] is False
    until(house, other, "cancelled")
    assert tell(house, other, "run_cancelled").json()["deduped"] is True
    assert problem(tell(house, run_id, "run_cancelled")) == (409, "INSTANCE_TERMINAL")


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
    house: House, run_id: str | None, data: dict[str, Any], field: str
) -> None:
    answer = post(house, "/v1/world/events/create", {"runId": run_id, "data": data})
    assert problem(answer) == (400, "invalid_body")
    assert answer.json()["field"] == field
    if field == "data.eventType":
        found = data.get("eventType", "none")
        shown = "found none" if found == "none" else f"found {found!r}"
        assert f"run_created, run_cancelled, hook_received, {shown}" in answer.json()["detail"]


def test_the_world_has_a_key_of_its_own(house: House) -> None:
    for path in ("/v1/world/queue/publish", "/v1/world/events/create"):
        answer = httpx.post(house.url() + path, json={}, headers=KEY)
        assert problem(answer) == (401, "unauthorized")
    answer = httpx.post(house.url() + "/v1/runs", json={}, headers=WORLD_KEY)
    assert problem(answer) == (401, "unauthorized")
