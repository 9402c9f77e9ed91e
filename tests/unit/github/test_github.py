"""GitHub's pushes and pull requests as rows: the package headwater-github."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.columns import merge
from headwater.processors.providers.results import Failed, Normalized, NormalizeResult, Skipped
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import Row
from headwater_github.provider import GITHUB
from headwater_github.tables import PULL_REQUESTS, PUSHES
from tests.unit.github.hooks import ACTIONS, ZEROS, pull_request, push

ROOT = Path(__file__).resolve().parents[3]
RECEIVED_MS = 1_782_900_123_456


def event(type_: str, body: object, number: int = 1) -> WebhookAdmitted:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    routing = GITHUB.read(raw, {"x-github-event": type_})
    return WebhookAdmitted(
        event_id=f"e{number}",
        request_id="r",
        source="github",
        type=routing.type,
        subject=routing.subject,
        reference=None,
        sent_at_ms=RECEIVED_MS + number,
        updated_at_ms=0,
        received_at_ms=RECEIVED_MS,
        body=raw,
        user_id=None,
        partition=0,
        offset=number,
        admitted_at_ms=RECEIVED_MS,
    )


def normalized(type_: str, body: object, number: int = 1) -> NormalizeResult:
    return GITHUB.normalize(event(type_, body, number))


def row(type_: str, *bodies: object) -> Row:
    """The one row that deliveries come to, in this order."""
    actual: Row | None = None
    for number, body in bodies if isinstance(bodies[0], tuple) else enumerate(bodies):
        result = normalized(type_, body, number)
        assert isinstance(result, Normalized), result
        (update,) = result.updates
        assert actual is None or actual.key == update.key
        actual = merge(actual, update)
    assert actual is not None
    return actual


def columns(type_: str, *bodies: object) -> dict[str, Any]:
    table = PUSHES if type_ == "push" else PULL_REQUESTS
    return dict(zip(table.column_names, row(type_, *bodies).values, strict=True))


def test_the_package_is_installed_and_is_small():
    assert installed_providers()["github"] is GITHUB
    assert {PUSHES, PULL_REQUESTS} <= set(ALL_TABLES)
    lines = [
        line
        for path in (ROOT / "headwater-github").rglob("*.py")
        if "build" not in path.parts
        for line in path.read_text("utf-8").splitlines()
        if line.strip()
    ]
    assert 100 < len(lines) < 200


def test_a_push_is_a_row():
    result = row("push", push())
    assert result.key == ("4242", "refs/heads/main", "b" * 40, "2026-07-01T10:00:00+00:00")
    assert columns("push", push()) == {
        "user_id": "github:77",
        "pusher": "amara-mill",
        "repository": "mill/wheel",
        "before": "a" * 40,
        "created": False,
        "deleted": False,
        "forced": False,
        "commits": 1,
    }


def test_a_branch_that_is_deleted_is_a_push_without_commits():
    removed = push(after=ZEROS, deleted=True, commits=[], head_commit=None)
    assert (columns("push", removed)["deleted"], columns("push", removed)["commits"]) == (True, 0)


def test_a_branch_that_comes_back_to_where_it_was_is_another_push():
    later = push(repository={"id": 4242, "full_name": "mill/wheel", "pushed_at": 1_782_900_001})
    assert row("push", push()).key != row("push", later).key


@pytest.mark.parametrize("pushed_at", ["2026-07-01T10:00:00Z", 1_782_900_000])
def test_both_forms_of_the_time_of_a_push_are_one(pushed_at: object):
    hook = push(repository={"id": 4242, "full_name": "mill/wheel", "pushed_at": pushed_at})
    assert row("push", hook).key[-1] == "2026-07-01T10:00:00+00:00"


def test_a_push_without_a_time_has_that_of_its_arrival():
    hook = push(repository={"id": 4242, "full_name": "mill/wheel"})
    assert row("push", hook).key[-1] == "2026-07-01T10:02:03+00:00"


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_upon_a_pull_request_brings_its_row(action: str):
    result = columns("pull_request", pull_request(action))
    assert result["last_action"] == action
    assert (result["author"], result["state"], result["title"]) == (
        "amara-mill",
        "open",
        "Turn the wheel",
    )
    assert json.loads(result["labels"]) == ["water", "über"]
    assert row("pull_request", pull_request(action)).key == ("4242", "5")


def test_of_two_deliveries_that_cross_the_one_that_github_changed_later_stays():
    hooks = list(
        enumerate(
            [
                pull_request("opened"),
                pull_request("edited", title="Turn it", updated_at="2026-07-01T11:00:00Z"),
                pull_request(
                    "closed",
                    title="Turn it",
                    state="closed",
                    labels=[],
                    updated_at="2026-07-01T12:00:00Z",
                    closed_at="2026-07-01T12:00:00Z",
                    merged_at="2026-07-01T12:00:00Z",
                ),
            ]
        )
    )
    rows = [row("pull_request", *order) for order in permutations(hooks)]
    assert all(one == rows[0] for one in rows)
    result = dict(zip(PULL_REQUESTS.column_names, rows[0].values, strict=True))
    assert (result["title"], result["state"], result["labels"]) == ("Turn it", "merged", "[]")
    assert result["merged_at"] == "2026-07-01T12:00:00+00:00"


def test_an_account_that_is_gone_leaves_its_columns_open():
    assert columns("pull_request", pull_request(user=None))["user_id"] is None


def test_a_body_in_a_form_is_read_as_well():
    form = urlencode({"payload": json.dumps(push())}).encode()
    assert columns("push", form) == columns("push", push())


@pytest.mark.parametrize(
    ("type_", "body", "fault"),
    [
        ("push", b"[]", "Expected `object`"),
        ("push", b"payload=%7B", "truncated"),
        ("push", push(ref=None), "ref: expected a text or number, found none"),
        ("push", push(ref="x" * 300), "ref: expected at most 256 characters, found 300"),
        ("push", push(commits=7), "commits: expected a list, found 7"),
        ("push", push(repository={"id": 1, "pushed_at": "soon"}), "repository.pushed_at: expected"),
        ("push", push(repository={"id": 1, "pushed_at": True}), "repository.pushed_at: expected"),
        ("push", push(repository={"id": [1]}), "repository.id: expected a text or number"),
        ("pull_request", pull_request(number=None), "pull_request.number: expected"),
        ("pull_request", pull_request(merged_at="now"), "pull_request.merged_at: expected a time"),
        ("pull_request", pull_request(labels=None), "pull_request.labels: expected a list"),
        ("", push(), "x-github-event: expected a text or number, found none"),
    ],
)
def test_what_cannot_be_read_is_named(type_: str, body: object, fault: str):
    with pytest.raises(MalformedPayload, match=fault.replace("[", r"\[")):
        normalized(type_, body)


def test_a_value_of_another_type_names_its_column():
    result = normalized("pull_request", pull_request(additions="many"))
    assert isinstance(result, Failed)
    assert result.detail == "expected pull_requests.additions to be int, found 'many'"


def test_a_push_of_no_repository_belongs_to_nobody_and_other_events_are_skipped():
    hook = {name: value for name, value in push().items() if name != "repository"}
    assert isinstance(normalized("push", hook), Failed)
    assert normalized("membership", {"scope": "team"}) == Skipped("unknown_type:membership")


def test_of_two_changes_of_one_second_closing_and_merging_win_over_opening():
    merged = pull_request(
        "closed",
        state="closed",
        closed_at="2026-07-01T12:00:00Z",
        merged_at="2026-07-01T12:00:00Z",
        updated_at="2026-07-01T12:00:00Z",
    )
    labeled = pull_request("labeled", updated_at="2026-07-01T12:00:00Z")
    closed = pull_request("closed", state="closed", updated_at="2026-07-01T12:00:00Z")
    reopened = pull_request("reopened", updated_at="2026-07-01T12:00:01Z")
    for hooks, state in (
        ([merged, labeled], "merged"),
        ([closed, labeled], "closed"),
        ([merged, closed, labeled], "merged"),
        ([closed, reopened], "open"),
    ):
        for order in permutations(enumerate(hooks)):
            assert columns("pull_request", *order)["state"] == state
