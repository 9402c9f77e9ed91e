"""`headwater instances` about graphs: tokens, explanations, drawings, simulations and moves."""

import json

import httpx2

from tests.unit.gateway.command_line import OK, ON, headwater
from tests.unit.gateway.workflow_network import (
    Network,
    answer,
    problem,
    queries,
)

AS_OF = {
    "workflowName": "order", "instanceId": "order-1", "runNumber": 0, "status": "active",
    "sequence": 14, "at": "2026-11-21T13:59:59Z",
    "definitionDigest": "9f86d081884c7d65",
}  # fmt: skip
TOKEN = {
    "id": "2", "nodeRef": "vote", "status": "pending", "pathId": "root.start.1",
    "parentTokenId": "0", "transitionRef": "ask", "fork": "0/judges", "siblingGroup": "judges",
    "branchIndex": 1, "branchTotal": 2, "iterationCounts": {}, "attempts": 1,
    "waitsFor": {"what": "retry", "until": "2026-11-21T14:00:00Z"},
}  # fmt: skip
SIMULATED = {**AS_OF, "token": TOKEN, "decisions": [], "trace": [], "wouldBe": "complete"}


def test_tokens_are_listed_as_of_an_event_over_pages():
    network = Network(
        answer({**AS_OF, "tokens": [TOKEN], "total": 2, "cursor": "2"}),
        answer({**AS_OF, "tokens": [TOKEN | {"id": "3"}], "total": 2}),
    )
    result = headwater(network, "instances", "tokens", *ON, "--at", "14", "--run", "0")
    assert result.stdout.splitlines() == [
        "# order/order-1, run 0, as of sequence 14 (2026-11-21 13:59:59 UTC), definition 9f86d081",
        "token\tnode\tstatus\tbranch\tattempts\twaits for",
        "2\tvote\tpending\t1 of 2\t1\tretry, until 2026-11-21 14:00:00 UTC",
        "3\tvote\tpending\t1 of 2\t1\tretry, until 2026-11-21 14:00:00 UTC",
    ]
    assert queries(network.asked) == [
        {"at": "14", "pageSize": "1000", "runNumber": "0"},
        {"at": "14", "pageSize": "1000", "after": "2", "runNumber": "0"},
    ]


def test_a_graph_that_waits_is_explained_in_sentences():
    explained = {**AS_OF, "says": ["It waits.", "For Bo."], "joins": [], "waitingFor": {"task": 1}}
    assert headwater(Network(answer(explained)), "instances", "explain", *ON).stdout == (
        "It waits.\nFor Bo.\n"
    )
    whole = headwater(Network(answer(explained)), "instances", "explain", *ON, "--json")
    assert '"waitingFor": {"task": 1}' in whole.stdout
    refused = problem(404, "SEQUENCE_NOT_FOUND", "at: expected 0 to 14, found 15")
    beyond = headwater(Network(refused), "instances", "explain", *ON, "--at", "15")
    assert "expected 0 to 14, found 15" in beyond.output


def test_a_graph_is_drawn_as_it_is_and_as_it_was():
    chart = "flowchart TD\n    start(( )) --> n0\n"
    picture = '<svg xmlns="http://www.w3.org/2000/svg"/>'
    network = Network(httpx2.Response(200, text=chart), httpx2.Response(200, text=picture))
    assert headwater(network, "instances", "draw", *ON).stdout == chart
    drawn = headwater(network, "instances", "draw", *ON, "--format", "svg", "--at", "12")
    assert drawn.stdout == picture
    mermaid, svg = network.asked
    assert mermaid.url.path.endswith("/graph/mermaid")
    assert svg.url.path.endswith("/graph/svg")
    assert queries(network.asked) == [{}, {"at": "12"}]


def test_what_would_follow_is_asked_for_and_told():
    fires = [{"transitionRef": "meet", "toNodeRef": "tally", "tokens": 1}]
    network = Network(answer({**SIMULATED, "fires": fires}))
    result = headwater(
        network, *("instances", "simulate-routing", *ON, "--token", "2", "--output", '{"a": 1}')
    )
    assert result.stdout.splitlines()[1:] == ["transition\tto\ttokens", "meet\ttally\t1"]
    assert "The run would be complete." in result.stderr
    assert network.asked[0].content == b'{"token":"2","output":{"a":1}}'
    counts = {"total": 2, "completed": 2, "failed": 0, "terminal": 2}
    joined = {
        **SIMULATED, "transitionRef": "meet", "strategy": "all", "decision": "ACTIVATE_FAN_IN",
        "counts": counts,
    }  # fmt: skip
    result = headwater(
        Network(answer(joined)),
        *("instances", "simulate-synchronization", *ON, "--token", "2", "--transition", "meet"),
    )
    assert "decision\tACTIVATE_FAN_IN\n" in result.stdout
    neither = headwater(Network(), "instances", "simulate-routing", *ON)
    assert "expected --token or --node" in neither.output


def test_a_move_to_another_version_shows_where_tokens_go_and_may_be_tried():
    tokens = [
        {"id": "2", "nodeRef": "vote", "toNodeRef": "judge", "status": "pending"},
        {"id": "3", "nodeRef": "tally", "status": "pending", "problem": "there is no node 'tally'"},
    ]
    plan = {
        **AS_OF, "version": 2, "digest": "0", "possible": False, "tokens": tokens,
        "problems": ["the new definition has no node 'x'"],
    }  # fmt: skip
    network = Network(answer(plan))
    tried = ("graph", "migrate", *ON, "--to", "2", "--map", "vote=judge", "--dry-run")
    result = headwater(network, *tried)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "token\tstatus\tnode\tto\tproblem",
        "2\tpending\tvote\tjudge\t",
        "3\tpending\ttally\t\tthere is no node 'tally'",
    ]
    assert "the new definition has no node 'x'\nIt is not possible." in result.stderr
    (asked,) = network.asked
    assert (asked.method, asked.url.path.rpartition("/")[2]) == ("POST", "simulate-migration")
    assert json.loads(asked.content) == {"to": 2, "map": {"vote": "judge"}}
    possible = {**plan, "possible": True, "tokens": tokens[:1], "problems": []}
    network = Network(answer(possible), answer(OK))
    moved = headwater(network, "graph", "migrate", *ON, "--to", "2", "--map", "vote=judge")
    assert (moved.exit_code, moved.stderr) == (0, "order/order-1 runs version 2 now.\n")
    assert json.loads(network.asked[1].content) == {"to": 2, "map": {"vote": "judge"}}
    refused = problem(409, "MIGRATION_REFUSED", "the run cannot continue there: there is no node")
    result = headwater(Network(answer(plan), refused), "graph", "migrate", *ON, "--to", "2")
    assert (result.exit_code, "there is no node" in result.stderr) == (1, True)
    unreadable = headwater(Network(), "graph", "migrate", *ON, "--to", "2", "--map", "vote")
    assert "expected OLD=NEW, found 'vote'" in unreadable.output


def test_the_output_of_a_branch_is_set():
    network = Network(answer({"ok": True, "status": {"status": "errored"}}))
    result = headwater(
        network, "instances", "set-branch-output", *ON, "--group", "judges", "--branch", "2",
        "--output", '{"v": 1}',
    )  # fmt: skip
    assert (result.exit_code, "retry` merges it" in result.stderr) == (0, True)
    (sent,) = network.asked
    assert sent.url.path.endswith("/instances/order-1/branch-output")
    assert json.loads(sent.content) == {"group": "judges", "branch": 2, "output": {"v": 1}}


def test_a_trace_says_where_another_release_decided_otherwise():
    reported = {
        "type": "decision.routing.start",
        "token_id": "2",
        "node_ref": "vote",
        "payload": {},
    }
    decided = {
        "sequence": 3, "lastSequence": 5, "at": "2026-11-21T13:59:59Z", "events": [],
        "decisions": [], "trace": [reported | {"sequence": 3}], "same": False,
    }  # fmt: skip
    network = Network(answer({**AS_OF, "decided": [decided]}))
    result = headwater(network, "instances", "trace", *ON, "--from", "3", "--to", "9")
    assert result.stdout.splitlines()[1:] == [
        "sequence\tat\twhat\ttoken\tnode\tpayload",
        "3\t2026-11-21 13:59:59 UTC\tdecision.routing.start\t2\tvote\t{}",
    ]
    assert "decided differently at 3" in result.stderr
    assert queries(network.asked) == [{"from": "3", "to": "9"}]
