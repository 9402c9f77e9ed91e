"""`headwater runs`, and the client beneath it: what they ask, print, and say when it fails."""

import json

import pytest

from tests.unit.gateway.command_line import headwater
from tests.unit.gateway.workflow_network import AT, Network, answer, problem, queries

CREATED = {"runId": "run_1", "workflowName": "order", "status": "running"}
LISTED = CREATED | {
    "deploymentId": "dep_1",
    "createdAt": AT,
    "startedAt": AT,
    "updatedAt": AT,
    "completedAt": None,
}
WHOLE = LISTED | {"input": {"sku": "x"}}


def test_a_run_is_created_under_a_key_and_its_id_printed():
    network = Network(answer(CREATED, status=201))
    result = headwater(
        network, "runs", "create", "order", "--input", '{"sku": "x"}',
        "--idempotency-key", "order-17", "--deployment", "dep_1",
    )  # fmt: skip
    assert result.stdout == "run_1\n"
    assert "`headwater runs show run_1`" in result.stderr
    (requested,) = network.asked
    assert (requested.url.path, requested.headers["idempotency-key"]) == ("/v1/runs", "order-17")
    assert network.body() == {
        "workflowName": "order", "input": {"sku": "x"}, "deploymentId": "dep_1"
    }  # fmt: skip


def test_without_a_key_it_has_one_of_its_own_and_is_sent_again_under_it():
    busy = problem(503, "store_unavailable")
    network = Network(busy, answer(CREATED, status=201))
    result = headwater(network, "runs", "create", "order", "--json")
    assert json.loads(result.stdout) == CREATED
    keys = [item.headers["idempotency-key"] for item in network.asked]
    assert keys[0] == keys[1] != ""


def test_runs_are_listed_over_pages_up_to_a_limit():
    pages = [{"data": [LISTED], "hasMore": True, "cursor": value} for value in ("a", "b")]
    network = Network(*map(answer, pages))
    result = headwater(
        network, "runs", "list", "-w", "order", "--status", "running", "--limit", "2",
        "--deployment", "dep_1",
    )  # fmt: skip
    heading, *lines = result.stdout.splitlines()
    assert heading == "run\tworkflow\tstatus\tdeployment\tcreated\tended\terror"
    assert [line.split("\t")[:4] for line in lines] == [["run_1", "order", "running", "dep_1"]] * 2
    assert "There are more: --cursor b" in result.stderr
    requested = {"workflowName": "order", "status": "running", "deploymentId": "dep_1"}
    first, second = queries(network.asked)
    assert (first, second) == (
        requested | {"limit": "2"},
        requested | {"limit": "1", "cursor": "a"},
    )


def test_a_run_is_shown_and_cancelled_by_its_id():
    network = Network(answer(WHOLE), answer(WHOLE | {"status": "cancelled", "completedAt": AT}))
    shown = headwater(network, "runs", "show", "run_1", "-w", "order")
    assert 'input\t{"sku": "x"}' in shown.stdout
    ended = headwater(network, "runs", "cancel", "run_1", "--reason", "enough", "--json")
    assert json.loads(ended.stdout)["status"] == "cancelled"
    assert network.body() == {"reason": "enough"}
    paths = [item.url.path for item in network.asked]
    assert paths == ["/v1/runs/run_1", "/v1/runs/run_1/cancel"]


def test_what_is_refused_says_what_to_do_next():
    for code, status, said in (
        ("run_not_found", 404, "`headwater runs list`"),
        ("ambiguous_run", 409, "-w names one"),
    ):
        result = headwater(Network(problem(status, code)), "runs", "show", "run_1")
        assert result.exit_code == 1
        assert said in result.stderr
    none = Network(problem(409, "no_active_deployment"))
    result = headwater(none, "runs", "create", "order")
    assert "`headwater deployments activate`" in result.stderr


@pytest.mark.parametrize("key", ["", "a b", "k\u00e9", "a\nb", "x" * 256])
def test_what_cannot_be_a_key_is_refused_and_nothing_is_created(key: str):
    network = Network()
    result = headwater(network, "runs", "create", "order", "--idempotency-key", key)
    assert result.exit_code == 2
    assert "expected an idempotency key of 1 to 255 printable ASCII characters" in result.stderr
    assert network.asked == []


def test_a_run_without_an_id_is_none():
    for command in ("show", "cancel"):
        result = headwater(Network(), "runs", command, "")
        assert result.exit_code == 2
        assert "expected the id of a run, found nothing" in result.stderr


def test_who_may_not_is_not_told_to_give_a_key():
    refused = Network(problem(403, "forbidden", "expected a workflow of your own"))
    result = headwater(refused, "runs", "create", "headwater-prune")
    assert "expected a workflow of your own" in result.stderr
    assert "HEADWATER_WORKFLOW_KEY" not in result.stderr
