"""`headwater deployments list`, `show` and `diff`: what they print."""

import json
from pathlib import Path

from tests.unit.gateway.command_line import headwater
from tests.unit.gateway.workflow_network import AT, Network, answer, problem

FIRST = {
    "id": "dep_1", "app": "orders", "digest": "aa", "size": 1, "active": False,
    "workflows": [{"name": "order"}, {"name": "refund"}],
    "schedules": [{"name": "nightly", "workflow": "order", "cron": "0 2 * * *", "timezone": "UTC"}],
    "deployedAt": AT, "deployedBy": "admin:1", "openRuns": 3,
}  # fmt: skip
SECOND = FIRST | {
    "id": "dep_2", "digest": "bb", "active": True, "openRuns": 0,
    "workflows": [{"name": "order", "paramsSchema": {"type": "integer"}}, {"name": "ship"}],
}  # fmt: skip


def test_a_listing_has_the_number_of_open_runs():
    network = Network(answer({"deployments": [SECOND, FIRST], "hasNextPage": False}))
    heading, *lines = headwater(network, "deployments", "list").stdout.splitlines()
    assert heading.split("\t")[:3] == ["id", "active", "open runs"]
    assert [line.split("\t")[2] for line in lines] == ["0", "3"]


def test_what_two_deployments_declare_is_compared():
    network = Network(answer(FIRST), answer(SECOND))
    result = headwater(network, "deployments", "diff", "dep_1", "--json")
    assert [(row["name"], row["change"], row["fields"]) for row in json.loads(result.stdout)] == [
        ("order", "changed", "params_schema"),
        ("refund", "removed", ""),
        ("ship", "added", ""),
    ]
    assert [item.url.path for item in network.asked] == [
        "/v1/deployments/dep_1",
        "/v1/deployments/active",
    ]


def test_deployments_that_declare_the_same_say_whether_their_code_differs():
    same = FIRST | {"id": "dep_2", "digest": "bb"}
    result = headwater(Network(answer(FIRST), answer(same)), "deployments", "diff", "dep_1")
    assert "dep_1 and dep_2 declare the same. Their artifacts differ." in result.stderr


def test_a_deployment_is_shown_with_the_packages_of_its_environment():
    environment = {
        "digest": "ee", "size": 1234, "packages": 1, "requirements": ["stripe==5.1"],
        "machines": [{"machine": "one", "state": "failed", "reason": "it", "reportedAt": AT}],
    }  # fmt: skip
    result = headwater(Network(answer(FIRST | {"environment": environment})), "deployments", "show")
    assert "stripe\t5.1" in result.stdout
    assert "one\tfailed\t" in result.stdout
    assert "Environment of 1 packages, 1234 bytes, SHA-256 ee" in result.stderr


def test_an_installation_is_requested_of_the_active_deployment_by_default():
    network = Network(answer(SECOND), answer(SECOND))
    result = headwater(network, "deployments", "install")
    assert result.exit_code == 0, result.stderr
    assert [item.url.path for item in network.asked][-1] == "/v1/deployments/dep_2/install"


def test_a_listing_says_what_becomes_of_each():
    drained = FIRST | {"openRuns": 0, "status": "drained", "drainedAt": AT}
    listed = [
        SECOND | {"status": "active", "percent": 90},
        FIRST | {"status": "sharing", "percent": 10},
        FIRST | {"status": "draining"},
        FIRST | {"status": "removing", "openRuns": 1},
        drained,
        FIRST | {"status": "inactive"},
        SECOND | {"status": "active", "percent": 100},
    ]
    network = Network(answer({"deployments": listed, "hasNextPage": False}))
    heading, *lines = headwater(network, "deployments", "list").stdout.splitlines()
    column = heading.split("\t").index("state")
    assert [line.split("\t")[column] for line in lines] == [
        "90 % of new runs",
        "10 % of new runs",
        "draining: 3 open runs",
        "removing: 1 open run",
        "drained since 2026-11-21 14:00:00 UTC",
        "inactive",
        "active",
    ]


def test_a_share_is_set_by_a_command():
    network = Network(answer(FIRST | {"percent": 10, "status": "sharing"}))
    result = headwater(network, "deployments", "activate", "dep_1", "--percent", "10")
    assert result.exit_code == 0, result.output
    assert result.stderr == "10 % of the new runs begin on dep_1.\n"
    (request,) = network.asked
    assert json.loads(request.content) == {"percent": 10}


def test_a_deployment_is_activated_at_once_although_runs_do_not_fit(tmp_path: Path):
    (tmp_path / "orders.py").write_text("")
    runs = [
        {"workflowName": "poll", "instanceId": f"p-{number}", "runNumber": 0, "fits": False,
         "status": "waiting", "moves": number == 0}
        for number in range(3)
    ]  # fmt: skip
    activated = SECOND | {"replay": {"runs": runs}}
    network = Network(answer(FIRST, status=201), answer(activated))
    deploy = ("deployments", "deploy", str(tmp_path), "--app", "orders", "--activate")
    forced = ("--force", "--reason", "poll is fixed")
    result = headwater(network, *deploy, *forced)
    assert result.exit_code == 0, result.output
    assert json.loads(network.asked[-1].content) == {"force": True, "reason": "poll is fixed"}
    assert "1 run that continues on it does not fit it" in result.stderr
    assert "2 runs on other code would not fit it" in result.stderr
    for wrong in (deploy[:-1] + forced, (*deploy, "--force")):
        assert headwater(Network(), *wrong).exit_code == 2


def test_a_removal_waits_as_long_as_runs_are_open():
    in_use = problem(409, "deployment_in_use", "2 open runs")
    network = Network(in_use, in_use, answer(None, status=204))
    result = headwater(network, "deployments", "remove", "dep_1", "--wait")
    assert result.exit_code == 0, result.output
    assert result.stderr == "2 open runs\n2 open runs\ndep_1 is removed.\n"
    assert [request.url.params["wait"] for request in network.asked] == ["30"] * 3


def test_a_removal_without_waiting_is_refused_or_was_done_before():
    result = headwater(Network(problem(409, "deployment_in_use")), "deployments", "remove", "dep_1")
    assert result.exit_code != 0
    assert "`headwater deployments remove --wait`" in result.output
    # The answer to an earlier attempt may have been lost.
    gone = Network(problem(410, "deployment_removed"))
    assert headwater(gone, "deployments", "remove", "dep_1").exit_code == 0
