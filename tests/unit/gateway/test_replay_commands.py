"""Goal: operations are ordered as they were meant, after a yes, and their results are printed.

Method: the commands speak to a real server on loopback, which gives what a gateway would.
"""

import json
from collections.abc import Mapping

import click
import pytest
from click.testing import CliRunner, Result

from headwater.gateway.cli.instances import instances
from headwater.gateway.cli.operate import dlq
from headwater.gateway.cli.operations import prune, rebuild, replay
from headwater.gateway.cli.users import user
from headwater.processors.runs.lifecycle import ACTIONS
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
LETTER = {"partition": 0, "offset": 1, "topic": "webhooks", "ok": True, "detail": ""}
LETTERS_REPLAYED = {
    "dry_run": False, "replayed": 2, "failed": 0, "next": None, "results": [LETTER, LETTER],
}  # fmt: skip
USER, WIPE = "/admin/user/u", "/admin/user/u/wipe"
WIPED = {
    "ok": True, "id": "w1", "wipe_id": "w1", "state": "done", "done": True,
    "deleted": {"raw_events": 2, "blobs": 1},
}  # fmt: skip
BULK = "/api/workflows/workflows/order/bulk"
ANSWERS = {
    REPLAYS: REPLAY,
    PRUNES: {"id": "p1", "state": "done", "matched": 3, "deleted": 3, "kept": 0},
    LETTERS: LETTERS_REPLAYED,
    USER: {"user_id": "u", "counts": {"raw_events": 2, "sleep": 0}},
    WIPE: WIPED,
    BULK: {"instances": [{"id": "a", "status": "waiting"}], "hasNextPage": False},
}
ALL_OF_ORDER = ("-w", "order", "--status", "waiting")
#: Commands that change many things, with what they would change.
ORDERS = [
    (replay, ("--all",), "3 deliveries would be replayed."),
    (prune, (), "3 instances would be permanently deleted."),
    (dlq, ("replay", "--all"), "2 dead letters would be replayed."),
    (user, ("wipe", "u"), "u has: 2 of raw_events; all of it would be permanently deleted."),
    *(
        (instances, (action.name, *ALL_OF_ORDER), "1 instance would be ")
        for action in ACTIONS
        if action.bulk
    ),
]  # fmt: skip


def run(
    command: click.Command, answers: Mapping[str, object], *arguments: str, said: str = ""
) -> tuple[Result, list[Asked]]:
    with answering(answers.get) as (url, requested):
        result = CliRunner().invoke(command, [*arguments, "--url", url], input=said)
    return result, requested


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        (("--all",), {"all": True}),
        (("e1", "e2"), {"ids": ["e1", "e2"]}),
        (("--user", "u", "--type", "sleep"), {"user_id": "u", "type": "sleep"}),
        (("--since", "2026-07-01T00:00:00Z"), {"since": "2026-07-01T00:00:00Z"}),
        (("--partition", "0", "--from", "0", "--to", "0"), {"partition": 0, "from": 0, "to": 0}),
        (("--all", "--rate", "200"), {"all": True, "rate": 200}),
        (("--user", ""), {"user_id": ""}),
    ],
)
def test_a_replay_is_counted_first_and_asked_for_as_it_was_meant(
    arguments: tuple[str, ...], order: dict[str, object]
):
    result, requested = run(replay, {REPLAYS: REPLAY}, *arguments)
    assert [item.body for item in requested] == [{**order, "dry_run": True}]
    result, requested = run(replay, {REPLAYS: REPLAY}, *arguments, "--yes")
    assert result.exit_code == 0, result.output
    assert [item.body for item in requested] == [order]
    assert "replay r1 done: 3 of 3 deliveries, 1 no longer in the log" in result.output


def test_a_dry_run_counts_and_does_nothing():
    counted = {**REPLAY, "replayed": 0}
    result, requested = run(replay, {REPLAYS: counted}, "--user", "u", "--dry-run")
    assert [item.body for item in requested] == [{"user_id": "u", "dry_run": True}]
    assert "3 deliveries would be replayed." in result.output


def test_a_dry_run_of_a_prune_counts_by_workflow_and_does_nothing():
    counted = {"id": None, "state": "dry_run", "matched": 3, "deleted": 0, "kept": 0}
    counted["by_workflow"] = {"order": 3}
    result, requested = run(prune, {"/admin/prunes": counted}, "-w", "order", "--dry-run")
    assert [item.body for item in requested] == [{"workflow": "order", "dry_run": True}]
    assert "order\t3" in result.stdout
    assert "3 instances would be permanently deleted." in result.output


def test_where_nobody_is_asked_nothing_is_counted_first():
    _, requested = run(replay, {REPLAYS: REPLAY}, "--all", "--yes")
    assert [item.body for item in requested] == [{"all": True}]


def test_a_replay_without_a_match_says_so():
    nothing = {**REPLAY, "id": None, "matched": 0, "replayed": 0, "gone": 0, "instance": None}
    result, _ = run(replay, {REPLAYS: nothing}, "--user", "u", "--yes")
    assert (result.exit_code, result.stderr) == (0, "No delivery matches.\n")


def begun(requested: list[Asked]) -> list[Asked]:
    """Return the requests that change something: the others count."""
    orders = [item for item in requested if isinstance(item.body, dict)]
    return [
        item
        for item in orders
        if not {"dry_run", "dryRun"} & {n for n, on in item.body.items() if on}
    ]


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
@pytest.mark.parametrize(("command", "arguments", "effect"), ORDERS)
def test_nothing_begins_without_a_yes_at_a_terminal(
    command: click.Command,
    arguments: tuple[str, ...],
    effect: str,
    json_flag: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
):
    for said in ("", "y\n"):  # What comes over a pipe was not meant as an answer.
        result, requested = run(command, ANSWERS, *arguments, *json_flag, said=said)
        assert (result.exit_code, begun(requested)) == (2, [])
        refusal = f"expected --yes, or a terminal to confirm at, found neither: {effect}"
        assert refusal in result.stderr
    result, requested = run(command, ANSWERS, *arguments, *json_flag, "--yes")
    assert (result.exit_code, len(requested)) == (0, 1)
    assert begun(requested) == requested
    monkeypatch.setattr(
        "click.testing._NamedTextIOWrapper.isatty", lambda stream: stream.name == "<stdin>"
    )
    result, requested = run(command, ANSWERS, *arguments, *json_flag, said="n\n")
    assert (result.exit_code, begun(requested)) == (1, [])
    result, requested = run(command, ANSWERS, *arguments, *json_flag, said="y\n")
    assert (result.exit_code, len(begun(requested))) == (0, 1)
    assert effect in result.stderr


@pytest.mark.parametrize(("command", "arguments", "effect"), ORDERS)
def test_a_dry_run_states_what_would_be_changed(
    command: click.Command, arguments: tuple[str, ...], effect: str
):
    result, requested = run(command, ANSWERS, *arguments, "--dry-run")
    assert (result.exit_code, begun(requested)) == (0, [])
    assert effect in result.stderr
    assert not run(command, ANSWERS, *arguments, "--dry-run", "--json")[0].stderr


def test_a_wipe_is_followed_to_its_end_and_keeps_the_number_of_files():
    running = {**WIPED, "state": "running", "done": False}
    ended = {**WIPED, "deleted": {"raw_events": 3}}
    answers = {WIPE: running, f"{WIPE}/w1": ended}
    result, _ = run(user, answers, "wipe", "u", "--yes")
    assert "raw_events\t3" in result.stdout
    assert "blobs\t1" in result.stdout
    assert "wipe w1 done: 4 records deleted" in result.stderr
    result, requested = run(user, answers, "wipe", "u", "--follow", "w1", "--json")
    assert json.loads(result.stdout) == ended
    assert not begun(requested)
    result, _ = run(user, answers, "wipe", "u", "--yes", "--detach")
    assert "wipe w1 running: 3 records deleted so far; it continues by itself" in result.stderr


def test_a_wipe_names_the_connections_that_terra_may_still_have():
    running = {**WIPED, "state": "running", "disconnected": 1, "still_connected": ["t-1", "t-2"]}
    ended = {**WIPED, "disconnected": 0, "still_connected": []}
    result, _ = run(user, {WIPE: running, f"{WIPE}/w1": ended}, "wipe", "u", "--yes")
    assert "Terra did not confirm the end of t-1, t-2: disconnect them" in " ".join(
        result.stderr.split()
    )
    result, _ = run(user, {WIPE: running, f"{WIPE}/w1": ended}, "wipe", "u", "--yes", "--json")
    assert json.loads(result.stdout)["still_connected"] == ["t-1", "t-2"]


@pytest.mark.parametrize(("list_read", "warns"), [(True, False), (False, True), (None, False)])
def test_a_wipe_tells_that_the_list_of_terra_could_not_be_read(
    list_read: bool | None,
    warns: bool,
):
    running = {**WIPED, "state": "running", "done": False, "terra_list_read": list_read}
    answers = {WIPE: running, f"{WIPE}/w1": {**WIPED, "terra_list_read": None}}
    result, _ = run(user, answers, "wipe", "u", "--yes")
    assert ("Terra's list could not be read" in " ".join(result.stderr.split())) is warns
    result, _ = run(user, answers, "wipe", "u", "--yes", "--json")
    assert json.loads(result.stdout)["terra_list_read"] is list_read


STARTED = {"ok": True, "days": 30, "connections": 2, "requests": 8}


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (("import", "u", "--days", "30"), {"days": 30}, "30 days of 2 connections requested"),
        (("reconcile", "u"), {}, "The connections are being compared"),
        (("disconnect", "u", "--yes"), {}, "2 connections being ended"),
    ],
)
def test_an_operation_for_a_user_is_started_and_names_how_to_follow_it(
    arguments: tuple[str, ...], body: dict[str, object], said: str
):
    answer = {**STARTED, "instance": {"workflow": "terra-x", "id": "i-1"}}
    path = f"{USER}/{arguments[0]}"
    result, requested = run(user, {path: answer}, *arguments)
    assert result.exit_code == 0, result.output
    assert f"{said}; follow it: headwater instances get terra-x/i-1" in " ".join(
        result.stderr.split()
    )
    assert [(item.path, item.body) for item in requested] == [(path, body)]


def test_connections_are_ended_after_a_yes():
    active = {"terra_user_id": "t-1", "provider": "GARMIN", "active": True}
    closed = {"terra_user_id": "t-2", "provider": "OURA", "active": False}
    result, requested = run(user, {USER: {"connections": [active, closed]}}, "disconnect", "u")
    assert result.exit_code == 2
    assert "u has GARMIN (t-1); all would end." in " ".join(result.output.split())
    assert [item.path for item in requested] == [USER]


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_dead_letters_are_replayed_page_by_page_and_one_that_failed_fails_the_command(
    json_flag: tuple[str, ...],
):
    pages = iter([
        {**LETTERS_REPLAYED, "next": {"partition": 0, "offset": 2}},
        {**LETTERS_REPLAYED, "replayed": 0, "failed": 1,
         "results": [{**LETTER, "ok": False, "detail": "expired"}]},
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
        assert (printed["replayed"], printed["failed"], len(printed["results"])) == (2, 1, 3)
        assert printed.keys() == {"dry_run", "replayed", "failed", "results"}
    else:
        assert result.stderr == "replay: 2 done\nreplay: 2 done, 1 refused.\n"


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


VERIFIED = {**REBUILD, "id": "v1", "state": "verified", "version": None}
EQUAL = {**VERIFIED, "difference": {"added": 0, "removed": 0, "changed": 0, "examples": []}}


def test_a_verification_fails_if_rows_differ_and_says_how_to_repair_them():
    result, requested = run(rebuild, {"/admin/rebuilds": VERIFIED}, "--verify", "daily_summary")
    assert result.exit_code == 1
    assert requested[0].body == {"projection": "daily_summary", "verify": True}
    assert "0 rows missing in Postgres, 0 that should not be there, 1 with" in result.output
    assert "headwater rebuild daily_summary" in result.output
    assert "changed\tu/garmin\tsteps\t1\t2" in result.stdout
    result, _ = run(rebuild, {"/admin/rebuilds": EQUAL}, "--verify", "daily_summary")
    assert result.exit_code == 0
    assert "daily_summary: the rows in Postgres equal those in Kafka" in result.output


def test_all_projections_are_verified_one_after_the_other():
    answer = {**EQUAL, "projections": ["users", "workflows"]}
    result, requested = run(rebuild, {"/admin/rebuilds": answer}, "--verify", "--json")
    assert result.exit_code == 0
    assert [item["state"] for item in json.loads(result.stdout)] == ["verified"] * 2
    bodies = [item.body for item in requested if item.body]
    assert [body["projection"] for body in bodies] == ["users", "workflows"]


def test_a_rebuild_for_programs_is_what_the_route_answers():
    result, _ = run(rebuild, {PATH: REBUILD}, "--show", "b1", "--json")
    assert json.loads(result.stdout) == REBUILD


@pytest.mark.parametrize(
    ("command", "arguments", "wrong"),
    [
        (rebuild, (), "expected one of PROJECTION"),
        (rebuild, ("daily_summary", "--switch", "b1"), "expected one of PROJECTION"),
        (rebuild, ("--switch", "b1", "--dry-run"), "expected --dry-run with a PROJECTION"),
        (rebuild, ("--switch", "b1", "--verify"), "expected --verify with a PROJECTION or alone"),
        (replay, ("--follow", "r1", "--user", "u"), "found user_id as well"),
        (prune, ("--follow", "p1", "--workflow", "order"), "found workflow as well"),
        (replay, ("--rate", "0"), "--rate"),
        (replay, (), "found neither; usual cause: an empty variable"),
        (replay, ("--yes", "--json"), "found neither"),
        (replay, ("--rate", "5", "--yes"), "found neither"),
        (replay, ("--all", "--user", "u", "--yes"), "found both"),
        (replay, ("--partition", "x"), "--partition"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused_before_anything_is_asked(
    command: click.Command, arguments: tuple[str, ...], wrong: str
):
    result, requested = run(command, {}, *arguments)
    assert (result.exit_code, requested) == (2, [])
    assert wrong in result.output
