"""`headwater instances`: what changes instances, one or many."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit.gateway.command_line import OK, ON, headwater
from tests.unit.gateway.workflow_network import (
    Network,
    answer,
    queries,
)


def test_what_changes_an_instance_tells_in_json_what_became_of_it():
    stands = {"status": "waiting"}
    changed = ({"ok": True, "status": stands}, ["pause", "resume", "terminate", "restart", "retry"])
    sent = ({"status": stands}, ["send-event"])
    for body, names in (changed, sent):
        for name in names:
            more = ("--type", "go") if name == "send-event" else ()
            result = headwater(Network(answer(body)), "instances", name, *ON, *more, "--json")
            assert (result.exit_code, json.loads(result.stdout)) == (0, stands)
    made = {"id": "x", "details": {"status": "active"}}
    create = ("create", "-w", "order", "-i", "x", "--json")
    result = headwater(Network(answer(made)), "instances", *create)
    assert json.loads(result.stdout) == {"workflowName": "order", "id": "x"}
    every = headwater(
        Network(bulk({"id": "a", "status": "active"})),
        *("instances", "resume", "-w", "order", "--status", "paused", "--yes", "--json"),
    )
    assert json.loads(every.stdout) == [{"id": "a", "status": "active"}]


def test_what_changes_an_instance_says_nothing_else_to_programs():
    changed = {"ok": True, "status": {"status": "paused"}}
    result = headwater(Network(answer(changed)), "instances", "pause", *ON, "--json")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "route", "body", "said"),
    [
        (["pause"], "/pause", {}, "is active."),
        (["resume"], "/resume", {}, "is active."),
        (["restart"], "/restart", {}, "begins a new run."),
        (["terminate"], "/terminate", {}, "is active."),
        (["cancel"], "/cancel", {}, "is active; its code may clean up."),
        (["cancel", "--reason", "sold"], "/cancel", {"reason": "sold"}, "its code may clean up."),
        (["retry"], "/retry", {}, "from where it failed."),
        (["retry", "--from-step", "a/b"], "/retry", {"fromStep": "a/b"}, "from a/b."),
        (["retry", "--deployment", "active"], "/retry", {"deployment": "active"}, "it failed."),
        (["move", "--to", "app"], "/move", {"deployment": "app"}, "was moved to app."),
        (
            ["move", "--to", "app", "--dry-run"],
            "/move",
            {"deployment": "app", "dryRun": True},
            "would be moved to app.",
        ),
        (
            ["move", "--to", "dep_1", "--force", "--reason", "fixed"],
            "/move",
            {"deployment": "dep_1", "force": True, "reason": "fixed"},
            "was moved to dep_1.",
        ),
        (["restart", "--deployment", "app"], "/restart", {"deployment": "app"}, "a new run."),
        (["send-event", "--type", "go"], "/events", {"type": "go"}, "has received the event go."),
        (
            ["send-event", "--type", "go", "--payload", '{"a": [1]}', "--start-if-missing",
             "--params", "null"],
            "/events",
            {"type": "go", "payload": {"a": [1]}, "startIfMissing": {}},
            "has received the event go.",
        ),
    ],
)  # fmt: skip
def test_every_verb_has_its_route(arguments: list[str], route: str, body: object, said: str):
    network = Network(answer(OK))
    result = headwater(network, "instances", *arguments, *ON)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("order/order-1 ")
    assert result.stderr.endswith(f"{said}\n")
    assert network.lines == [f"POST /workflows/order/instances/order-1{route}"]
    assert network.body() == body


@pytest.mark.parametrize(
    ("verb", "status", "said"),
    [
        ("pause", "paused", "is paused; a step that is running still completes."),
        ("resume", "waiting", "is waiting."),
        ("resume", "paused", "is paused."),
        *[
            ("resume", ended, f"is {ended}: nothing to resume; `headwater instances restart` "
             "begins a new run of it.")
            for ended in ("complete", "errored", "terminated")
        ],
        ("terminate", "terminated", "is terminated."),
        ("cancel", "waiting", "is waiting; its code may clean up."),
        ("cancel", "terminated", "is terminated."),
        ("restart", "terminated", "begins a new run."),
    ],
)  # fmt: skip
def test_how_an_instance_stands_afterwards_is_said(verb: str, status: str, said: str):
    network = Network(answer({"ok": True, "status": {"status": status}}))
    result = headwater(network, "instances", verb, *ON)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"order/order-1 {said}\n")


def test_an_instance_is_created_and_its_id_alone_goes_to_stdout():
    network = Network(answer({"id": "x", "details": {"status": "active"}}))
    result = headwater(network, *("instances", "create", "-w", "order", "-i", "o-1"))
    assert result.stdout == "o-1\n"
    assert "`headwater instances get order/o-1`" in result.stderr


def bulk(*instances: dict[str, Any], cursor: str | None = None) -> httpx2.Response:
    more = {"cursor": cursor} if cursor else {}
    return answer({"instances": list(instances), "hasNextPage": cursor is not None, **more})


def test_the_same_is_done_to_all_page_by_page_and_those_that_refuse_are_shown():
    done = {"id": "a", "status": "active"}
    refused = {"id": "b", "status": "errored", "code": "RECORD_TOO_LARGE", "detail": "too much"}
    network = Network(bulk(done, cursor="n1"), bulk(refused, done))
    result = headwater(
        network, *("instances", "retry", "-w", "order", "--status", "errored"),
        *("--label", "team=blue", "--yes"),
    )  # fmt: skip
    assert result.stdout == "instance\tcode\twhy\norder/b\tRECORD_TOO_LARGE\ttoo much\n"
    assert result.stderr == "retry: 1 done\nretry: 2 done, 1 refused.\n"
    assert result.exit_code == 1
    assert network.lines == ["POST /workflows/order/bulk"] * 2
    requested = {
        "action": "retry",
        "status": "errored",
        "labels": {"team": "blue"},
        "dryRun": False,
    }
    assert network.body(0) == requested
    assert network.body(1) == {**requested, "cursor": "n1"}


def test_all_that_are_ended_can_be_told_why():
    network = Network(bulk({"id": "a", "status": "terminated"}))
    every = ("-w", "order", "--status", "active", "--reason", "a test", "--yes")
    result = headwater(network, "instances", "cancel", *every)
    assert (result.exit_code, network.body(0)["reason"]) == (0, "a test")


def test_before_the_same_is_done_to_all_it_can_be_seen_which_they_are():
    network = Network(bulk({"id": "a", "status": "waiting"}))
    result = headwater(
        network, *("instances", "terminate", "-w", "order", "--label", "a=b=c", "--dry-run")
    )
    assert result.stdout == "instance\tstatus\norder/a\twaiting\n"
    assert result.stderr == "1 instance would be terminated.\n"
    assert network.body()["labels"] == {"a": "b=c"}
    assert network.body()["dryRun"] is True


def test_a_dry_run_of_moves_lists_those_that_do_not_fit():
    fits = {"id": "a", "status": "waiting"}
    differs = {"id": "b", "status": "waiting", "code": "replay_diverged", "detail": "it differs"}
    network = Network(bulk(fits, differs))
    every = ("move", "-w", "order", "--status", "waiting", "--to", "dep_1", "--dry-run")
    result = headwater(network, "instances", *every)
    assert "order/a\twaiting\n" in result.stdout
    assert "order/b\treplay_diverged\tit differs\n" in result.stdout
    assert result.stderr == "1 instance would be moved. 1 would be refused.\n"
    assert result.exit_code == 1
    assert "force" not in network.body()


def test_a_forced_move_of_many_has_its_reason():
    network = Network(bulk({"id": "a", "status": "waiting"}))
    every = ("move", "-w", "order", "--status", "waiting", "--to", "dep_1", "--yes")
    result = headwater(network, "instances", *every, "--force", "--reason", "fixed")
    assert result.exit_code == 0, result.output
    assert (network.body()["force"], network.body()["reason"]) == (True, "fixed")
    assert headwater(network, "instances", *every, "--force").exit_code == 2


def test_labels_are_given_and_asked_for():
    listed = {"instances": [], "hasNextPage": False}
    network = Network(answer({"id": "a", "details": {"status": "active"}}), answer(listed))
    headwater(network, "instances", "create", "-w", "order", "--label", "team=blue")
    headwater(network, "instances", "list", "-w", "order", "--label", "team=blue")
    assert network.body(0)["labels"] == {"team": "blue"}
    assert queries(network.asked)[1]["label"] == "team=blue"


def test_json_comes_inline_from_a_file_or_from_standard_input(tmp_path: Path):
    (tmp_path / "params.json").write_text('{"sku": "ü"}\n', encoding="utf-8")
    for argument, provided in (
        ('{"sku": "ü"}', None),
        (f"@{tmp_path / 'params.json'}", None),
        ("-", '{"sku": "ü"}'),
    ):
        network = Network(answer({"id": "x", "details": {"status": "active"}}))
        result = headwater(
            network, *("instances", "create", "-w", "order", "--params", argument), given=provided
        )
        assert result.exit_code == 0, result.stderr
        assert network.body()["params"] == {"sku": "ü"}


@pytest.mark.parametrize("named", [ON, ("order/order-1",), ("order/a/b",)])
def test_an_instance_is_named_as_output_names_it_or_by_options(named: tuple[str, ...]):
    network = Network(answer({"ok": True, "status": {"status": "paused"}}))
    result = headwater(network, "instances", "pause", *named)
    assert result.exit_code == 0
    name = "order/a/b" if "order/a/b" in named else "order/order-1"
    assert result.stderr.startswith(f"{name} is paused")
