"""Goal: operations are ordered as they were meant, after a yes, and their results are printed.

Method: the commands speak to a real server on loopback, which gives what a gateway would.
"""

import json
from collections.abc import Mapping
from io import StringIO

import click
import pytest
from click.testing import CliRunner, Result

from headwater.gateway.cli.operate import dlq
from headwater.gateway.cli.operations import prune, rebuild, replay
from headwater.gateway.cli.options import confirm
from tests.fakes.json_server import Asked, answering

REPLAYS = "/admin/replays"
REPLAY = {"id": "r1", "state": "done", "matched": 3, "replayed": 3, "gone": 1}
REBUILD = {
    "id": "b1", "projection": "daily_summary", "version": 2, "state": "compared", "error": "",
    "progress": {"applied": 9, "total": 9},
    "difference": {"added": 0, "removed": 0, "changed": 1, "examples": [
        {"kind": "changed", "key": {"user_id": "u", "source": "garmin"},
         "columns": {"steps": [1, 2]}},
    ]},
}  # fmt: skip
PATH = "/admin/rebuilds/b1"
PRUNES, LETTERS = "/admin/prunes", "/admin/dlq/replay"
LETTERS_REPLAYED = {"dry_run": False, "replayed": 2, "failed": 0, "next": None, "results": []}
ANSWERS = {
    REPLAYS: REPLAY,
    PRUNES: {"id": "p1", "state": "done", "matched": 3, "deleted": 3, "kept": 0},
    LETTERS: LETTERS_REPLAYED,
}


def run(
    command: click.Command, answers: Mapping[str, object], *arguments: str, said: str = ""
) -> tuple[Result, list[Asked]]:
    with answering(answers.get) as (url, requested):
        result = CliRunner().invoke(command, [*arguments, "--url", url], input=said)
    return result, requested


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        ((), {}),
        (("e1", "e2"), {"ids": ["e1", "e2"]}),
        (("--user", "u", "--type", "sleep"), {"user_id": "u", "type": "sleep"}),
        (("--since", "2026-07-01T00:00:00Z"), {"since": "2026-07-01T00:00:00Z"}),
        (("--partition", "0", "--from", "0", "--to", "0"), {"partition": 0, "from": 0, "to": 0}),
        (("--rate", "200"), {"rate": 200}),
    ],
)
def test_a_replay_is_counted_first_and_asked_for_as_it_was_meant(
    arguments: tuple[str, ...], order: dict[str, object]
):
    result, requested = run(replay, {REPLAYS: REPLAY}, *arguments, said="y\n")
    assert result.exit_code == 0, result.output
    assert [item.body for item in requested] == [{**order, "dry_run": True}, order]
    assert "replay r1 done: 3 of 3 deliveries, 1 no longer in the log" in result.output


def test_a_dry_run_counts_and_does_nothing():
    counted = {**REPLAY, "replayed": 0}
    result, requested = run(replay, {REPLAYS: counted}, "--user", "u", "--dry-run")
    assert [item.body for item in requested] == [{"user_id": "u", "dry_run": True}]
    assert "3 deliveries would be replayed." in result.output


def test_a_dry_run_of_a_prune_counts_by_workflow_and_does_nothing():
    counted = {"id": None, "state": "dry_run", "matched": 3, "by_workflow": {"order": 3}}
    result, requested = run(prune, {"/admin/prunes": counted}, "-w", "order", "--dry-run")
    assert [item.body for item in requested] == [{"workflow": "order", "dry_run": True}]
    assert "order\t3" in result.stdout
    assert "3 instances would be permanently deleted." in result.output


def test_where_nobody_is_asked_nothing_is_counted_first():
    _, requested = run(replay, {REPLAYS: REPLAY}, "--yes")
    assert [item.body for item in requested] == [{}]


@pytest.mark.parametrize("said", ["n\n", ""])
@pytest.mark.parametrize(
    ("command", "path", "arguments", "effect"),
    [
        (replay, REPLAYS, (), "3 deliveries will be replayed."),
        (prune, PRUNES, (), "3 instances will be permanently deleted."),
        (dlq, LETTERS, ("replay", "--all"), "2 dead letters would be replayed."),
    ],
)
def test_nothing_begins_without_a_yes(
    command: click.Command, path: str, arguments: tuple[str, ...], effect: str, said: str
):
    result, requested = run(command, {path: ANSWERS[path]}, *arguments, said=said)
    assert (result.exit_code, len(requested)) == (2, 1)
    assert f"expected --yes, or a terminal to confirm at, found neither: {effect}" in result.output
    result, requested = run(command, {path: ANSWERS[path]}, *arguments, said="y\n")
    assert (result.exit_code, len(requested)) == (0, 2)


def test_a_no_at_a_terminal_is_no_misuse(monkeypatch: pytest.MonkeyPatch):
    terminal = StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(click.Abort):
        confirm("3 deliveries will be replayed.", "Continue?")


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_dead_letters_are_replayed_page_by_page_and_one_that_failed_fails_the_command(
    json_flag: tuple[str, ...],
):
    row = {"partition": 0, "topic": "webhooks"}
    pages = iter([
        {**LETTERS_REPLAYED, "next": {"partition": 0, "offset": 2},
         "results": [{**row, "offset": 1, "ok": True, "detail": ""}]},
        {**LETTERS_REPLAYED, "replayed": 0, "failed": 1,
         "results": [{**row, "offset": 3, "ok": False, "detail": "expired"}]},
    ])  # fmt: skip
    with answering(lambda _: next(pages)) as (url, requested):
        arguments = ["replay", "--all", "--yes", "--reason", "r", *json_flag, "--url", url]
        result = CliRunner().invoke(dlq, arguments)
    assert result.exit_code == 1
    order = {"all": True, "reason": "r", "dry_run": False}
    afters = [None, {"partition": 0, "offset": 2}]
    assert [item.body for item in requested] == [{**order, "after": after} for after in afters]
    if json_flag:
        printed = json.loads(result.stdout)
        assert (printed["replayed"], printed["failed"], len(printed["results"])) == (2, 1, 2)
        assert printed.keys() == {"dry_run", "replayed", "failed", "results"}
    else:
        assert "2 replayed so far" in result.stderr
        assert "2 replayed, 1 not." in result.stderr


def test_a_replay_that_was_begun_before_is_followed_to_its_end():
    result, requested = run(replay, {f"{REPLAYS}/r%2F1": REPLAY}, "--follow", "r/1", "--json")
    assert json.loads(result.stdout) == REPLAY
    assert [item.path for item in requested] == [f"{REPLAYS}/r%2F1"]


def test_one_that_failed_fails_the_command():
    failed = {**REPLAY, "state": "failed", "replayed": 1}
    result, _ = run(replay, {f"{REPLAYS}/r1": failed}, "--follow", "r1")
    assert result.exit_code == 1
    assert "replay r1 failed: 1 of 3" in result.output
    failed = {**REBUILD, "state": "failed", "error": "no such table"}
    result, _ = run(rebuild, {PATH: failed}, "--show", "b1")
    assert result.exit_code == 1
    assert "no such table" in result.output


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (("daily_summary",), "/admin/rebuilds", {"projection": "daily_summary", "dry_run": False}),
        (
            ("workflows", "--dry-run"),
            "/admin/rebuilds",
            {"projection": "workflows", "dry_run": True},
        ),
        (("--switch", "b1"), f"{PATH}/switch", {}),
        (("--back", "b1"), f"{PATH}/back", {}),
        (("--show", "b1"), PATH, None),
    ],
)
def test_a_rebuild_is_asked_for_and_shown_with_what_differs(
    arguments: tuple[str, ...], path: str, body: object
):
    result, requested = run(rebuild, {path: REBUILD}, *arguments)
    assert result.exit_code == 0, result.output
    assert [(item.path, item.body) for item in requested] == [(path, body)]
    assert "compared; 0 rows added, 0 removed, 1 changed" in result.output
    assert "changed\tu/garmin\tsteps\t1\t2" in result.stdout


def test_a_rebuild_for_programs_is_what_the_route_answers():
    result, _ = run(rebuild, {PATH: REBUILD}, "--show", "b1", "--json")
    assert json.loads(result.stdout) == REBUILD


@pytest.mark.parametrize(
    ("command", "arguments", "wrong"),
    [
        (rebuild, (), "expected one of PROJECTION"),
        (rebuild, ("daily_summary", "--switch", "b1"), "expected one of PROJECTION"),
        (rebuild, ("--switch", "b1", "--dry-run"), "expected --dry-run with a PROJECTION"),
        (replay, ("--follow", "r1", "--user", "u"), "found user_id as well"),
        (prune, ("--follow", "p1", "--workflow", "order"), "found workflow as well"),
        (replay, ("--rate", "0"), "--rate"),
        (replay, ("--partition", "x"), "--partition"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused_before_anything_is_asked(
    command: click.Command, arguments: tuple[str, ...], wrong: str
):
    result, requested = run(command, {}, *arguments)
    assert (result.exit_code, requested) == (2, [])
    assert wrong in result.output
