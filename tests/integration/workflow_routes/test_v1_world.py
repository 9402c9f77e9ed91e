"""Queues, hooks and events of programs elsewhere, below `/v1` on real parts."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import psycopg
import pytest

from tests.e2e.system import System
from tests.integration.workflow_routes.v1_requests import (
    KEY,
    WORLD_KEY,
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


@pytest.fixture(scope="module")
def system(parts: System, first: str) -> System:
    """The system, with an active deployment; it has other workflows than the worker's own app."""
    assert first
    return parts


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
