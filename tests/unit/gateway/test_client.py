"""The client of workflows: what it asks, what it repeats, and what it makes of answers."""

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest

import headwater
from headwater.gateway.client.answers import (
    ConnectionFailedError,
    OutcomeUnknownError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from headwater.gateway.client.client import Client
from headwater.gateway.client.handles import InstanceHandle
from headwater.schemas.failures import (
    REFUSALS,
    ClientError,
    CommandRefusedError,
    InstanceFailedError,
    refused,
)
from headwater.schemas.statuses import RunStatus
from tests.unit.gateway.workflow_network import (
    Network,
    Turn,
    answer,
    described,
    do,
    event,
    line,
    listed_as,
    message,
    problem,
    queries,
    stands,
    step,
    stream,
    taken,
)

CREATED = {"id": "order-1", "details": {"status": "active"}}
OK = {"ok": True, "status": {"status": "active"}}
REFUSED = httpx2.ConnectError("refused")
LOST = httpx2.ReadTimeout("")
LATER = problem(503, "store_unavailable", headers={"retry_after": "5"})

Deed = Callable[[InstanceHandle], Awaitable[object]]
DEEDS: dict[str, Deed] = {
    "read": lambda instance: instance.status(),
    "pause": lambda instance: instance.pause(),
    "resume": lambda instance: instance.resume(),
    "terminate": lambda instance: instance.terminate(),
    "cancel": lambda instance: instance.cancel(),
    "restart": lambda instance: instance.restart(),
    "retry": lambda instance: instance.retry(),
    "send-event": lambda instance: instance.send_event("approval"),
}


def on_instance(network: Network, deed: Deed, **more: object):
    return do(network, lambda client: deed(client.workflow("order").get("order-1")), **more)


# -- what is asked


def test_workflows_are_listed():
    network = Network(answer({"workflows": [{"name": "order"}, {"name": "bill"}]}))
    result = do(network, lambda client: client.workflows())
    assert [one.name for one in result] == ["order", "bill"]
    assert network.lines == ["GET /workflows"]


def test_an_instance_is_created_under_an_id_of_its_own_or_a_given_one():
    network = Network(answer(CREATED), answer(CREATED))

    async def create(client: Client) -> list[str]:
        order = client.workflow("order")
        return [(await order.create(params={"sku": "ü"})).id, (await order.create("order-1")).id]

    assert do(network, create) == ["drawn-0", "order-1"]
    assert network.lines == ["POST /workflows/order/instances"] * 2
    assert network.body(0) == {"id": "drawn-0", "params": {"sku": "ü"}}
    assert network.body(1) == {"id": "order-1", "params": None}


@headwater.workflow("order")
async def order(event: headwater.WorkflowEvent, step: headwater.Step) -> object: ...


class Letter(msgspec.Struct):
    to: str
    at: datetime


def test_a_workflow_is_given_itself_or_by_its_name_and_its_params_as_their_type():
    network = Network(answer(CREATED), answer(CREATED))
    letter = Letter("amara", datetime(2026, 11, 23, tzinfo=UTC))

    async def create(client: Client) -> None:
        await client.workflow(order).create("order-1", letter)
        await client.workflow(order).create_batch([{"id": "b", "params": letter}])

    with pytest.raises(UnexpectedAnswerError, match="instances"):
        do(network, create)
    assert network.lines[0] == "POST /workflows/order/instances"
    written = {"to": "amara", "at": "2026-11-23T00:00:00Z"}
    assert network.body(0)["params"] == network.body(1)["instances"][0]["params"] == written


@pytest.mark.parametrize("given", [Letter, 7, None, b"order"])
def test_what_is_no_workflow_has_no_handle(given: object):
    with pytest.raises(TypeError, match=r"made by @workflow\(\.\.\.\), or its name, found"):
        do(Network(), lambda client: client.workflow(given).create())  # type: ignore[call-overload]


def test_a_batch_gives_the_handles_of_those_that_are_new():
    network = Network(answer({"instances": [{"id": "b", "details": {"status": "active"}}]}))
    batch = [{"id": "a"}, {"id": "b", "params": [1]}]
    made = do(network, lambda client: client.workflow("order").create_batch(batch))
    assert [one.id for one in made] == ["b"]
    assert network.lines == ["POST /workflows/order/instances/batch"]
    assert network.body() == {
        "instances": [{"id": "a", "params": None}, {"id": "b", "params": [1]}]
    }


def test_an_id_that_a_batch_names_twice_is_sent_once():
    network = Network(answer({"instances": []}), answer({"instances": []}))
    batch = [{"id": f"i-{number % 120}", "params": number} for number in range(250)]
    do(network, lambda client: client.workflow("order").create_batch(batch))
    sent = [json.loads(request.content)["instances"] for request in network.asked]
    assert [len(instances) for instances in sent] == [100, 20]
    assert [item["params"] for instances in sent for item in instances] == list(range(120))


def test_a_large_batch_is_sent_in_several_requests():
    network = Network(*(answer({"instances": []}) for _ in range(3)))
    batch = [{"id": f"i-{number}"} for number in range(250)]
    do(network, lambda client: client.workflow("order").create_batch(batch))
    assert [len(network.body(number)["instances"]) for number in range(3)] == [100, 100, 50]
    assert len(set(keys(network))) == 3


@pytest.mark.parametrize("wrong", ["-bad", None, "\ud800", "a" * 201])
def test_a_batch_with_an_id_that_no_server_takes_is_not_sent(wrong: object):
    batch = [*({"id": f"i-{number}"} for number in range(150)), {"id": wrong}]
    with pytest.raises(CommandRefusedError, match="expected an instance id"):
        do(Network(), lambda client: client.workflow("order").create_batch(batch))


def test_an_empty_batch_is_not_sent():
    assert do(Network(), lambda client: client.workflow("order").create_batch([])) == []


@pytest.mark.parametrize(
    ("deed", "line", "body"),
    [
        (lambda i: i.pause(), "pause", {}),
        (lambda i: i.resume(), "resume", {}),
        (lambda i: i.terminate(), "terminate", {}),
        (lambda i: i.cancel(), "cancel", {}),
        (lambda i: i.cancel("sold"), "cancel", {"reason": "sold"}),
        (lambda i: i.restart(), "restart", {}),
        (lambda i: i.retry(), "retry", {}),
        (lambda i: i.retry(from_step="pages/~0/fetch"), "retry", {"fromStep": "pages/~0/fetch"}),
        (lambda i: i.retry(deployment="active"), "retry", {"deployment": "active"}),
        (lambda i: i.move("dep_1"), "move", {"deployment": "dep_1"}),
        (lambda i: i.move("app", dry_run=True), "move", {"deployment": "app", "dryRun": True}),
        (
            lambda i: i.move("dep_1", force=True, reason="fixed"),
            "move",
            {"deployment": "dep_1", "force": True, "reason": "fixed"},
        ),
        (lambda i: i.restart(deployment="same"), "restart", {"deployment": "same"}),
        (lambda i: i.send_event("go"), "events", {"type": "go"}),
        (
            lambda i: i.set_branch_output("g", 2, {"v": 1}, fork="0/g"),
            "branch-output",
            {"group": "g", "branch": 2, "output": {"v": 1}, "fork": "0/g"},
        ),
        (lambda i: i.send_event("go", {"a": 1}), "events", {"type": "go", "payload": {"a": 1}}),
        (
            lambda i: i.send_event("go", start_if_missing=True),
            "events",
            {"type": "go", "startIfMissing": {}},
        ),
        (
            lambda i: i.send_event("go", start_if_missing={"params": 7}),
            "events",
            {"type": "go", "startIfMissing": {"params": 7}},
        ),
    ],
)
def test_every_deed_has_its_route(deed: Deed, line: str, body: object):
    network = Network(answer(OK))
    on_instance(network, deed)
    assert network.lines == [f"POST /workflows/order/instances/order-1/{line}"]
    assert network.body() == body
    assert network.asked[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("name", ["pause", "resume", "terminate", "cancel", "restart", "retry"])
def test_who_steers_an_instance_learns_how_it_stands(name: str):
    reported = answer({"ok": True, "status": {"status": "complete", "output": 7}})
    status = on_instance(Network(reported), DEEDS[name])
    assert (status.status, status.output) == ("complete", 7)


def test_a_status_of_a_later_release_is_kept_as_the_text_that_it_is():
    whole = described("suspended", {"sku": "x"})
    status = on_instance(Network(answer(whole)), lambda instance: instance.status())
    assert (status.status, str(status.status), status.ended) == ("suspended", "suspended", False)
    with pytest.raises(ValueError, match="suspended"):
        RunStatus("suspended")


def test_how_an_instance_stands_and_all_that_is_known():
    step = {
        "stepKey": "approval", "name": "approval", "type": "wait_for_event", "status": "waiting",
        "attempts": 0, "maxAttempts": None, "timeoutMs": None, "nextRetryAt": None,
        "wakeAt": "2026-11-22T14:00:00Z", "waitEventType": ["a", "b"],
        "lastAttemptAt": None, "news": "of tomorrow",
    }  # fmt: skip
    whole = described("waiting", {"sku": "x"}, meta={"currentStep": step})
    failed = described("errored", error={"name": "E", "message": "no"})
    network = Network(answer(whole), answer(failed), answer(described("complete", output=[1])))

    async def look(instance: InstanceHandle) -> list[Any]:
        return [await instance.describe(), await instance.status(), await instance.status()]

    result, errored, complete = on_instance(network, look)
    assert (result.id, result.details.status, result.meta.params) == (
        "order-1",
        "waiting",
        {"sku": "x"},
    )
    assert result.meta.current_step.wait_event_type == ["a", "b"]
    assert result.meta.current_step.wake_at.isoformat() == "2026-11-22T14:00:00+00:00"
    assert (errored.status, errored.error.name, errored.error.message) == ("errored", "E", "no")
    assert (complete.status, complete.output, complete.ended) == ("complete", [1], True)


def test_instances_have_labels_and_are_found_by_them():
    listed = listed_as("order-1", labels={"team": "blue"})
    page = {"instances": [listed], "hasNextPage": False}
    network = Network(answer(CREATED), answer({"instances": []}), answer(page))

    async def play(client: Client) -> list[str]:
        order = client.workflow("order")
        await order.create("order-1", labels={"team": "blue"})
        await order.create_batch([{"id": "a", "labels": {"team": "red"}}])
        expected = {"team": "blue", "region": "eu"}
        return [one.labels["team"] async for one in order.instances(labels=expected)]

    assert do(network, play) == ["blue"]
    assert network.body(0)["labels"] == {"team": "blue"}
    assert network.body(1)["instances"][0]["labels"] == {"team": "red"}
    requested = network.asked[2].url.params
    assert requested.get_list("label") == ["team=blue", "region=eu"]


def test_instances_of_all_workflows_are_read_as_those_of_one():
    both = [listed_as("a"), listed_as("b", workflowName="ship")]
    network = Network(
        answer({"instances": both, "hasNextPage": True, "cursor": "n1"}),
        answer({"instances": [], "hasNextPage": False}),
    )
    result = do(network, lambda client: taken(client.instances("waiting", page_size=2)))
    assert [f"{one.workflow_name}/{one.id}" for one in result] == ["order/a", "ship/b"]
    assert {request.url.path for request in network.asked} == {"/api/workflows/instances"}
    assert queries(network.asked) == [
        {"status": "waiting", "pageSize": "2"},
        {"status": "waiting", "pageSize": "2", "cursor": "n1"},
    ]


def test_a_listing_is_read_page_by_page():
    def page(*ids: str, **more: object) -> httpx2.Response:
        return answer({"instances": [listed_as(item) for item in ids], **more})

    network = Network(
        page("c", "b", hasNextPage=True, cursor="n1"), page("a", hasNextPage=False)
    )  # fmt: skip
    result = do(
        network,
        lambda client: taken(client.workflow("order").instances("active", page_size=2)),
    )
    assert [one.id for one in result] == ["c", "b", "a"]
    assert queries(network.asked) == [
        {"status": "active", "pageSize": "2"},
        {"status": "active", "pageSize": "2", "cursor": "n1"},
    ]


HISTORY = (
    {
        "runNumber": 1, "steps": [step("a")], "stepsHasNextPage": True, "stepsCursor": "s1",
        "tokens": [], "tokensHasNextPage": False,
        "events": [event()], "eventsHasNextPage": False,
        "logs": [line(1)], "logsHasNextPage": True, "logsCursor": "l1",
    },
    {
        "runNumber": 1, "steps": [step("b")], "stepsHasNextPage": False,
        "tokens": [], "tokensHasNextPage": False,
        "events": [event()], "eventsHasNextPage": False,
        "logs": [line(2)], "logsHasNextPage": True, "logsCursor": "l2",
    },
    {
        "runNumber": 1, "steps": [step("b")], "stepsHasNextPage": False,
        "tokens": [], "tokensHasNextPage": False,
        "events": [event()], "eventsHasNextPage": False,
        "logs": [line(3)], "logsHasNextPage": False,
    },
)  # fmt: skip


def test_a_history_is_read_whole_and_stays_that_of_its_run():
    network = Network(*map(answer, HISTORY))
    result = on_instance(network, lambda i: i.history(include_logs=True, log_level="info"))
    assert result.run_number == 1
    assert [one.step_key for one in result.steps] == ["a", "b"]
    assert result.tokens == []
    assert [one.payload for one in result.events] == [1]
    assert [one.message for one in result.logs] == ["line 1", "line 2", "line 3"]
    first, second, third = queries(network.asked)
    assert first == {"pageSize": "100", "includeLogs": "true", "logLevel": "info"}
    assert second == {**first, "runNumber": "1", "stepsCursor": "s1", "logsCursor": "l1"}
    assert third == {**second, "logsCursor": "l2"}


def test_logs_are_read_alone_and_no_further_than_they_are_taken():
    network = Network(*map(answer, HISTORY))

    async def two(instance: InstanceHandle) -> list[str]:
        lines = instance.logs(1, order="desc")
        result = [(await anext(lines)).message, (await anext(lines)).message]
        await lines.aclose()
        return result

    assert on_instance(network, two) == ["line 1", "line 2"]
    assert len(network.asked) == 2
    assert queries(network.asked)[0]["order"] == "desc"


def test_without_logs_none_are_asked_for():
    page = {name: value for name, value in HISTORY[2].items() if not name.startswith("logs")}
    network = Network(answer(page))
    assert on_instance(network, lambda i: i.history(0)).logs == []
    assert queries(network.asked) == [{"pageSize": "100", "runNumber": "0"}]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"key": "k"}, {"authorization": "Bearer k", "x-api-key": None}),
        ({"headers": {"X-Tenant": "a"}}, {"x-tenant": "a", "authorization": None}),
        (
            {"key": "k", "headers": {"Authorization": "Bearer own"}},
            {"authorization": "Bearer own", "x-api-key": "k"},
        ),
        (
            {"key": "k", "headers": {"AUTHORIZATION": "own", "X-Api-Key": "mine"}},
            {"authorization": "own", "x-api-key": "mine"},
        ),
    ],
)
def test_keys_and_headers_go_with_every_request(given: dict[str, Any], sent: dict[str, str | None]):
    network = Network(answer({"workflows": []}))
    do(network, lambda client: client.workflows(), **given)
    assert {name: network.asked[0].headers.get(name) for name in sent} == sent


@pytest.mark.parametrize(
    ("instance_id", "path"),
    [
        ("a/b", "a%2Fb"),
        ("..", "%2E%2E"),
        ("ü?#", "%C3%BC%3F%23"),
    ],
)
def test_an_odd_id_leads_nowhere_else(instance_id: str, path: str):
    network = Network(answer(described()))
    do(network, lambda client: client.workflow("order").get(instance_id).status())
    assert network.lines == [f"GET /workflows/order/instances/{path}"]


@pytest.mark.parametrize(
    "wrong",
    ["127.0.0.1:8080", "ftp://host/x", "http://", "https://host/x?y=1", "https://host/#x", ""],
)
def test_a_base_url_has_to_be_whole(wrong: str):
    with pytest.raises(ValueError, match="expected a whole base URL"):
        Client(wrong)


def test_a_header_that_cannot_be_sent_is_refused_without_showing_it():
    with pytest.raises(ValueError, match="in the header x-tenant, found other") as caught:
        Client("http://host", headers={"X-Tenant": "geheim\n"})
    assert "geheim" not in str(caught.value)


def test_a_client_that_was_not_entered_says_so():
    with pytest.raises(RuntimeError, match="expected `async with Client"):
        Client("http://host").workflow("order")
    with pytest.raises(ValueError, match="found nothing"):
        do(Network(), lambda client: client.workflow("order").get("").status())


def test_whatever_a_deployment_is_called_the_body_is_json():
    network = Network(problem(404, "deployment_not_found"))
    with pytest.raises(CommandRefusedError):
        do(network, lambda client: client.deployments.rollback('a"b'))
    assert network.body() == {"deploymentId": 'a"b'}


@pytest.mark.parametrize("key", ["", "a b", "k\u00e9", "a\nb", "x" * 256])
def test_what_cannot_be_a_key_is_refused_before_anything_is_sent(key: str):
    network = Network()
    for deed in (
        lambda client: client.runs.create("order", key=key),
        lambda client: client.workflow("order").create(idempotency_key=key),
        lambda client: client.workflow("order").get("a").send_event("x", idempotency_key=key),
    ):
        with pytest.raises(ValueError, match="expected an idempotency key of 1 to 255"):
            do(network, deed)
    assert network.asked == []


def test_httpx_is_loaded_by_those_alone_who_ask_for_something():
    code = "import sys, headwater, headwater.gateway.cli.instances; print('httpx2' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


# -- reading what was written


def test_reads_wait_for_writes_of_the_same_client():
    network = Network(
        answer({"workflows": []}),
        answer(OK, "workflow-history/2@17"),
        answer(OK, "workflow-history/2@11"),
        answer(described()),
        answer({"instances": []}, "workflow-history/0@3, workflow-history/2@20"),
        answer(described()),
        answer(described()),
        answer({"instances": [], "hasNextPage": False}),
    )

    async def play(client: Client) -> None:
        order = client.workflow("order")
        await client.workflows()
        await order.get("order-1").pause()
        await order.get("order-1").resume()
        await order.get("order-1").status()
        await order.create_batch([{"id": "a"}])
        await order.get("order-1").status()
        await order.get("a").status()
        await order.page()

    do(network, play)
    waited = [query.get("min_position") for query in queries(network.asked)]
    both = "workflow-history/0@3,workflow-history/2@20"
    both_by_use = "workflow-history/2@20"
    assert waited[:4] == [None, None, None, "workflow-history/2@17"]
    assert waited[5] == "workflow-history/2@17"
    assert waited[6] == waited[7] == both
    assert both.endswith(both_by_use)


# -- repeating


@pytest.mark.parametrize("name", DEEDS)
def test_what_nobody_took_is_repeated_whatever_it_is(name: str):
    busy = problem(503, "overloaded", headers={"retry_after": "2"})
    good = answer(described() if name == "read" else OK)
    network = Network(REFUSED, busy, problem(429, "slow_down"), good)
    on_instance(network, DEEDS[name])
    assert network.slept == [0.125, 2.0, 0.5]


@pytest.mark.parametrize("name", ["read", "pause", "resume", "terminate", "cancel", "send-event"])
@pytest.mark.parametrize("failure", [LOST, httpx2.RemoteProtocolError("gone"), LATER])
def test_what_may_be_repeated_is_after_an_answer_was_lost(name: str, failure: Turn):
    network = Network(failure, answer(described() if name == "read" else OK))
    on_instance(network, DEEDS[name])
    assert network.slept == [5.0 if failure is LATER else 0.125]


@pytest.mark.parametrize("name", ["restart", "retry"])
@pytest.mark.parametrize("failure", [LOST, httpx2.RemoteProtocolError("gone"), LATER])
def test_what_would_be_done_twice_is_not_repeated(name: str, failure: Turn):
    network = Network(REFUSED, failure)
    with pytest.raises(OutcomeUnknownError, match="may have taken effect: check the state"):
        on_instance(network, DEEDS[name])
    assert len(network.asked) == 2


@pytest.mark.parametrize(
    ("name", "failures", "error"),
    [
        ("read", [REFUSED] * 3, ConnectionFailedError),
        ("read", [LOST] * 3, ConnectionFailedError),
        ("read", [LATER] * 3, UnavailableError),
        ("pause", [REFUSED] * 3, ConnectionFailedError),
        ("pause", [LOST] * 3, OutcomeUnknownError),
        ("pause", [LOST, REFUSED, REFUSED], OutcomeUnknownError),
        ("pause", [LATER, problem(429, "slow_down"), REFUSED], OutcomeUnknownError),
        ("pause", [problem(429, "slow_down")] * 3, UnavailableError),
        ("read", [problem(500, "internal_error")], UnavailableError),
        ("pause", [problem(500, "internal_error")], OutcomeUnknownError),
        ("read", [problem(503, "x", headers={"retry_after": "3600"})], UnavailableError),
    ],
)
def test_in_the_end_a_failure_is_told(name: str, failures: list[Turn], error: type[ClientError]):
    network = Network(*failures)
    with pytest.raises(error) as caught:
        on_instance(network, DEEDS[name], retries=2)
    assert len(network.asked) == len(failures)
    assert type(caught.value) is error


def keys(network: Network) -> list[str | None]:
    return [one.headers.get("idempotency-key") for one in network.asked]


def test_to_create_is_repeated_under_one_key_by_which_it_is_done_once():
    network = Network(LOST, answer(CREATED))
    made = do(network, lambda client: client.workflow("order").create("order-1", {"a": 1}))
    assert made.id == "order-1"
    assert network.body(0) == network.body(1)
    assert keys(network) == ["drawn-0"] * 2


def test_each_event_and_each_batch_has_a_key_of_its_own_when_it_is_repeated():
    network = Network(LOST, answer({"status": {"status": "active"}}), answer({"instances": []}))

    async def play(client: Client) -> None:
        order = client.workflow("order")
        await order.get("order-1").send_event("go")
        await order.create_batch([{"id": "a"}])

    do(network, play)
    assert keys(network) == ["drawn-0", "drawn-0", "drawn-1"]


def test_a_key_of_the_callers_names_the_instance_that_it_creates():
    network = Network(answer(CREATED), answer({"status": {"status": "active"}}))

    async def play(client: Client) -> str:
        order = client.workflow("order")
        made = await order.create(params=1, idempotency_key="mine")
        await made.send_event("go", idempotency_key="mine-too")
        return made.id

    assert do(network, play) == "order-1"
    assert network.body(0) == {"params": 1}
    assert keys(network) == ["mine", "mine-too"]


def test_an_id_that_exists_is_refused():
    network = Network(REFUSED, problem(409, "INSTANCE_ID_ALREADY_EXISTS"))
    with pytest.raises(headwater.InstanceExistsError):
        do(network, lambda client: client.workflow("order").create("order-1"))


@pytest.mark.parametrize("name", ["terminate", "cancel"])
def test_to_end_twice_is_to_end_once(name: str):
    ended = problem(
        409, "INSTANCE_TERMINAL", headers={"headwater_position": "workflow-history/3@9"}
    )
    network = Network(LOST, ended, answer(described("terminated")))
    on_instance(network, DEEDS[name])
    assert queries(network.asked)[-1] == {"min_position": "workflow-history/3@9"}
    with pytest.raises(headwater.InstanceTerminalError):
        on_instance(Network(LOST, ended, answer(described("complete"))), DEEDS[name])
    with pytest.raises(headwater.InstanceTerminalError):
        on_instance(Network(ended), DEEDS[name])


# -- errors


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_is_the_error_that_it_is_everywhere(code: str):
    network = Network(problem(409, code, "because", field="id"))
    with pytest.raises(CommandRefusedError, match="because") as caught:
        on_instance(network, DEEDS["pause"])
    error = caught.value
    assert (error.code, error.status, error.detail, error.field) == (code, 409, "because", "id")
    assert type(error) is REFUSALS[code].error


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (problem(409, "NEW_CODE", "because"), CommandRefusedError, "because"),
        (problem(401, "unauthorized", "no key"), UnauthorizedError, "HEADWATER_WORKFLOW_KEY"),
        (problem(403, "TENANT_MISMATCH", "not yours"), UnauthorizedError, "not yours"),
        (problem(404, "not_found", "No route"), UnexpectedAnswerError, "is the base URL whole"),
        (httpx2.Response(404, text="<html>"), UnexpectedAnswerError, "found 404 <html>"),
        (httpx2.Response(200, text="hello"), UnexpectedAnswerError, "is the base URL whole"),
        (answer({"status": "up"}), UnexpectedAnswerError, "is the base URL whole"),
        (httpx2.Response(502, text="bad gateway"), UnavailableError, "cannot answer"),
        (
            httpx2.Response(308, headers={"location": "https://host/"}),
            UnexpectedAnswerError,
            "a redirection to https://host/",
        ),
        (REFUSED, ConnectionFailedError, "start it with `headwater up`"),
    ],
)  # fmt: skip
def test_every_failure_says_what_to_do(given: Turn, error: type[ClientError], words: str):
    with pytest.raises(error, match=words) as caught:
        on_instance(Network(given), DEEDS["read"], retries=0)
    assert type(caught.value) is error


def test_an_error_knows_a_code_that_its_class_does_not():
    error = refused("NEW_CODE", "no", status=409)
    assert (error.code, CommandRefusedError.code) == ("NEW_CODE", "")
    assert isinstance(ConnectionFailedError("x"), ConnectionError)


@pytest.mark.parametrize(
    "error",
    [
        refused("INSTANCE_TERMINAL", "ended", status=409, field="id", repeated=True),
        refused("NEW_CODE", "no", status=400),
        ConnectionFailedError("nobody"),
        InstanceFailedError("order/order-1", "errored", "E", "no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


# -- following


WAITING = message("status", 1, stands("waiting"))
LOGGED = message("log", 2, line(2))
STEP = message("step", 3, step("a"))
END = message("end", 4, stands("complete", output=7))


def follow(network: Network, **more: object) -> list[tuple[str, str]]:
    async def run(instance: InstanceHandle) -> list[tuple[str, str]]:
        return [(item.event, item.id) async for item in instance.follow()]

    return on_instance(network, run, **more)


ALL = [("status", "1"), ("log", "2"), ("step", "3"), ("end", "4")]


@pytest.mark.parametrize(
    "broken",
    [
        [stream(WAITING, LOGGED, httpx2.ReadError("gone"))],
        [stream(WAITING, LOGGED)],
        [stream(WAITING, LOGGED, STEP[:10])],
        [REFUSED, stream(WAITING, LOGGED), REFUSED, LATER],
        [stream(WAITING), stream(LOGGED, httpx2.ReadTimeout(""))],
    ],
)
def test_a_stream_goes_on_where_it_broke(broken: list[Turn]):
    network = Network(*broken, stream(b": hello\n\n", STEP, END))
    assert follow(network) == ALL
    assert network.asked[0].headers.get("last-event-id") is None
    assert network.asked[-1].headers["last-event-id"] == "2"
    assert network.lines[-1] == "GET /workflows/order/instances/order-1/events-stream"
    assert network.asked[-1].headers["accept"] == "text/event-stream"


def test_a_stream_begins_no_earlier_than_what_was_written():
    network = Network(answer(OK, "workflow-history/1@5"), stream(END))

    async def play(instance: InstanceHandle) -> None:
        await instance.restart()
        await taken(instance.follow())

    on_instance(network, play)
    assert queries(network.asked)[1] == {"min_position": "workflow-history/1@5"}


def test_silence_is_no_failure_and_the_server_says_how_long_to_wait():
    silent = [stream(b"retry: 3000\n\n", httpx2.ReadTimeout("")) for _ in range(9)]
    network = Network(*silent, stream(WAITING, LOGGED, STEP, END))
    assert follow(network) == ALL
    assert network.slept == [3.0] * 9


def test_a_stream_that_cannot_be_opened_again_is_told():
    network = Network(stream(WAITING), *[REFUSED] * 9)
    with pytest.raises(ConnectionFailedError):
        follow(network, retries=2)
    assert len(network.asked) == 3
    with pytest.raises(headwater.InstanceNotFoundError):
        follow(Network(problem(404, "INSTANCE_NOT_FOUND")))
    with pytest.raises(UnexpectedAnswerError):
        follow(Network(answer({})))


def test_what_is_followed_has_the_types_of_a_history():
    network = Network(stream(WAITING, LOGGED, STEP, message("new", 5, {"a": 1}), END))
    items = on_instance(network, lambda instance: taken(instance.follow()))
    assert [type(item.data).__name__ for item in items] == [
        "StatusOfRun", "LogLine", "Step", "dict", "StatusOfRun",
    ]  # fmt: skip


def test_a_result_is_waited_for():
    network = Network(answer(described("waiting")), stream(WAITING), stream(STEP, END))
    assert on_instance(network, lambda i: i.result()) == 7
    network = Network(answer(described("complete", output={"n": 7})))
    assert on_instance(network, lambda i: i.result("1 second")) == {"n": 7}


def test_an_instance_that_fails_has_no_result():
    error = {"name": "CardError", "message": "declined"}
    network = Network(answer(described("errored", error=error)))
    with pytest.raises(InstanceFailedError, match="to complete, found it errored") as caught:
        on_instance(network, lambda i: i.result())
    assert (caught.value.outcome, caught.value.name, caught.value.message) == (
        "errored", "CardError", "declined",
    )  # fmt: skip
    with pytest.raises(InstanceFailedError, match=r"found it terminated$"):
        on_instance(Network(answer(described("terminated"))), lambda i: i.result())


def test_a_result_that_does_not_come_is_not_waited_for_for_ever():
    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

    endless = httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Endless())
    network = Network(answer(described("waiting")), endless)
    with pytest.raises(TimeoutError, match=r"order/order-1 to end within 0\.05 s"):
        on_instance(network, lambda i: i.result(timeout="50 ms"))
