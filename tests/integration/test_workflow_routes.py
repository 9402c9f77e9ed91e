"""The workflow service on real parts: two gateways, a worker, a projector, Kafka and Postgres."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psycopg
import pytest

from headwater import Client
from headwater.schemas.answers import InstanceStatus
from tests.e2e.house import House, opened
from tests.integration.job_worker import NODE, activate, end, listed, node_workers, python_worker

KEY = {"authorization": "Bearer dev-workflow-key"}
ASYNC = {"prefer": "respond-async"}
TICK_KEY = {"authorization": "Bearer the-tick-key"}
MISSING = "workflow-history/0@999999"

_NUMBERS = itertools.count(1)


def fresh() -> str:
    """An id that no other test uses."""
    return f"i-{next(_NUMBERS)}"


class Worker(BaseHTTPRequestHandler):
    """The worker's end of a tick, as the gateway sees it."""

    heard: ClassVar[list[dict[str, int]]] = []

    def do_POST(self) -> None:
        self.heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        body = b'{"processed":3}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def ticked() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Worker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def house(scratch: Path, module_database: str, ticked: str) -> Iterator[House]:
    directory = scratch / "workflow-routes"
    directory.mkdir()
    house = House(
        directory,
        module_database,
        HEADWATER_APP="tests.apps.service",
        HEADWATER_MAX_STEPS="20",
        HEADWATER_TICK_URL=ticked,
        HEADWATER_TICK_KEY="the-tick-key",
    )
    with opened(house, ("worker", "project", "gateway", "gateway2")):
        house.wait(lambda: knows_all(house), "the workflows to be known")
        yield house


def knows_all(house: House) -> bool:
    answer = httpx.get(f"{base(house)}/workflows", headers=KEY)
    positions = answer.headers.get("headwater-position", "").count("@")
    return answer.is_success and bool(answer.json()["workflows"]) and positions == 4


def base(house: House, gateway: str = "gateway") -> str:
    return f"{house.url(gateway)}/api/workflows"


@pytest.fixture(scope="module")
def api(house: House) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base(house), headers=KEY, timeout=30) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def never(house: House) -> Iterator["Future[httpx.Response]"]:
    """The answer to a read of what never comes, which takes as long as a reader waits."""
    with ThreadPoolExecutor(1) as pool:
        url = f"{base(house)}/workflows?min_position={MISSING}"
        yield pool.submit(httpx.get, url, headers=KEY, timeout=30)


def of(workflow: str, instance: str = "", verb: str = "") -> str:
    path = f"/workflows/{workflow}/instances"
    return "/".join(part for part in (path, instance, verb) if part)


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def create(api: httpx.Client, workflow: str, params: object = None, name: str = "") -> str:
    body = {"id": name or fresh(), "params": params}
    answer = api.post(of(workflow), json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def status(api: httpx.Client, workflow: str, name: str) -> dict[str, Any]:
    answer = api.get(of(workflow, name))
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["details"])


def until(api: httpx.Client, workflow: str, name: str, *statuses: str) -> dict[str, Any]:
    deadline = time.monotonic() + 15
    while True:
        found = status(api, workflow, name)
        if found["status"] in statuses:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def at_once(
    house: House, act: Callable[[httpx.AsyncClient, httpx.AsyncClient], Awaitable[None]]
) -> None:
    """Acts with both gateways, in an event loop."""

    async def acts() -> None:
        limits = httpx.Limits(max_connections=100)
        async with (
            httpx.AsyncClient(base_url=base(house), headers=KEY, timeout=30, limits=limits) as one,
            httpx.AsyncClient(
                base_url=base(house, "gateway2"), headers=KEY, timeout=30, limits=limits
            ) as two,
        ):
            await act(one, two)

    asyncio.run(acts())


# -- every route


def test_workflows_are_those_that_the_worker_has(api: httpx.Client) -> None:
    names = [each["name"] for each in api.get("/workflows").json()["workflows"]]
    workflows = {"choosy", "echo", "flaky", "forgiving", "slow", "telling", "tidy", "waiting"}
    assert names == sorted({*workflows, "judged", "paying", "refunding", "voting"})


def test_an_instance_is_created_and_read_with_its_values_as_they_came(api: httpx.Client) -> None:
    name = fresh()
    text = '{"b": 1.0, "a" : [1, "\\u0000é"], "n": 123456789012345678901234567890}'
    answer = api.post(of("echo"), content=f'{{"id":"{name}","params":{text}}}'.encode())
    assert answer.json() == {"id": name, "details": {"status": "active"}}
    found = until(api, "echo", name, "complete")
    assert found["output"] == json.loads(text)
    whole = api.get(of("echo", name))
    assert text in whole.text
    meta = whole.json()["meta"]
    assert (meta["workflowName"], meta["runNumber"]) == ("echo", 0)
    assert meta["completedAt"].endswith("Z")


def test_an_id_is_made_if_there_is_none(api: httpx.Client) -> None:
    name = api.post(of("echo")).json()["id"]
    assert until(api, "echo", name, "complete")["output"] is None


def test_a_batch_creates_what_does_not_exist(api: httpx.Client) -> None:
    old, new = create(api, "waiting"), fresh()
    body = {"instances": [{"id": old}, {"id": new, "params": 2}]}
    answer = api.post(of("waiting", "batch"), json=body)
    assert answer.json() == {"instances": [{"id": new, "details": {"status": "active"}}]}
    assert api.post(of("waiting", "batch"), json=body).json() == {"instances": []}
    assert api.get(of("waiting", new)).json()["meta"]["params"] == 2


def test_an_instance_named_batch_is_like_any_other(api: httpx.Client) -> None:
    name = create(api, "waiting", 2, name="batch")
    whole = api.get(of("waiting", name)).json()
    assert (whole["id"], whole["meta"]["params"]) == ("batch", 2)
    for verb, then in (("pause", ["paused"]), ("resume", ["active", "waiting"])):
        assert api.post(of("waiting", name, verb)).json()["status"]["status"] in then
    assert api.post(of("waiting", name, "events"), json={"type": "go"}).status_code == 200
    assert len(api.get(of("waiting", name, "history")).json()["events"]) == 1
    assert api.post(of("waiting", name, "terminate")).json()["status"]["status"] == "terminated"
    assert problem(api.post(of("waiting", name, "retry"))) == (409, "INSTANCE_NOT_ERRORED")
    told = follow(api, of("waiting", name, "events-stream"))
    assert told[-1][2]["status"] == "terminated"
    assert api.post(of("waiting", name, "restart")).json()["runNumber"] == 1
    again = api.post(of("waiting", "batch"), json={"instances": [{"id": "batch"}]})
    assert again.json() == {"instances": []}


def test_a_batch_of_a_hundred(api: httpx.Client) -> None:
    names = [fresh() for _number in range(100)]
    body = {"instances": [{"id": name, "params": name} for name in names]}
    answer = api.post(of("echo", "batch"), json=body)
    assert [one["id"] for one in answer.json()["instances"]] == names
    for name in names[::20]:
        assert until(api, "echo", name, "complete")["output"] == name


def test_an_instance_is_paused_resumed_terminated_and_restarted(api: httpx.Client) -> None:
    name = create(api, "waiting")
    for verb, then in (("pause", "paused"), ("pause", "paused")):
        answer = api.post(of("waiting", name, verb))
        assert (answer.status_code, answer.json()) == (
            200,
            {"ok": True, "status": {"status": then}},
        )
        assert status(api, "waiting", name) == {"status": "paused"}
    for _number in range(2):
        answer = api.post(of("waiting", name, "resume"))
        assert answer.json()["ok"]
        assert answer.json()["status"]["status"] in ("active", "waiting")
    answer = api.post(of("waiting", name, "terminate"))
    assert answer.json() == {"ok": True, "status": {"status": "terminated"}}
    answer = api.post(of("waiting", name, "restart"))
    assert (answer.json()["ok"], answer.json()["runNumber"]) == (True, 1)
    assert api.get(of("waiting", name)).json()["meta"]["runNumber"] == 1


def test_a_cancelled_instance_cleans_up_is_rolled_back_and_terminated(api: httpx.Client) -> None:
    name = create(api, "tidy")
    until(api, "tidy", name, "waiting")
    answer = api.post(of("tidy", name, "cancel"))
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    found = until(api, "tidy", name, "terminated")
    assert found["error"] == {"name": "Cancelled", "message": "the instance was cancelled"}
    steps = {each["name"]: each for each in api.get(of("tidy", name, "history")).json()["steps"]}
    assert [steps[each]["status"] for each in ("charge", "nap", "sweep")] == [
        "completed",
        "cancelled",
        "completed",
    ]
    assert steps["charge"]["rolledBackAt"]
    assert problem(api.post(of("tidy", name, "cancel"))) == (409, "INSTANCE_TERMINAL")


def test_events_are_taken_in_their_order(api: httpx.Client) -> None:
    name = create(api, "waiting", 2)
    for payload in ({"n": 1}, None):
        answer = api.post(of("waiting", name, "events"), json={"type": "go", "payload": payload})
        assert answer.status_code == 200
        assert answer.json()["status"]["status"] in ("active", "waiting", "complete")
    assert until(api, "waiting", name, "complete")["output"] == [{"n": 1}, None]
    events = api.get(of("waiting", name, "history")).json()["events"]
    assert [event["consumedByStepKey"] for event in events] == ["go 0", "go 1"]
    assert [event["payload"] for event in events] == [{"n": 1}, None]


def test_an_event_may_start_its_instance(api: httpx.Client) -> None:
    name = fresh()
    missing = api.post(of("waiting", name, "events"), json={"type": "go"})
    assert problem(missing) == (404, "INSTANCE_NOT_FOUND")
    body = {"type": "go", "payload": 1, "startIfMissing": {"params": 2}}
    for _number in range(2):
        assert api.post(of("waiting", name, "events"), json=body).status_code == 200
    assert until(api, "waiting", name, "complete")["output"] == [1, 1]


def test_the_current_step_is_told(api: httpx.Client) -> None:
    name = create(api, "choosy")
    until(api, "choosy", name, "waiting")
    step = api.get(of("choosy", name)).json()["meta"]["currentStep"]
    assert step["waitEventType"] == ["yes", "no"]
    assert (step["type"], step["status"]) == ("wait_for_event", "waiting")


def test_a_step_whose_error_was_caught_is_not_current(api: httpx.Client, tmp_path: Path) -> None:
    name = create(api, "forgiving", str(tmp_path / "go"))

    def steps() -> list[tuple[str, str]]:
        history = api.get(of("forgiving", name, "history")).json()
        return [(step["stepKey"], step["status"]) for step in history["steps"]]

    deadline = time.monotonic() + 15
    while steps() != [("bad", "errored"), ("fine", "completed")]:
        assert time.monotonic() < deadline, steps()
        time.sleep(0.02)
    found = api.get(of("forgiving", name)).json()
    assert found["details"] == {"status": "active"}
    assert "currentStep" not in found["meta"]
    (tmp_path / "go").touch()
    until(api, "forgiving", name, "complete")
    assert "currentStep" not in api.get(of("forgiving", name)).json()["meta"]


def test_a_run_has_as_many_entries_as_its_worker_allows(api: httpx.Client) -> None:
    name = create(api, "telling", 20)
    error = until(api, "telling", name, "errored")["error"]
    assert error["name"] == "MAX_STEPS_EXCEEDED"
    assert error["message"].startswith("expected at most 20 entries in a run, found one more, end;")


def test_an_errored_instance_is_tried_again_and_keeps_what_was_done(api: httpx.Client) -> None:
    name = create(api, "flaky")
    error = until(api, "flaky", name, "errored")["error"]
    assert (error["name"], error["message"]) == ("NonRetryableError", "no such card")
    assert 'raise NonRetryableError("no such card")' in error["traceback"]
    assert "streams/" not in error["traceback"], "frames of the author's code alone"
    step = api.get(of("flaky", name)).json()["meta"]["currentStep"]
    assert (step["stepKey"], step["error"]) == ("charge", error)
    [charge] = [
        each for each in api.get(of("flaky", name, "history")).json()["steps"] if "error" in each
    ]
    assert charge["error"] == error
    [listed] = [each for each in api.get(of("flaky")).json()["instances"] if each["id"] == name]
    assert listed["details"]["error"] == {"name": error["name"], "message": error["message"]}
    unknown = api.post(of("flaky", name, "retry"), json={"fromStep": "nowhere"})
    assert problem(unknown) == (404, "STEP_NOT_FOUND")
    assert unknown.json()["field"] == "fromStep"
    answer = api.post(of("flaky", name, "retry"), json={"fromStep": "charge"})
    assert (answer.status_code, answer.json()["runNumber"]) == (200, 1)
    assert until(api, "flaky", name, "complete")["output"] == "keptcharged"
    again = api.post(of("flaky", name, "retry"))
    assert problem(again) == (409, "INSTANCE_NOT_ERRORED")


def test_ticks_go_to_the_worker(api: httpx.Client) -> None:
    Worker.heard.clear()
    body = {"maxInstances": 2}
    with ThreadPoolExecutor(4) as pool:
        asks = [
            pool.submit(api.post, "/_runner/tick", json=body, headers=TICK_KEY)
            for _number in range(4)
        ]
    assert [ask.result().json() for ask in asks] == [{"processed": 3}] * 4
    assert Worker.heard == [{"maxInstances": 2}] * 4


# -- listings and histories, page by page


def test_a_listing_goes_page_by_page(api: httpx.Client) -> None:
    names = {create(api, "choosy") for _number in range(5)}
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get(of("choosy"), params={"pageSize": 2, **cursor}).json()
        found += [one["id"] for one in page["instances"]]
        if not page["hasNextPage"]:
            assert "cursor" not in page
            break
        cursor = {"cursor": page["cursor"]}
    assert names <= set(found)
    assert len(found) == len(set(found))
    only = api.get(of("choosy"), params={"status": "complete"}).json()
    assert only == {"instances": [], "hasNextPage": False}


def test_instances_are_found_by_their_labels_in_all_of_their_runs(api: httpx.Client) -> None:
    blue = {"team": "blue", "a=b": "no"}
    answer = api.post(of("choosy"), json={"id": fresh(), "labels": blue})
    assert problem(answer) == (400, "INVALID_LABELS")
    blue = {"team": "blue ü=1", "region": "eu"}
    made = api.post(of("choosy"), json={"id": fresh(), "labels": blue}).json()
    red = api.post(of("choosy"), json={"id": fresh(), "labels": {"team": "red"}}).json()["id"]
    assert api.post(of("choosy", made["id"], "restart")).status_code == 200

    def found(*labels: str, **more: str) -> list[str]:
        page = api.get(of("choosy"), params={"label": list(labels), **more}).json()
        return [one["id"] for one in page["instances"]]

    assert found("team=blue ü=1") == found("team=blue ü=1", "region=eu") == [made["id"]]
    assert found("team=red", status="waiting") == [red]
    assert found("team=red", "region=eu") == found("team=red", status="errored") == []
    assert api.get(of("choosy", made["id"])).json()["labels"] == blue


def test_the_same_is_done_to_all_instances_of_a_status_or_label(api: httpx.Client) -> None:
    label = fresh()
    batch = [{"id": fresh(), "labels": {"in": label}} for _ in range(5)]
    assert api.post(of("choosy", "batch"), json={"instances": batch}).status_code == 200
    names = {str(new["id"]) for new in batch}

    def change(action: str, **more: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        asked = {"action": action, "labels": {"in": label}, "pageSize": 2, **more}
        while True:
            answer = api.post("/workflows/choosy/bulk", json=asked)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found += page["instances"]
            if not page["hasNextPage"]:
                return found
            asked["cursor"] = page["cursor"]

    assert {one["id"] for one in change("terminate", dryRun=True)} == names
    assert {one["status"] for one in change("pause")} == {"paused"}
    assert {one["id"] for one in change("resume", status="paused")} == names
    last = batch[0]["id"]
    assert api.post(of("choosy", str(last), "terminate")).status_code == 200
    ended = {one["id"]: (one["status"], one.get("code")) for one in change("terminate")}
    assert ended.pop(last) == ("terminated", "INSTANCE_TERMINAL")
    assert set(ended.values()) == {("terminated", None)}
    assert {one["code"] for one in change("retry")} == {"INSTANCE_NOT_ERRORED"}
    unknown = api.post("/workflows/nobodys/bulk", json={"action": "retry", "status": "errored"})
    assert problem(unknown) == (404, "WORKFLOW_NOT_FOUND")


@pytest.fixture(scope="module")
def told(api: httpx.Client) -> str:
    """An instance with seven steps and three lines, that has ended."""
    name = create(api, "telling", 7)
    assert api.post(of("telling", name, "events"), json={"type": "end"}).status_code == 200
    until(api, "telling", name, "complete")
    return name


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("kind", ["steps", "logs"])
def test_a_history_goes_page_by_page(api: httpx.Client, told: str, order: str, kind: str) -> None:
    path = of("telling", told, "history")
    whole = api.get(path, params={"includeLogs": "true"}).json()
    assert len(whole["steps"]) == 8
    assert len(whole["logs"]) == 3
    found: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        asked = {"pageSize": 3, "order": order, "includeLogs": "true", **cursor}
        page = api.get(path, params=asked).json()
        found += page[kind]
        if not page[f"{kind}HasNextPage"]:
            break
        cursor = {f"{kind}Cursor": page[f"{kind}Cursor"]}
    assert found == (whole[kind] if order == "asc" else whole[kind][::-1])


def test_lines_are_told_if_they_are_asked_for_and_may_be_chosen(
    api: httpx.Client, told: str
) -> None:
    path = of("telling", told, "history")
    assert not {"logs", "logsHasNextPage"} & set(api.get(path).json())

    def lines(**asked: str) -> list[str]:
        answer = api.get(path, params={"includeLogs": "true", **asked})
        return [line["message"] for line in answer.json()["logs"]]

    assert lines() == ["begun", "careful", "ended"]
    assert lines(logLevel="warn") == ["careful"]
    assert lines(logCategory="test") == ["begun", "ended"]
    assert lines(logLevel="warn", logCategory="test") == []


def test_an_earlier_run_is_still_told(api: httpx.Client) -> None:
    name = create(api, "flaky")
    until(api, "flaky", name, "errored")
    api.post(of("flaky", name, "restart"))
    until(api, "flaky", name, "complete")
    path = of("flaky", name, "history")
    earlier = api.get(path, params={"runNumber": 0}).json()
    assert [step["status"] for step in earlier["steps"]] == ["completed", "errored"]
    assert api.get(path).json()["runNumber"] == 1
    unknown = api.get(path, params={"runNumber": 2})
    assert problem(unknown) == (404, "RUN_NOT_FOUND")


# -- errors


def test_what_does_not_exist_is_not_found(api: httpx.Client) -> None:
    assert problem(api.post(of("nobody"))) == (404, "WORKFLOW_NOT_FOUND")
    assert problem(api.get(of("nobody"))) == (404, "WORKFLOW_NOT_FOUND")
    batch = api.post(of("nobody", "batch"), json={"instances": [{"id": "a"}]})
    assert problem(batch) == (404, "WORKFLOW_NOT_FOUND")
    started = api.post(of("nobody", "a", "events"), json={"type": "go", "startIfMissing": {}})
    assert problem(started) == (404, "WORKFLOW_NOT_FOUND")
    for verb in ("pause", "resume", "terminate", "cancel", "restart", "retry"):
        answer = api.post(of("waiting", "nowhere", verb))
        assert problem(answer) == (404, "INSTANCE_NOT_FOUND"), verb
        assert answer.headers["headwater-position"].startswith("workflow-history/")
    for verb in ("", "history", "events-stream"):
        for name in ("nowhere", "%00", "%ff", "a%20b", "é", "x" * 300):
            answer = api.get(of("waiting", name, verb))
            assert problem(answer) == (404, "INSTANCE_NOT_FOUND"), name


def test_an_ended_instance_takes_nothing_more(api: httpx.Client, told: str) -> None:
    assert problem(api.post(of("telling"), json={"id": told})) == (
        409,
        "INSTANCE_ID_ALREADY_EXISTS",
    )
    for verb in ("pause", "terminate"):
        assert problem(api.post(of("telling", told, verb))) == (409, "INSTANCE_TERMINAL")
    sent = api.post(of("telling", told, "events"), json={"type": "end"})
    assert problem(sent) == (409, "INSTANCE_TERMINAL")
    resumed = api.post(of("telling", told, "resume"))
    assert resumed.json() == {"ok": True, "status": {"status": "complete", "output": 1}}


@pytest.mark.parametrize("name", ["stepsCursor", "eventsCursor", "logsCursor", "cursor"])
@pytest.mark.parametrize("cursor", ["nonsense", "e30", "WyIiLCIiLCIiXQ", "W10", "\x00", "é"])
def test_a_cursor_that_is_none_of_ours_is_named(
    api: httpx.Client, told: str, name: str, cursor: str
) -> None:
    if name == "cursor":
        answer = api.get(of("telling"), params={name: cursor})
    else:
        path = of("telling", told, "history")
        answer = api.get(path, params={name: cursor, "includeLogs": "true"})
    assert problem(answer) == (400, "invalid_cursor")
    assert answer.json()["field"] == name


def test_params_of_another_type_create_nothing(api: httpx.Client) -> None:
    name = fresh()
    answer = api.post(of("slow"), json={"id": name, "params": "soon"})
    assert problem(answer) == (400, "INVALID_PARAMS")
    assert answer.json()["detail"].endswith('found params: "soon" is not of type "number"')
    assert create(api, "slow", 1.5, name) == name


def test_bad_bodies_are_refused_and_nothing_is_written(api: httpx.Client) -> None:
    name = fresh()
    for body in (
        b'{"id":"%s","params":NaN}',
        b'{"id":"%s","params":"\xff"}',
        b'{"id":"%s","id":"b"}',
        b'{"id":"%s","params":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"id":"%s","more":1}',
        b'{"id":"%s","params":"' + b"x" * 1_100_000 + b'"}',
    ):
        answer = api.post(of("echo"), content=body.replace(b"%s", name.encode()))
        assert answer.status_code == 400, answer.text
        assert answer.json()["field"] in ("body", "more", "params")
    large = api.post(of("echo"), content=iter([b'{"id":"a"', b" " * 11_000_000, b"}"]))
    assert problem(large) == (413, "body_too_large")
    assert problem(api.get(of("echo", name))) == (404, "INSTANCE_NOT_FOUND")


def test_the_largest_params_are_taken(api: httpx.Client) -> None:
    text = "é" * (512 * 1024 - 1)
    name = create(api, "echo", text)
    assert until(api, "echo", name, "complete")["output"] == text


# -- reading what was written


def test_what_was_written_is_read_also_from_another_gateway(house: House) -> None:
    async def act(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
        async def write_and_read() -> None:
            name = fresh()
            made = await one.post(of("waiting"), json={"id": name})
            assert made.status_code == 200
            assert (await one.get(of("waiting", name))).status_code == 200
            assert (await two.get(of("waiting", name))).status_code == 200
            paused = await two.post(of("waiting", name, "pause"))
            assert paused.status_code == 200
            for gateway in (one, two):
                found = (await gateway.get(of("waiting", name))).json()
                assert found["details"] == {"status": "paused"}

        await asyncio.gather(*(write_and_read() for _number in range(20)))

    at_once(house, act)


def test_who_does_not_wait_can_wait_later_elsewhere(house: House) -> None:
    async def act(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
        async def write_and_read() -> None:
            name = fresh()
            made = await one.post(of("waiting"), json={"id": name}, headers=ASYNC)
            assert (made.status_code, made.headers["preference-applied"]) == (202, "respond-async")
            position = made.headers["headwater-position"]
            asked = {"min_position": position}
            found = await two.get(of("waiting", name), params=asked)
            assert found.status_code == 200, found.text
            partition, offset = position.split("@")
            stated = found.headers["headwater-position"].split("@")
            assert stated[0] == partition
            assert int(stated[1]) >= int(offset)

        await asyncio.gather(*(write_and_read() for _number in range(20)))

    at_once(house, act)


def test_the_position_of_a_listing_is_that_of_all_partitions(api: httpx.Client) -> None:
    position = api.get("/workflows").headers["headwater-position"]
    assert [part.split("@")[0] for part in position.split(", ")] == [
        f"workflow-history/{partition}" for partition in range(4)
    ]
    assert api.get(of("waiting"), params={"min_position": position}).status_code == 200


# -- many at once


def test_of_many_creates_of_one_id_through_two_gateways_one_succeeds(house: House) -> None:
    async def act(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
        body = {"id": fresh()}
        answers = await asyncio.gather(
            *((one, two)[number % 2].post(of("waiting"), json=body) for number in range(50))
        )
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200, *[409] * 49]

    at_once(house, act)


def test_under_a_key_one_instance_and_one_event_come_of_many_requests_to_two_gateways(
    house: House,
) -> None:
    async def act(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
        async def send(path: str, body: object) -> list[httpx.Response]:
            key = {"idempotency-key": f"key-of-{path}"}
            asked = (each.post(path, json=body, headers=key) for each in (one, two) * 4)
            return await asyncio.gather(*asked)

        made = await send(of("waiting"), {"params": 2})
        assert {answer.status_code for answer in made} == {200}
        (name,) = {answer.json()["id"] for answer in made}
        told = await send(of("waiting", name, "events"), {"type": "go", "payload": "once"})
        assert {answer.status_code for answer in told} == {200}
        replayed = [answer.headers.get("idempotent-replayed") for answer in (*made, *told)]
        assert sorted(map(str, replayed)) == ["None"] * 2 + ["true"] * 14
        history = (await two.get(of("waiting", name, "history"))).json()
        assert [event["payload"] for event in history["events"]] == ["once"]
        other = await send(of("waiting", name, "events"), {"type": "go", "payload": "other"})
        assert {problem(answer) for answer in other} == {(409, "idempotency_conflict")}

    at_once(house, act)


def test_an_event_that_is_sent_while_its_wait_begins_is_not_lost(house: House) -> None:
    async def act(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
        async def play(number: int) -> None:
            name = fresh()
            made = await one.post(of("waiting"), json={"id": name, "params": 3}, headers=ASYNC)
            assert made.status_code == 202
            await asyncio.sleep(number / 2_000)
            sent = await asyncio.gather(
                *(
                    gateway.post(
                        of("waiting", name, "events"),
                        json={"type": "go", "payload": payload},
                        headers=ASYNC,
                    )
                    for payload, gateway in enumerate((one, two, one))
                )
            )
            assert [answer.status_code for answer in sent] == [202] * 3
            found = await ended(two, "waiting", name)
            assert sorted(found["output"]) == [0, 1, 2]

        await asyncio.gather(*(play(number) for number in range(30)))

    at_once(house, act)


async def ended(gateway: httpx.AsyncClient, workflow: str, name: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found = (await gateway.get(of(workflow, name))).json()["details"]
            if found["status"] in ("complete", "errored", "terminated"):
                return dict(found)
            await asyncio.sleep(0.05)


def test_of_an_end_and_a_termination_one_happens(house: House) -> None:
    async def act(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
        async def race(number: int) -> str:
            name = fresh()
            await one.post(of("waiting"), json={"id": name}, headers=ASYNC)
            event = one.post(of("waiting", name, "events"), json={"type": "go"}, headers=ASYNC)
            sends = asyncio.create_task(event)
            await asyncio.sleep(number / 2_000)
            ends = await two.post(of("waiting", name, "terminate"))
            sent = await sends
            found = (await ended(two, "waiting", name))["status"]
            assert (ends.status_code, found) in ((200, "terminated"), (409, "complete"))
            assert sent.status_code == 202 or problem(sent) == (409, "INSTANCE_TERMINAL")
            return str(found)

        await asyncio.gather(*(race(number) for number in range(30)))

    at_once(house, act)


def test_a_restart_drops_the_step_that_is_running(api: httpx.Client) -> None:
    name = create(api, "slow", 4_000)
    time.sleep(0.2)
    begun = api.post(of("slow", name, "restart"))
    assert begun.json()["runNumber"] == 1
    assert until(api, "slow", name, "complete")["output"] == "worked"
    earlier = api.get(of("slow", name, "history"), params={"runNumber": 0}).json()
    assert all(step["status"] != "completed" for step in earlier["steps"])
    assert api.get(of("slow", name)).json()["meta"]["runNumber"] == 1


def test_a_step_is_seen_while_its_first_attempt_runs(api: httpx.Client) -> None:
    name = create(api, "slow", 8_000)
    deadline = time.monotonic() + 7
    while "currentStep" not in (meta := api.get(of("slow", name)).json()["meta"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    step = meta["currentStep"]
    assert (step["stepKey"], step["status"], step["attempts"]) == ("work", "pending", 0)
    (running,) = api.get(of("slow", name, "history")).json()["steps"]
    assert running["lastAttemptAt"] == running["createdAt"] == step["lastAttemptAt"]
    assert running["completedAt"] is None
    assert status(api, "slow", name) == {"status": "active"}
    until(api, "slow", name, "complete")
    (done,) = api.get(of("slow", name, "history")).json()["steps"]
    assert (done["status"], done["attempts"]) == ("completed", 1)
    assert (done["createdAt"], done["lastAttemptAt"]) == (running["createdAt"],) * 2
    assert done["completedAt"] > done["createdAt"]


def test_pauses_and_events_repeated_have_one_legal_outcome_each(house: House) -> None:
    async def act(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
        name = fresh()
        await one.post(of("waiting"), json={"id": name, "params": 10})
        gateways = (one, two)

        async def all_of(verb: str, body: object = None) -> list[httpx.Response]:
            return await asyncio.gather(
                *(
                    gateways[number % 2].post(of("waiting", name, verb), json=body)
                    for number in range(10)
                )
            )

        for verb, states in (("pause", {"paused"}), ("resume", {"active", "waiting"})):
            answers = await all_of(verb)
            assert {answer.status_code for answer in answers} == {200}
            assert {answer.json()["status"]["status"] for answer in answers} <= states
        await all_of("pause")
        sent = await all_of("events", {"type": "go", "payload": 1})
        assert {answer.json()["status"]["status"] for answer in sent} == {"paused"}
        history = (await one.get(of("waiting", name, "history"))).json()
        assert [event["deliveredAt"] for event in history["events"]] == [None] * 10
        await all_of("resume")
        assert (await ended(two, "waiting", name))["output"] == [1] * 10

    at_once(house, act)


# -- graphs


def tokens_of(api: httpx.Client, name: str, **asked: object) -> list[dict[str, Any]]:
    """The tokens of a graph's run, page by page."""
    found, cursor = [], ""
    while True:
        params = asked | ({"tokensCursor": cursor} if cursor else {})
        page = api.get(of("judged", name, "history"), params=params).json()  # type: ignore[arg-type]
        assert page["steps"] == []
        found += page["tokens"]
        if not page["tokensHasNextPage"]:
            return found
        cursor = page["tokensCursor"]


def test_a_graph_is_looked_at_by_its_tokens(api: httpx.Client) -> None:
    name = create(api, "judged", {"file": ""})
    until(api, "judged", name, "waiting")
    meta = api.get(of("judged", name)).json()["meta"]
    assert "currentStep" not in meta
    waits = {"nodeRef": "ask", "status": "waiting_for_subworkflow", "tokens": 1}
    assert meta["currentTokens"] == [{**waits, "nextRetryAt": None, "wakeAt": None}]
    tokens = tokens_of(api, name)
    assert tokens == tokens_of(api, name, pageSize=2)
    assert tokens[::-1] == tokens_of(api, name, pageSize=3, order="desc")
    nodes = [each["nodeRef"] for each in tokens]
    assert sorted(nodes) == ["ask", "judge", "judge", "start", "tally", "tally", "tally"]
    [ask] = [each for each in tokens if each["nodeRef"] == "ask"]
    assert (ask["status"], ask["subworkflow"]) == ("waiting_for_subworkflow", "waiting")
    api.post(of("waiting", ask["childInstanceId"], "events"), json={"type": "go"})
    messages = follow(api, of("judged", name, "events-stream"))
    assert messages[-1][2]["output"] == {"votes": [0, 1]}
    told = {data["id"]: data for event, _, data in messages if event == "token"}
    assert [told[each["id"]] for each in tokens] == tokens_of(api, name)
    assert "currentTokens" not in api.get(of("judged", name)).json()["meta"]
    code = create(api, "echo")
    assert api.get(of("echo", code, "history")).json()["tokens"] == []


def test_a_retry_of_a_graph_goes_on_with_its_tokens(api: httpx.Client, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    name = create(api, "judged", {"file": str(mended)})
    error = until(api, "judged", name, "errored")["error"]
    assert (error["name"], error["message"]) == ("NonRetryableError", "out of order")
    failed = [each["error"] for each in tokens_of(api, name) if each["status"] == "failed"]
    assert 'raise NonRetryableError("out of order")' in failed[0]["traceback"]
    [stands] = api.get(of("judged", name)).json()["meta"]["currentTokens"]
    assert (stands["nodeRef"], stands["status"]) == ("judge", "failed")
    named = api.post(of("judged", name, "retry"), json={"fromStep": "judge"})
    assert problem(named) == (404, "STEP_NOT_FOUND")
    assert "cannot take back what others did" in named.json()["detail"]
    picture = api.get(of("judged", name, "graph/svg"))
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert [picture.text.count(f'<g class="{drawn}">') for drawn in ("failed", "done")] == [1, 1]
    began = api.get(of("judged", name, "graph/mermaid"), params={"at": 2})
    assert began.headers["content-type"].startswith("text/vnd.mermaid")
    assert 'n0["start<br/>noop<br/>1 pending"]' in began.text
    undefined = api.get(of("judged", name, "graph/svg"), params={"at": 0})
    assert problem(undefined) == (404, "SEQUENCE_NOT_FOUND")
    mended.touch()
    assert api.post(of("judged", name, "retry")).json()["runNumber"] == 1
    until(api, "judged", name, "waiting")
    failed, kept = (tokens_of(api, name, runNumber=number) for number in (0, 1))
    assert {each["status"] for each in failed} == {"completed", "failed", "cancelled"}
    assert [each["id"] for each in failed] == [each["id"] for each in kept[: len(failed)]]
    assert {each["status"] for each in kept} == {"completed", "waiting_for_subworkflow"}


# -- following


def follow(
    api: httpx.Client, path: str, *, stop_after: int | None = None, **headers: str
) -> list[tuple[str, str, Any]]:
    """Event, id and data of each message, to the end or a number of them."""
    found: list[tuple[str, str, Any]] = []
    last_id = headers.get("last-event-id", "")
    with api.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            last_id = fields.get("id", last_id)
            if "event" in fields:
                found.append((fields["event"], last_id, json.loads(fields["data"])))
            if len(found) == stop_after:
                break
            fields = {}
    return found


def test_an_instance_is_followed_from_its_beginning_to_its_end(
    api: httpx.Client, told: str
) -> None:
    messages = follow(api, of("telling", told, "events-stream"))
    history = api.get(of("telling", told, "history"), params={"includeLogs": "true"}).json()
    by_kind = {
        kind: [data for event, _, data in messages if event == kind]
        for kind in ("step", "event", "log", "status", "end")
    }
    by_key = {step["stepKey"]: step for step in by_kind["step"]}
    assert by_key == {step["stepKey"]: step for step in history["steps"]}
    assert by_kind["event"] == history["events"]
    assert by_kind["log"] == history["logs"]
    done = {"status": "complete", "output": 1, "runNumber": 0}
    assert by_kind["status"][-1] == done
    assert by_kind["end"] == [done]
    assert messages[-1][0] == "end"


def test_a_stream_goes_on_where_it_broke_off(api: httpx.Client, told: str) -> None:
    path = of("telling", told, "events-stream")
    whole = follow(api, path)
    for count in range(1, len(whole)):
        first = follow(api, path, stop_after=count)
        assert first == whole[:count]
        last_id = first[-1][1]
        rest = follow(api, path, **({"last-event-id": last_id} if last_id else {}))
        # The first message that has an id brought it; those behind it have none of their own.
        heard = [each[1] for each in whole].index(last_id) + 1 if last_id else 0
        assert whole[:heard] + rest == whole


def test_what_happens_while_it_is_followed_is_told(api: httpx.Client, house: House) -> None:
    name = create(api, "waiting", 2)
    with (
        httpx.Client(base_url=base(house, "gateway2"), headers=KEY) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        follows = [
            pool.submit(follow, client, of("waiting", name, "events-stream"))
            for client in (api, other)
        ]
        for payload in (1, 2):
            time.sleep(0.3)
            assert not any(each.done() for each in follows)
            api.post(of("waiting", name, "events"), json={"type": "go", "payload": payload})
        for each in follows:
            messages = each.result()
            assert messages[-1][0] == "end"
            assert messages[-1][2]["output"] == [1, 2]
            taken = [data["payload"] for event, _, data in messages if event == "event"]
            assert taken[-1] == 2


def test_an_instance_that_was_restarted_is_followed_in_its_new_run(api: httpx.Client) -> None:
    name = create(api, "echo", 1)
    until(api, "echo", name, "complete")
    path = of("echo", name, "events-stream")
    last_id = follow(api, path)[-1][1]
    api.post(of("echo", name, "restart"))
    until(api, "echo", name, "complete")
    messages = follow(api, path, **{"last-event-id": last_id})
    assert {data["runNumber"] for _, _, data in messages} == {1}
    again = follow(api, f"{path}?lastEventId={messages[-1][1]}")
    assert [event for event, _, _ in again] == ["end"]


def test_a_stream_whose_start_makes_no_sense_is_refused(api: httpx.Client, told: str) -> None:
    path = of("telling", told, "events-stream")
    answer = api.get(path, headers={"last-event-id": "abc"})
    assert problem(answer) == (400, "invalid_parameter")
    assert answer.json()["field"] == "Last-Event-ID"


# -- who may, how long a reader waits, and the end


def test_hooks_of_a_setting_decide(house: House) -> None:
    house.settings["HEADWATER_WORKFLOW_HOOKS"] = "tests.unit.gateway.workflow_hooks:tenants"
    house.start("gateway3")
    del house.settings["HEADWATER_WORKFLOW_HOOKS"]
    amara = {"x-user": "amara"}
    with httpx.Client(base_url=base(house, "gateway3"), timeout=30) as api:
        assert problem(api.get("/workflows", headers=KEY)) == (401, "WHO_ARE_YOU")
        assert api.get("/workflows", headers=amara).status_code == 200
        body = {"id": fresh(), "params": "forbidden"}
        assert problem(api.post(of("echo"), json=body, headers=amara)) == (403, "NOT_YOURS")
        body["params"] = "fine"
        assert api.post(of("echo"), json=body, headers=amara).status_code == 200
    house.stop("gateway3")


def test_a_position_that_does_not_come_is_given_up(
    never: "Future[httpx.Response]", api: httpx.Client
) -> None:
    answer = never.result()
    assert problem(answer) == (503, "position_not_reached")
    assert answer.headers["retry-after"]
    assert MISSING in answer.json()["detail"]


def test_a_gateway_that_is_told_to_end_does_so_though_somebody_follows(
    house: House, api: httpx.Client
) -> None:
    name = create(api, "waiting")
    path = of("waiting", name, "events-stream")
    with (
        httpx.Client(base_url=base(house, "gateway2"), headers=KEY, timeout=30) as two,
        ThreadPoolExecutor(1) as pool,
    ):
        follows = pool.submit(follow, two, path)
        time.sleep(0.5)
        began = time.monotonic()
        house.stop("gateway2")
        assert time.monotonic() - began < 5
        assert all(event != "end" for event, _, _ in follows.result())


def test_without_a_worker_a_command_is_not_known_to_be_done_and_is_done_later(
    house: House, api: httpx.Client
) -> None:
    house.stop("worker")
    name = fresh()

    def missed() -> bool:
        """Whether Kafka has forgotten the worker, too: it may have come back at once."""
        answer = api.post(of("echo"), json={"id": name, "params": 1})
        assert problem(answer) == (503, "outcome_unknown")
        assert "may still be carried out" in answer.json()["detail"]
        assert answer.headers["retry-after"]
        return "expected a worker" in answer.json()["detail"]

    house.wait(missed, "the missing worker to be named")
    assert problem(api.get(of("echo", name))) == (404, "INSTANCE_NOT_FOUND")
    began = time.monotonic()
    later = api.post(of("echo"), json={"id": f"{name}-later"}, headers=ASYNC)
    assert later.status_code == 202
    assert later.json()["accepted"][0]["id"] == f"{name}-later"
    assert time.monotonic() - began < 2  # Who comes later need not wait for what is known.
    house.start("worker")
    again = api.post(of("echo"), json={"id": name})
    assert problem(again) in ((409, "INSTANCE_ID_ALREADY_EXISTS"), (503, "outcome_unknown"))
    house.wait(lambda: api.get(of("echo", name)).is_success, "the command to be carried out")
    assert until(api, "echo", name, "complete")["output"] == 1
    house.wait(lambda: api.get(of("echo", f"{name}-later")).is_success, "what was accepted")


# -- looking into graphs


def looked(api: httpx.Client, name: str, wanted: dict[str, int]) -> dict[str, Any]:
    """The explanation of a graph, once its tokens wait for this."""
    deadline = time.monotonic() + 15
    while True:
        found: dict[str, Any] = api.get(of("voting", name, "graph/explain")).json()
        if found["waitingFor"] == wanted:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_graph_that_waits_is_looked_into_now_and_as_of_any_event(api: httpx.Client) -> None:
    name = create(api, "voting", {"voters": ["ada", "late", "nobody"], "file": ""})
    found = looked(api, name, {"retry": 1, "siblings": 1})
    (join,) = found["joins"]
    assert [(each["branchIndex"], each["why"]) for each in join["missing"]] == [
        (1, "retry"),
        (2, "elsewhere"),
    ]
    assert "attempt 1 failed with RuntimeError: not at home" in join["missing"][0]["says"]
    last = found["sequence"]
    live = [
        api.get(of("voting", name, "graph/tokens"), params={"at": at}).json()
        for at in range(last + 1)
    ]
    assert [each["sequence"] for each in live] == list(range(last + 1))
    assert sorted(each["status"] for each in live[-1]["tokens"]) == [
        "pending",
        "waiting_for_siblings",
    ]
    page = api.get(of("voting", name, "graph/tokens"), params={"pageSize": 1}).json()
    rest = api.get(of("voting", name, "graph/tokens"), params={"after": page["cursor"]}).json()
    assert (page["total"], page["tokens"] + rest["tokens"]) == (2, live[-1]["tokens"])
    beyond = api.get(of("voting", name, "graph/tokens"), params={"at": last + 1})
    assert problem(beyond) == (404, "SEQUENCE_NOT_FOUND")
    assert f"expected 0 to {last}" in beyond.json()["detail"]
    told = api.get(of("voting", name, "graph/trace"), params={"from": 2}).json()
    assert all(each["same"] for each in told["decided"])
    late = next(each["id"] for each in live[-1]["tokens"] if each["status"] == "pending")
    asked = {"token": late, "output": {"vote": "late"}}
    routed = api.post(of("voting", name, "graph/simulate-routing"), json=asked).json()
    assert [each["transitionRef"] for each in routed["fires"]] == ["meet"]
    assert "ACTIVATE_FAN_IN" in [each["type"] for each in routed["decisions"]]
    asked = {"token": late, "transition": "meet"}
    joined = api.post(of("voting", name, "graph/simulate-synchronization"), json=asked).json()
    assert (joined["decision"], joined["counts"]["completed"]) == ("ACTIVATE_FAN_IN", 2)
    assert looked(api, name, {"retry": 1, "siblings": 1}) == found


def test_what_cannot_be_looked_into_is_a_problem(api: httpx.Client) -> None:
    code, name = create(api, "waiting"), create(api, "voting", {"voters": ["late"], "file": ""})
    looked(api, name, {"retry": 1})
    assert problem(api.get(of("waiting", code, "graph/explain"))) == (409, "NOT_A_GRAPH")
    assert problem(api.get(of("voting", "none", "graph/tokens"))) == (404, "INSTANCE_NOT_FOUND")
    for body, found in (
        ({"token": "9"}, (404, "TOKEN_NOT_FOUND")),
        ({"node": "x"}, (404, "NODE_NOT_FOUND")),
        ({}, (400, "invalid_body")),
        ({"token": "1", "node": "vote"}, (400, "invalid_body")),
    ):
        asked = api.post(of("voting", name, "graph/simulate-routing"), json=body)
        assert problem(asked) == found
    where = of("voting", name, "graph/simulate-synchronization")
    asked = api.post(where, json={"token": "1", "transition": "ask"})
    assert problem(asked) == (404, "TRANSITION_NOT_FOUND")
    api.post(of("voting", name, "terminate"))
    asked = api.post(of("voting", name, "graph/simulate-routing"), json={"node": "vote"})
    assert problem(asked) == (409, "INSTANCE_TERMINAL")


def test_retried_and_restarted_graphs_are_looked_into_in_each_of_their_runs(
    api: httpx.Client, house: House, tmp_path: Path
) -> None:
    file = tmp_path / "voter"
    name = create(api, "voting", {"voters": ["ada", "bad", "late"], "file": str(file)})
    until(api, "voting", name, "errored")
    file.touch()
    assert api.post(of("voting", name, "retry")).status_code == 200

    async def told() -> None:
        async with Client(base(house), headers=KEY) as client:
            instance = client.workflow("voting").get(name)
            begun = await instance.introspect_tokens(0)
            assert begun.run_number == 1
            assert {each.node_ref for each in begun.tokens} <= {"vote", "count"}
            assert all([each.same async for each in instance.trace()])
            node = await instance.simulate_routing(node="vote", output={"vote": None})
            assert [each.to_node_ref for each in node.fires] == ["count"]

    looked(api, name, {"retry": 1, "siblings": 2})
    asyncio.run(told())
    assert api.post(of("voting", name, "restart")).status_code == 200
    again = looked(api, name, {"retry": 1, "siblings": 2})
    assert (again["runNumber"], again["joins"][0]["arrivedCount"]) == (2, 2)
    where = of("voting", name, "graph/tokens")
    before = [api.get(where, params={"runNumber": number}).json() for number in (0, 1)]
    assert [(each["runNumber"], each["status"] == "errored") for each in before] == [
        (0, True),
        (1, False),
    ]
    assert problem(api.get(where, params={"runNumber": 3})) == (404, "RUN_NOT_FOUND")


# -- jobs


@pytest.mark.skipif(NODE is None, reason="there is no Node.js here, which the page's worker is for")
def test_workers_in_javascript_take_jobs_fail_them_and_die_at_them(
    house: House, api: httpx.Client, tmp_path: Path
) -> None:
    names = {first: create(api, "paying", {"amount": 5, "first": first}) for first in
             ("succeeds", "fails")}  # fmt: skip

    def ended(first: str) -> bool:
        return bool(status(api, "paying", names[first])["status"] == "complete")

    def receipt(first: str) -> list[str]:
        return str(status(api, "paying", names[first])["output"]["receipt"]).split()

    with node_workers(tmp_path, f"{house.url()}/api/jobs", 1) as (dies,):
        house.wait(lambda: ended("succeeds") and ended("fails"), "both to be paid")
        names["stays"] = create(api, "paying", {"amount": 5, "first": "stays"})
        house.wait(lambda: taken(house, names["stays"]) == f"node {dies.pid}", "it to be taken")
        dies.kill()
        dies.wait()
        with node_workers(tmp_path, f"{house.url()}/api/jobs", 1):
            house.wait(lambda: ended("stays"), "another worker to take it")
    assert receipt("succeeds")[:2] == ["5", "1"]
    assert receipt("fails")[:2] == ["5", "2"]
    assert receipt("stays")[:2] == ["5", "2"]
    assert len({receipt(first)[2] for first in names}) == 3


def test_a_worker_in_python_takes_a_job_and_reads_what_has_come_of_it(house: House) -> None:
    async def works() -> InstanceStatus:
        async with Client(base(house), headers=KEY) as client:
            params = {"amount": 5, "first": "succeeds"}
            instance = await client.workflow("paying").create(params=params)
            await python_worker()["take"](client)
            return await instance.status()

    found = asyncio.run(works())
    assert (found.status, found.output["receipt"].split()[:2]) == ("complete", ["5", "paid,"])


def taken(house: House, name: str) -> str | None:
    """Who has the job of an instance."""
    query = "select worker from workflow_token where instance_id = %s"
    with psycopg.connect(house.dsn) as connection:
        found = connection.execute(query, [name]).fetchone()
    return found[0] if found else None


def test_each_job_is_given_to_one_of_many_who_ask_at_once(api: httpx.Client) -> None:
    names = {create(api, "refunding", {}) for _ in range(12)}
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda _: activate(api, "refund", max=3, waitMs=1_000), range(6))
        jobs = [job for answer in answers for job in answer]
        while len(jobs) < len(names):
            jobs += activate(api, "refund", max=12, waitMs=5_000)
    assert sorted(job["instanceId"] for job in jobs) == sorted(names)
    assert all(end(api, job, "complete", {"output": 1}).is_success for job in jobs)
    assert activate(api, "refund") == []


def test_whoever_asks_first_is_answered_when_a_job_comes(api: httpx.Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(activate, api, "refund", waitMs=30_000)
        name = create(api, "refunding", {"n": 1})
        (job,) = asked.result()
    assert (job["instanceId"], job["workflow"], job["attempt"]) == (name, "refunding", 1)
    assert end(api, job, "complete", {}).is_success


def test_what_is_said_of_a_job_is_answered_by_what_the_owner_knows(api: httpx.Client) -> None:
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


def test_a_worker_that_is_gone_while_it_waits_is_given_nothing(
    house: House, api: httpx.Client
) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=f"{house.url()}/api", headers=KEY) as client:
            body = {"types": ["refund"], "worker": "gone", "waitMs": 30_000}
            asking = asyncio.create_task(client.post("/jobs/activate", json=body))
            await asyncio.wait([asking], timeout=1)
            asking.cancel()

    asyncio.run(leave())
    name = create(api, "refunding", {})
    (job,) = activate(api, "refund", waitMs=10_000)
    assert (job["instanceId"], job["attempt"]) == (name, 1)
    assert end(api, job, "complete", {}).is_success


def test_an_activation_that_finds_nothing_waits_as_long_as_it_said(api: httpx.Client) -> None:
    begun = time.monotonic()
    assert activate(api, "nobody", waitMs=700) == []
    assert 0.7 <= time.monotonic() - begun < 5
