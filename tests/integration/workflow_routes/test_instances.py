"""What a service does with instances, route by route."""

import asyncio
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headwater import Client
from tests.e2e.system import System
from tests.integration.workflow_routes.asking import (
    ASYNC,
    KEY,
    MISSING,
    TICK_KEY,
    base,
    create,
    follow,
    fresh,
    of,
    problem,
    status,
    until,
)
from tests.ticked import Ticked
from tests.waiting import wait_until


def test_workflows_are_those_that_the_worker_has(api: httpx2.Client) -> None:
    names = [workflow["name"] for workflow in api.get("/workflows").json()["workflows"]]
    workflows = {
        "choosy",
        "echo",
        "flaky",
        "forgiving",
        "slow",
        "telling",
        "tidy",
        "turning",
        "waiting",
    }
    assert names == sorted(names)
    # Beside them, graphs that other tests have deployed.
    assert {*workflows, "judged", "paying", "refunding", "voting"} <= set(names)


def test_an_instance_is_created_and_read_with_its_values_as_they_came(api: httpx2.Client) -> None:
    name = fresh()
    text = '{"b": 1.0, "a" : [1, "\\u0000é"], "n": 123456789012345678901234567890}'
    answer = api.post(of("echo"), content=f'{{"id":"{name}","params":{text}}}'.encode())
    assert answer.json() == {"id": name, "details": {"status": "active"}}
    result = until(api, "echo", name, "complete")
    assert result["output"] == json.loads(text)
    whole = api.get(of("echo", name))
    assert text in whole.text
    meta = whole.json()["meta"]
    assert (meta["workflowName"], meta["runNumber"]) == ("echo", 0)
    assert meta["completedAt"].endswith("Z")


def test_an_id_is_made_if_there_is_none(api: httpx2.Client) -> None:
    name = api.post(of("echo")).json()["id"]
    assert until(api, "echo", name, "complete")["output"] is None


def test_a_batch_creates_what_does_not_exist(api: httpx2.Client) -> None:
    old, new = create(api, "waiting"), fresh()
    body = {"instances": [{"id": old}, {"id": new, "params": 2}]}
    answer = api.post(of("waiting", "batch"), json=body)
    assert answer.json() == {"instances": [{"id": new, "details": {"status": "active"}}]}
    assert api.post(of("waiting", "batch"), json=body).json() == {"instances": []}
    assert api.get(of("waiting", new)).json()["meta"]["params"] == 2


def test_an_instance_named_batch_is_like_any_other(api: httpx2.Client) -> None:
    name = create(api, "waiting", 2, name="batch")
    whole = api.get(of("waiting", name)).json()
    assert (whole["id"], whole["meta"]["params"]) == ("batch", 2)
    for verb, then in (("pause", ["paused"]), ("resume", ["active", "waiting"])):
        assert api.post(of("waiting", name, verb)).json()["status"]["status"] in then
    assert api.post(of("waiting", name, "events"), json={"type": "go"}).status_code == 200
    assert len(api.get(of("waiting", name, "history")).json()["events"]) == 1
    assert api.post(of("waiting", name, "terminate")).json()["status"]["status"] == "terminated"
    assert problem(api.post(of("waiting", name, "retry"))) == (409, "INSTANCE_NOT_ERRORED")
    reported = follow(api, of("waiting", name, "events-stream"))
    assert reported[-1][2]["status"] == "terminated"
    assert api.post(of("waiting", name, "restart")).json()["runNumber"] == 1
    again = api.post(of("waiting", "batch"), json={"instances": [{"id": "batch"}]})
    assert again.json() == {"instances": []}


def test_a_batch_of_a_hundred(api: httpx2.Client) -> None:
    names = [fresh() for _number in range(100)]
    body = {"instances": [{"id": name, "params": name} for name in names]}
    answer = api.post(of("echo", "batch"), json=body)
    assert [one["id"] for one in answer.json()["instances"]] == names
    for name in names[::20]:
        assert until(api, "echo", name, "complete")["output"] == name


def test_an_instance_is_paused_resumed_terminated_and_restarted(api: httpx2.Client) -> None:
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


def test_a_cancelled_instance_cleans_up_is_rolled_back_and_terminated(api: httpx2.Client) -> None:
    name = create(api, "tidy")
    until(api, "tidy", name, "waiting")
    answer = api.post(of("tidy", name, "cancel"))
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    result = until(api, "tidy", name, "terminated")
    assert result["error"] == {"name": "Cancelled", "message": "the instance was cancelled"}
    steps = {step["name"]: step for step in api.get(of("tidy", name, "history")).json()["steps"]}
    assert [steps[value]["status"] for value in ("charge", "nap", "sweep")] == [
        "completed",
        "cancelled",
        "completed",
    ]
    assert steps["charge"]["rolledBackAt"]
    assert problem(api.post(of("tidy", name, "cancel"))) == (409, "INSTANCE_TERMINAL")


def test_events_are_taken_in_their_order(api: httpx2.Client) -> None:
    name = create(api, "waiting", 2)
    for payload in ({"n": 1}, None):
        answer = api.post(of("waiting", name, "events"), json={"type": "go", "payload": payload})
        assert answer.status_code == 200
        assert answer.json()["status"]["status"] in ("active", "waiting", "complete")
    assert until(api, "waiting", name, "complete")["output"] == [{"n": 1}, None]
    events = api.get(of("waiting", name, "history")).json()["events"]
    assert [event["consumedByStepKey"] for event in events] == ["go 0", "go 1"]
    assert [event["payload"] for event in events] == [{"n": 1}, None]


def test_an_event_may_start_its_instance(api: httpx2.Client) -> None:
    name = fresh()
    missing = api.post(of("waiting", name, "events"), json={"type": "go"})
    assert problem(missing) == (404, "INSTANCE_NOT_FOUND")
    body = {"type": "go", "payload": 1, "startIfMissing": {"params": 2}}
    for _number in range(2):
        assert api.post(of("waiting", name, "events"), json=body).status_code == 200
    assert until(api, "waiting", name, "complete")["output"] == [1, 1]


def test_the_current_step_is_told(api: httpx2.Client) -> None:
    name = create(api, "choosy")
    until(api, "choosy", name, "waiting")
    step = api.get(of("choosy", name)).json()["meta"]["currentStep"]
    assert step["waitEventType"] == ["yes", "no"]
    assert (step["type"], step["status"]) == ("waitForEvent", "waiting")


def test_a_step_whose_error_was_caught_is_not_current(api: httpx2.Client, tmp_path: Path) -> None:
    name = create(api, "forgiving", str(tmp_path / "go"))

    def steps() -> list[tuple[str, str]]:
        history = api.get(of("forgiving", name, "history")).json()
        return [(step["stepKey"], step["status"]) for step in history["steps"]]

    wait_until(lambda: steps()[:2] == [("bad", "errored"), ("fine", "completed")], "its steps")
    result = api.get(of("forgiving", name)).json()
    assert result["details"] == {"status": "active"}
    # The last one is, once its first attempt has taken a while.
    assert result["meta"].get("currentStep", {"stepKey": "work"})["stepKey"] == "work"
    (tmp_path / "go").touch()
    until(api, "forgiving", name, "complete")
    assert "currentStep" not in api.get(of("forgiving", name)).json()["meta"]


def test_a_run_has_as_many_entries_as_its_worker_allows(api: httpx2.Client) -> None:
    name = create(api, "telling", 20)
    error = until(api, "telling", name, "errored")["error"]
    assert error["name"] == "MAX_STEPS_EXCEEDED"
    assert error["message"].startswith("expected at most 20 entries in a run, found one more, end;")


def test_an_errored_instance_is_tried_again_and_keeps_what_was_done(api: httpx2.Client) -> None:
    name = create(api, "flaky")
    error = until(api, "flaky", name, "errored")["error"]
    assert (error["name"], error["message"]) == ("NonRetryableError", "no such card")
    assert 'raise NonRetryableError("no such card")' in error["traceback"]
    assert "streams/" not in error["traceback"], "frames of the author's code alone"
    step = api.get(of("flaky", name)).json()["meta"]["currentStep"]
    assert (step["stepKey"], step["error"]) == ("charge", error)
    [charge] = [
        step for step in api.get(of("flaky", name, "history")).json()["steps"] if "error" in step
    ]
    assert charge["error"] == error
    [listed] = [
        instance for instance in api.get(of("flaky")).json()["instances"] if instance["id"] == name
    ]
    assert listed["details"]["error"] == {"name": error["name"], "message": error["message"]}
    unknown = api.post(of("flaky", name, "retry"), json={"fromStep": "nowhere"})
    assert problem(unknown) == (404, "STEP_NOT_FOUND")
    assert unknown.json()["field"] == "fromStep"
    answer = api.post(of("flaky", name, "retry"), json={"fromStep": "charge"})
    assert (answer.status_code, answer.json()["runNumber"]) == (200, 1)
    assert until(api, "flaky", name, "complete")["output"] == "keptcharged"
    again = api.post(of("flaky", name, "retry"))
    assert problem(again) == (409, "INSTANCE_NOT_ERRORED")


def test_ticks_go_to_the_worker(api: httpx2.Client, ticked: Ticked) -> None:
    body = {"maxInstances": 2}
    with ThreadPoolExecutor(4) as pool:
        asks = [
            pool.submit(api.post, "/_runner/tick", json=body, headers=TICK_KEY)
            for _number in range(4)
        ]
    assert [ask.result().json() for ask in asks] == [{"processed": 3}] * 4
    assert ticked.heard == [{"maxInstances": 2}] * 4


# -- listings and histories, page by page


def test_a_listing_goes_page_by_page(api: httpx2.Client) -> None:
    names = {create(api, "choosy") for _number in range(5)}
    result: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get(of("choosy"), params={"pageSize": 2, **cursor}).json()
        result += [one["id"] for one in page["instances"]]
        if not page["hasNextPage"]:
            assert "cursor" not in page
            break
        cursor = {"cursor": page["cursor"]}
    assert names <= set(result)
    assert len(result) == len(set(result))
    only = api.get(of("choosy"), params={"status": "complete"}).json()
    assert only == {"instances": [], "hasNextPage": False}


def test_instances_are_found_by_their_labels_in_all_of_their_runs(api: httpx2.Client) -> None:
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


def test_the_same_is_done_to_all_instances_of_a_status_or_label(api: httpx2.Client) -> None:
    label = fresh()
    batch = [{"id": fresh(), "labels": {"in": label}} for _ in range(5)]
    assert api.post(of("choosy", "batch"), json={"instances": batch}).status_code == 200
    names = {str(new["id"]) for new in batch}

    def change(action: str, **more: object) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = []
        requested = {"action": action, "labels": {"in": label}, "pageSize": 2, **more}
        for has_next in (True, True, False):
            answer = api.post("/workflows/choosy/bulk", json=requested)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            assert page["hasNextPage"] is has_next
            result += page["instances"]
            requested |= {"cursor": page.get("cursor")}
        return result

    assert {one["id"] for one in change("terminate", dryRun=True)} == names
    assert {one["status"] for one in change("pause")} == {"paused"}
    last = str(batch[0]["id"])
    assert api.post(of("choosy", last, "resume")).status_code == 200
    paused = {"action": "resume", "labels": {"in": label}, "status": "paused"}
    page = api.post("/workflows/choosy/bulk", json=paused).json()
    assert {one["id"] for one in page["instances"]} == names - {last}
    assert api.post(of("choosy", last, "terminate")).status_code == 200
    changed = change("terminate", reason="the order was a test")
    ended = {one["id"]: (one["status"], one.get("code")) for one in changed}
    assert ended.pop(last) == ("terminated", "INSTANCE_TERMINAL")
    assert set(ended.values()) == {("terminated", None)}
    (why,) = {
        api.get(of("choosy", str(id_))).json()["details"]["error"]["message"] for id_ in ended
    }
    assert "the order was a test" in why
    assert {one["code"] for one in change("retry")} == {"INSTANCE_NOT_ERRORED"}
    unknown = api.post("/workflows/nobodys/bulk", json={"action": "retry", "status": "errored"})
    assert problem(unknown) == (404, "WORKFLOW_NOT_FOUND")


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("kind", ["steps", "logs"])
def test_a_history_goes_page_by_page(api: httpx2.Client, told: str, order: str, kind: str) -> None:
    path = of("telling", told, "history")
    whole = api.get(path, params={"includeLogs": "true"}).json()
    assert len(whole["steps"]) == 8
    assert len(whole["logs"]) == 3
    result: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        requested = {"pageSize": 3, "order": order, "includeLogs": "true", **cursor}
        page = api.get(path, params=requested).json()
        result += page[kind]
        if not page[f"{kind}HasNextPage"]:
            break
        cursor = {f"{kind}Cursor": page[f"{kind}Cursor"]}
    assert result == (whole[kind] if order == "asc" else whole[kind][::-1])


def test_lines_are_told_if_they_are_asked_for_and_may_be_chosen(
    api: httpx2.Client, told: str
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


def test_an_earlier_run_is_still_told(api: httpx2.Client) -> None:
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


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_what_a_loop_has_forgotten_is_told_if_it_is_asked_for(
    api: httpx2.Client, order: str
) -> None:
    turns = 30
    name = create(api, "turning", turns)
    until(api, "turning", name, "complete")
    path = of("turning", name, "history")
    kept = [step["stepKey"] for step in api.get(path).json()["steps"]]
    assert kept == ["turns", f"turns/~{turns - 2}/count", f"turns/~{turns - 1}/count"]

    requested = {"includeTrimmed": "true", "pageSize": 5_000, "order": order, "includeLogs": "true"}
    page = api.get(path, params=requested).json()
    whole = [step["stepKey"] for step in page["steps"]]
    expected = ["turns", *(f"turns/~{number}/count" for number in range(turns))]
    assert whole == (expected if order == "asc" else expected[::-1])
    assert (page["stepsHasNextPage"], len(page["logs"])) == (False, turns)
    assert problem(api.get(path, params={"pageSize": 101})) == (400, "invalid_parameter")


def test_a_client_reads_all_of_a_long_loop_and_all_that_it_has_logged(system: System) -> None:
    turns = 110  # more lines than a page has

    async def whole() -> None:
        async with Client(base(system), headers=KEY) as client:
            instance = await client.workflow("turning").create(params=turns)
            assert await instance.result("1 minute") == turns - 1
            reported = await instance.history(include_trimmed=True, include_logs=True)
            assert [line.message for line in reported.logs] == [f"turn {n}" for n in range(turns)]
            keys = [step.step_key for step in reported.steps]
            assert keys == ["turns", *(f"turns/~{number}/count" for number in range(turns))]

    asyncio.run(whole())


# -- errors


def test_what_does_not_exist_is_not_found(api: httpx2.Client) -> None:
    assert problem(api.post(of("nobody"))) == (404, "WORKFLOW_NOT_FOUND")
    assert problem(api.get(of("nobody"))) == (404, "WORKFLOW_NOT_FOUND")
    batch = api.post(of("nobody", "batch"), json={"instances": [{"id": "a"}]})
    assert problem(batch) == (404, "WORKFLOW_NOT_FOUND")
    started = api.post(of("nobody", "a", "events"), json={"type": "go", "startIfMissing": {}})
    assert problem(started) == (404, "WORKFLOW_NOT_FOUND")
    # One that comes with Headwater, of which there is no instance.
    assert api.get(of("terra-import")).json()["instances"] == []
    for verb in ("pause", "resume", "terminate", "cancel", "restart", "retry"):
        answer = api.post(of("waiting", "nowhere", verb))
        assert problem(answer) == (404, "INSTANCE_NOT_FOUND"), verb
        assert answer.headers["headwater-position"].startswith("workflow-history/")
    for verb in ("", "history", "events-stream"):
        for name in ("nowhere", "%00", "%ff", "a%20b", "é", "x" * 300):
            answer = api.get(of("waiting", name, verb))
            assert problem(answer) == (404, "INSTANCE_NOT_FOUND"), name


def test_an_ended_instance_takes_nothing_more(api: httpx2.Client, told: str) -> None:
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
    api: httpx2.Client, told: str, name: str, cursor: str
) -> None:
    if name == "cursor":
        answer = api.get(of("telling"), params={name: cursor})
    else:
        path = of("telling", told, "history")
        answer = api.get(path, params={name: cursor, "includeLogs": "true"})
    assert problem(answer) == (400, "invalid_cursor")
    assert answer.json()["field"] == name


def test_params_of_another_type_create_nothing(api: httpx2.Client) -> None:
    name = fresh()
    answer = api.post(of("slow"), json={"id": name, "params": "soon"})
    assert problem(answer) == (400, "INVALID_PARAMS")
    assert answer.json()["detail"].endswith('found params: "soon" is not of type "number"')
    assert create(api, "slow", 1.5, name) == name


def test_bad_bodies_are_refused_and_nothing_is_written(api: httpx2.Client) -> None:
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


def test_the_largest_params_are_taken(api: httpx2.Client) -> None:
    text = "é" * (512 * 1024 - 1)
    name = create(api, "echo", text)
    assert until(api, "echo", name, "complete")["output"] == text


def test_a_restart_drops_the_step_that_is_running(api: httpx2.Client) -> None:
    name = create(api, "slow", 4_000)
    time.sleep(0.2)
    begun = api.post(of("slow", name, "restart"))
    assert begun.json()["runNumber"] == 1
    assert until(api, "slow", name, "complete")["output"] == "worked"
    earlier = api.get(of("slow", name, "history"), params={"runNumber": 0}).json()
    assert all(step["status"] != "completed" for step in earlier["steps"])
    assert api.get(of("slow", name)).json()["meta"]["runNumber"] == 1


def test_a_step_is_seen_while_its_first_attempt_runs(api: httpx2.Client) -> None:
    name = create(api, "slow", 12_000)
    deadline = time.monotonic() + 11
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


def test_hooks_of_a_setting_decide(system: System) -> None:
    system.settings["HEADWATER_WORKFLOW_HOOKS"] = "tests.unit.gateway.workflow_hooks:tenants"
    system.start("gateway3")
    del system.settings["HEADWATER_WORKFLOW_HOOKS"]
    amara = {"x-user": "amara"}
    with httpx2.Client(base_url=base(system, "gateway3"), timeout=30) as api:
        assert problem(api.get("/workflows", headers=KEY)) == (401, "WHO_ARE_YOU")
        assert api.get("/workflows", headers=amara).status_code == 200
        body = {"id": fresh(), "params": "forbidden"}
        assert problem(api.post(of("echo"), json=body, headers=amara)) == (403, "NOT_YOURS")
        body["params"] = "fine"
        assert api.post(of("echo"), json=body, headers=amara).status_code == 200
    system.stop("gateway3")


def test_a_position_that_does_not_come_is_given_up(
    never: "Future[httpx2.Response]", api: httpx2.Client
) -> None:
    answer = never.result()
    assert problem(answer) == (503, "position_not_reached")
    assert answer.headers["retry-after"]
    assert MISSING in answer.json()["detail"]


async def _accepted(system: System) -> list[str]:
    """What a client makes of answers to commands that nobody has decided yet."""
    headers = {**KEY, **ASYNC}
    async with Client(base_url=base(system), headers=headers) as client:
        echo = client.workflow("echo")
        made = await echo.create("later-1")
        (other,) = await echo.create_batch([{"id": "later-2"}])
        status = await made.send_event("go")
        return [f"echo/{made.id}", f"echo/{other.id}", status.status]


def test_without_a_worker_a_command_is_not_known_to_be_done_and_is_done_later(
    system: System, api: httpx2.Client
) -> None:
    system.stop("worker")
    name = fresh()

    def missed() -> bool:
        """Whether Kafka has forgotten the worker, too: it may have come back at once."""
        answer = api.post(of("echo"), json={"id": name, "params": 1})
        assert problem(answer) == (503, "outcome_unknown")
        assert "may still be executed" in answer.json()["detail"]
        assert answer.headers["retry-after"]
        return "expected a worker" in answer.json()["detail"]

    system.wait(missed, "the missing worker to be named")
    assert problem(api.get(of("echo", name))) == (404, "INSTANCE_NOT_FOUND")
    later = api.post(of("echo"), json={"id": f"{name}-later"}, headers=ASYNC)
    assert later.status_code == 202
    assert later.json()["accepted"][0]["id"] == f"{name}-later"
    assert asyncio.run(_accepted(system)) == ["echo/later-1", "echo/later-2", "accepted"]
    system.start("worker")
    again = api.post(of("echo"), json={"id": name})
    assert problem(again) in ((409, "INSTANCE_ID_ALREADY_EXISTS"), (503, "outcome_unknown"))
    system.wait(lambda: api.get(of("echo", name)).is_success, "the command to be carried out")
    assert until(api, "echo", name, "complete")["output"] == 1
    system.wait(lambda: api.get(of("echo", f"{name}-later")).is_success, "what was accepted")
