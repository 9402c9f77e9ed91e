"""Graphs are looked at and into, and retried."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from headwater import Client
from tests.e2e.system import System
from tests.integration.workflow_routes.asking import KEY, base, create, follow, of, problem, until


def tokens_of(api: httpx2.Client, name: str, **asked: object) -> list[dict[str, Any]]:
    """The tokens of a graph's run, page by page."""
    result, cursor = [], ""
    while True:
        params = asked | ({"tokensCursor": cursor} if cursor else {})
        page = api.get(of("judged", name, "history"), params=params).json()  # type: ignore[arg-type]
        assert page["steps"] == []
        result += page["tokens"]
        if not page["tokensHasNextPage"]:
            return result
        cursor = page["tokensCursor"]


def test_a_graph_is_looked_at_by_its_tokens(api: httpx2.Client) -> None:
    name = create(api, "judged", {"file": ""})
    until(api, "judged", name, "waiting")
    meta = api.get(of("judged", name)).json()["meta"]
    assert "currentStep" not in meta
    waits = {"nodeRef": "ask", "status": "waiting_for_subworkflow", "tokens": 1}
    assert meta["currentTokens"] == [{**waits, "nextRetryAt": None, "wakeAt": None}]
    tokens = tokens_of(api, name)
    assert tokens == tokens_of(api, name, pageSize=2)
    assert tokens[::-1] == tokens_of(api, name, pageSize=3, order="desc")
    nodes = [token["nodeRef"] for token in tokens]
    assert sorted(nodes) == ["ask", "judge", "judge", "start", "tally", "tally", "tally"]
    [ask] = [token for token in tokens if token["nodeRef"] == "ask"]
    assert (ask["status"], ask["subworkflow"]) == ("waiting_for_subworkflow", "waiting")
    api.post(of("waiting", ask["childInstanceId"], "events"), json={"type": "go"})
    messages = follow(api, of("judged", name, "events-stream"))
    assert messages[-1][2]["output"] == {"votes": [0, 1]}
    reported = {data["id"]: data for event, _, data in messages if event == "token"}
    assert [reported[token["id"]] for token in tokens] == tokens_of(api, name)
    assert "currentTokens" not in api.get(of("judged", name)).json()["meta"]
    code = create(api, "echo")
    assert api.get(of("echo", code, "history")).json()["tokens"] == []


def test_a_retry_of_a_graph_goes_on_with_its_tokens(api: httpx2.Client, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    name = create(api, "judged", {"file": str(mended)})
    error = until(api, "judged", name, "errored")["error"]
    assert (error["name"], error["message"]) == ("NonRetryableError", "out of order")
    failed = [item["error"] for item in tokens_of(api, name) if item["status"] == "failed"]
    assert 'raise NonRetryableError("out of order")' in failed[0]["traceback"]
    [stands] = api.get(of("judged", name)).json()["meta"]["currentTokens"]
    assert (stands["nodeRef"], stands["status"]) == ("judge", "failed")
    named = api.post(of("judged", name, "retry"), json={"fromStep": "judge"})
    assert problem(named) == (404, "STEP_NOT_FOUND")
    assert "cannot undo what they did" in named.json()["detail"]
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
    assert {item["status"] for item in failed} == {"completed", "failed", "cancelled"}
    assert [item["id"] for item in failed] == [item["id"] for item in kept[: len(failed)]]
    assert {item["status"] for item in kept} == {"completed", "waiting_for_subworkflow"}


def looked(api: httpx2.Client, name: str, wanted: dict[str, int]) -> dict[str, Any]:
    """The explanation of a graph, once its tokens wait for this."""
    deadline = time.monotonic() + 60
    while True:
        result: dict[str, Any] = api.get(of("voting", name, "graph/explain")).json()
        if result["waitingFor"] == wanted:
            return result
        assert time.monotonic() < deadline, result
        time.sleep(0.05)


def test_what_was_decided_of_objects_is_decided_again_in_another_process(
    api: httpx2.Client,
) -> None:
    document = {
        "name": "copying",
        "initialNodeRef": "copy",
        "nodes": [{"ref": "copy", "task": "noop", "outputMapping": {"output.all": "[input]"}}],
    }
    graphs = str(api.base_url).replace("/api/workflows", "/api/graphs/copying")
    assert api.put(graphs, json=document).is_success
    params = {key: {"\0": "a\0b"} for key in "hgfedcba"}
    name = create(api, "copying", params)
    assert until(api, "copying", name, "complete")["output"] == {"all": [params]}
    reported = api.get(of("copying", name, "graph/trace")).json()
    assert [item["same"] for item in reported["decided"]] == [True, True]


def test_a_run_says_which_version_of_its_graph_it_is_on(api: httpx2.Client) -> None:
    graphs = str(api.base_url).replace("/api/workflows", "/api/graphs/versioned")
    waits = {"ref": "a", "task": "versioned", "external": True}
    result: list[tuple[str, str]] = []
    for version in ("1", "2"):
        document = {"initialNodeRef": "a", "nodes": [waits], "outputMapping": {"v": version}}
        deployed = api.put(graphs, json=document).json()
        result.append((create(api, "versioned"), deployed["digest"]))
    assert api.post(of("versioned", result[0][0], "restart")).is_success
    for name, digest in zip((item for item, _ in result), [result[1][1]] * 2, strict=True):
        looked = api.get(of("versioned", name, "graph/tokens")).json()
        assert looked["definitionDigest"] == digest
    before = api.get(of("versioned", result[0][0], "graph/tokens"), params={"runNumber": 0}).json()
    assert before["definitionDigest"] == result[0][1]


def test_a_graph_that_waits_is_looked_into_now_and_as_of_any_event(api: httpx2.Client) -> None:
    name = create(api, "voting", {"voters": ["ada", "late", "nobody"], "file": ""})
    result = looked(api, name, {"retry": 1, "siblings": 1})
    (join,) = result["joins"]
    assert [(item["branchIndex"], item["why"]) for item in join["missing"]] == [
        (1, "retry"),
        (2, "elsewhere"),
    ]
    assert "attempt 1 failed with RuntimeError: not at home" in join["missing"][0]["says"]
    last = result["sequence"]
    live = [
        api.get(of("voting", name, "graph/tokens"), params={"at": at}).json()
        for at in range(last + 1)
    ]
    assert [item["sequence"] for item in live] == list(range(last + 1))
    assert sorted(token["status"] for token in live[-1]["tokens"]) == [
        "pending",
        "waiting_for_siblings",
    ]
    page = api.get(of("voting", name, "graph/tokens"), params={"pageSize": 1}).json()
    rest = api.get(of("voting", name, "graph/tokens"), params={"after": page["cursor"]}).json()
    assert (page["total"], page["tokens"] + rest["tokens"]) == (2, live[-1]["tokens"])
    beyond = api.get(of("voting", name, "graph/tokens"), params={"at": last + 1})
    assert problem(beyond) == (404, "SEQUENCE_NOT_FOUND")
    assert f"expected 0 to {last}" in beyond.json()["detail"]
    reported = api.get(of("voting", name, "graph/trace"), params={"from": 2}).json()
    assert all(item["same"] for item in reported["decided"])
    late = next(token["id"] for token in live[-1]["tokens"] if token["status"] == "pending")
    requested = {"token": late, "output": {"vote": "late"}}
    routed = api.post(of("voting", name, "graph/simulate-routing"), json=requested).json()
    assert [fire["transitionRef"] for fire in routed["fires"]] == ["meet"]
    assert "ACTIVATE_FAN_IN" in [decision["type"] for decision in routed["decisions"]]
    requested = {"token": late, "transition": "meet"}
    joined = api.post(of("voting", name, "graph/simulate-synchronization"), json=requested).json()
    assert (joined["decision"], joined["counts"]["completed"]) == ("ACTIVATE_FAN_IN", 2)
    assert looked(api, name, {"retry": 1, "siblings": 1}) == result


def test_what_cannot_be_looked_into_is_a_problem(api: httpx2.Client) -> None:
    code, name = create(api, "waiting"), create(api, "voting", {"voters": ["late"], "file": ""})
    looked(api, name, {"retry": 1})
    assert problem(api.get(of("waiting", code, "graph/explain"))) == (409, "NOT_A_GRAPH")
    assert problem(api.get(of("voting", "none", "graph/tokens"))) == (404, "INSTANCE_NOT_FOUND")
    for body, result in (
        ({"token": "9"}, (404, "TOKEN_NOT_FOUND")),
        ({"node": "x"}, (404, "NODE_NOT_FOUND")),
        ({}, (400, "invalid_body")),
        ({"token": "1", "node": "vote"}, (400, "invalid_body")),
    ):
        requested = api.post(of("voting", name, "graph/simulate-routing"), json=body)
        assert problem(requested) == result
    where = of("voting", name, "graph/simulate-synchronization")
    requested = api.post(where, json={"token": "1", "transition": "ask"})
    assert problem(requested) == (404, "TRANSITION_NOT_FOUND")
    api.post(of("voting", name, "terminate"))
    requested = api.post(of("voting", name, "graph/simulate-routing"), json={"node": "vote"})
    assert problem(requested) == (409, "INSTANCE_TERMINAL")


def test_retried_and_restarted_graphs_are_looked_into_in_each_of_their_runs(
    api: httpx2.Client, system: System, tmp_path: Path
) -> None:
    file = tmp_path / "voter"
    name = create(api, "voting", {"voters": ["ada", "bad", "late"], "file": str(file)})
    until(api, "voting", name, "errored")
    file.touch()
    assert api.post(of("voting", name, "retry")).status_code == 200

    async def told() -> None:
        async with Client(base(system), headers=KEY) as client:
            instance = client.workflow("voting").get(name)
            begun = await instance.introspect_tokens(0)
            assert begun.run_number == 1
            assert {token.node_ref for token in begun.tokens} <= {"vote", "count"}
            assert all([item.same async for item in instance.trace()])
            node = await instance.simulate_routing(node="vote", output={"vote": None})
            assert [fire.to_node_ref for fire in node.fires] == ["count"]

    looked(api, name, {"retry": 1, "siblings": 2})
    asyncio.run(told())
    assert api.post(of("voting", name, "restart")).status_code == 200
    again = looked(api, name, {"retry": 1, "siblings": 2})
    assert (again["runNumber"], again["joins"][0]["arrivedCount"]) == (2, 2)
    where = of("voting", name, "graph/tokens")
    before = [api.get(where, params={"runNumber": number}).json() for number in (0, 1)]
    assert [(item["runNumber"], item["status"] == "errored") for item in before] == [
        (0, True),
        (1, False),
    ]
    assert problem(api.get(where, params={"runNumber": 3})) == (404, "RUN_NOT_FOUND")


def moving(ask: str, count: str) -> dict[str, Any]:
    """A version of a graph in which two children are waited for."""
    group = {"siblingGroup": "asked"}
    merge = {"source": "_branch.output.n", "target": "state.all", "strategy": "append"}
    return {
        "initialNodeRef": "start",
        "nodes": [
            {"ref": "start", "task": "noop"},
            {"ref": ask, "subworkflow": "waiting", "outputMapping": {"output.n": "_branch.index"}},
            {"ref": count, "task": "noop"},
        ],
        "transitions": [
            {"ref": "t1", "fromNodeRef": "start", "toNodeRef": ask, "spawnCount": 2, **group},
            {
                "ref": "t2",
                "fromNodeRef": ask,
                "toNodeRef": count,
                "synchronization": {"strategy": "all", "merge": merge, **group},
            },
        ],
        "outputMapping": {count: "state.all"},
    }


def test_a_run_moves_to_another_version_and_what_happens_has_names(
    api: httpx2.Client, system: System
) -> None:
    graphs = str(api.base_url).replace("/api/workflows", "/api/graphs/moving")
    for document in (moving("ask", "tally"), moving("inquire", "count")):
        assert api.put(graphs, json=document).status_code == 201
    # The newest version is the second one; the first is deployed again as the third.
    assert api.put(graphs, json=moving("ask", "tally")).json()["version"] == 3
    name = create(api, "moving")
    until(api, "moving", name, "waiting")
    plan = api.post(of("moving", name, "graph/simulate-migration"), json={"to": 2}).json()
    assert (plan["possible"], plan["version"]) == (False, 2)
    assert [token["problem"] for token in plan["tokens"]] == ["there is no node 'ask'"] * 2
    refused = api.post(of("moving", name, "migrate"), json={"to": 2})
    assert problem(refused) == (409, "MIGRATION_REFUSED")
    unknown = api.post(of("moving", name, "migrate"), json={"to": 9})
    assert problem(unknown) == (404, "GRAPH_NOT_FOUND")
    body = {"to": 2, "map": {"ask": "inquire", "tally": "count"}}
    assert api.post(of("moving", name, "migrate"), json=body).json()["ok"]
    tokens = api.get(of("moving", name, "graph/tokens")).json()
    assert tokens["definitionDigest"] == plan["digest"]
    children = {token["waitsFor"]["childInstanceId"] for token in tokens["tokens"]}
    for child in children:
        api.post(of("waiting", child, "events"), json={"type": "go"})
    assert until(api, "moving", name, "complete")["output"] == {"count": [0, 1]}
    assert {token["nodeRef"] for token in tokens_of_moving(api, name)} == {
        *("start", "inquire", "count"),
    }
    traced = api.get(of("moving", name, "graph/trace")).json()["decided"]
    assert all(decided["same"] for decided in traced)
    assert audited_migration(system, name)["migration"] == body
    has_named_events(api, system, name)


def has_named_events(api: httpx2.Client, system: System, name: str) -> None:
    """Checks the workflow events of the run that moved, in the stream and in the table."""
    wanted = "fan_out.started,subworkflow.completed,fan_in.completed,workflow.completed"
    messages = follow(api, of("moving", name, f"events-stream?names={wanted}"))
    assert [event for event, _, _ in messages] == [
        *("fan_out.started", "subworkflow.completed", "subworkflow.completed"),
        *("fan_in.completed", "workflow.completed", "end"),
    ]
    assert messages[1][2]["nodeRef"] == "inquire"
    nothing = api.get(of("moving", name, "events-stream?names=fan_in"))
    assert problem(nothing) == (400, "invalid_parameter")
    with psycopg.connect(system.dsn) as connection:
        rows = connection.execute(
            "select name, node_ref, count(*) from headwater.workflow_graph_event "
            "where instance_id = %s group by 1, 2 order by 1, 2",
            [name],
        ).fetchall()
        assert ("subworkflow.dispatched", "ask", 2) in rows
        assert ("subworkflow.completed", "inquire", 2) in rows
        assert ("branches.merged", "count", 1) in rows


def audited_migration(system: System, name: str) -> dict[str, Any]:
    """What the audit log says of the move: its rows may come a moment after the answer."""
    query = (
        "select metadata_json from headwater.audit_logs where action = 'instances.migrate' "
        "and result = 'success' and resource like %s"
    )
    deadline = time.monotonic() + 60
    while True:
        with psycopg.connect(system.dsn) as connection:
            rows = connection.execute(query, [f"%{name}%"]).fetchall()
        if rows:
            return dict(json.loads(rows[0][0]))
        assert time.monotonic() < deadline
        time.sleep(0.1)


def tokens_of_moving(api: httpx2.Client, name: str) -> list[dict[str, Any]]:
    page: dict[str, Any] = api.get(of("moving", name, "history")).json()
    return list(page["tokens"])
