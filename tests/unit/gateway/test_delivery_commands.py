"""Goal: what is printed of deliveries is whole in a pipe, and fits a terminal without a split id.

Method: the command speaks to a real server on loopback, which gives what a gateway would.
"""

import base64

import pytest
from click.testing import CliRunner, Result

from headwater.gateway.cli.deliveries import LISTED, deliveries
from headwater.gateway.cli.operate import dlq, trace_rows
from headwater.gateway.cli.terminal import columns_to_drop, show_rows
from tests.fakes.json_server import answering

EVENT = "5f1d7a84b2c9e03f6a1b8d7c4e2f9a60"
ROW = {
    "received_at": "2026-07-01T22:10:00.123Z", "request_id": "01JZ2Y0W8M3V9Q6T5R4E3W2Q1A",
    "event_id": EVENT, "source": "terra", "type": "daily", "subject": "s", "user_id": "user_amara",
    "status": "dead", "reason": "no_connection_for_terra_user", "rows": 0, "rejected": 0,
}  # fmt: skip
REFUSED = {**ROW, "event_id": "", "status": "refused", "reason": "invalid_signature:stale"}
HOP = {"stage": "dead", "at_ms": 1_782_900_000_000, "position": "webhooks/3@17", "detail": "why"}
WHOLE = {
    "outcome": ROW,
    "journeys": [{"hops": [HOP]}, {"hops": [HOP, {**HOP, "stage": "normalized"}]}],
    "copies": [],
    "effects": [
        {"name": "nightly", "workflow": "report", "instance_id": "i-1", "event_type": None,
         "at": "2026-07-01T22:10:00Z"},
        {"name": "tell", "workflow": "report", "instance_id": "i-1", "event_type": "told",
         "at": "2026-07-01T22:10:00Z"},
    ],
    "rows": [{"table": "daily_summary", "key": {"user_id": "u", "source": "garmin"},
              "columns": ["steps", "strain"]}],
    "dead_letters": [],
}  # fmt: skip


def run(answer: object, *arguments: str) -> tuple[Result, str]:
    with answering(lambda _: answer) as (url, requested):
        result = CliRunner().invoke(deliveries, [*arguments, "--url", url])
    assert result.exit_code == 0, result.output
    return result, requested[0].path


def test_a_listing_asks_for_what_is_named_and_is_whole_in_a_pipe() -> None:
    flags = ("--user", "u", "--type", "daily", "--refused", "--since", "2026-07-01T00:00:00Z")
    result, requested = run({"rows": [ROW, REFUSED], "cursor": "next"}, "list", *flags)
    for part in ("user_id=u", "type=daily", "status=refused", "since=2026-07-01", "limit=50"):
        assert part in requested
    header, first, second = result.stdout.splitlines()
    assert header.split("\t")[:3] == ["received_at", "id", "status"]
    assert first.split("\t")[1] == EVENT
    assert second.split("\t")[1] == REFUSED["request_id"]
    assert ROW["reason"] in first
    assert "--after next" in result.stderr


def test_the_url_of_the_workflow_service_names_the_gateway_too() -> None:
    with answering(lambda _: {"rows": [], "cursor": None}) as (url, requested):
        named = {"HEADWATER_URL": f"{url}/api/workflows/"}
        assert CliRunner().invoke(deliveries, ["list"], env=named).exit_code == 0
    assert requested[0].path.startswith("/admin/deliveries")


def test_a_delivery_is_shown_with_all_that_came_of_it() -> None:
    result, requested = run({"delivery": WHOLE}, "show", "webhooks/3@17")
    assert requested == "/admin/deliveries/3@17"
    for part in ("trace 1 of 2", "trace 2 of 2", "report/i-1", "starts it", "sends told"):
        assert part in result.stdout
    assert "daily_summary\tu/garmin\tsteps, strain" in result.stdout
    assert "# copies" not in result.stdout


def test_a_body_is_printed_byte_for_byte() -> None:
    body = b'{"a":  1}\n\xff'
    answer = {"delivery": WHOLE, "body": base64.b64encode(body).decode()}
    result, requested = run(answer, "show", EVENT, "--body")
    assert requested.endswith("?body=true")
    assert result.stdout_bytes == body


def test_a_refused_request_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = run({"refusal": {"code": "invalid_signature", "reason": "stale"}}, "show", "r")
    assert "# refused" in result.stdout
    assert "reason\tstale" in result.stdout


def test_columns_drop_out_by_rank_and_ids_are_never_split(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["id", "user", "message"]
    rows = [{"id": EVENT, "user": "user_amara", "message": "why " * 30}]
    assert columns_to_drop(rows, columns, ("user",), 80) == []
    assert columns_to_drop(rows, columns, ("user",), 60) == ["user"]
    assert columns_to_drop(rows, columns, (), 20) == []
    for width in (60, 80, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        left_out = show_rows(
            rows, dict.fromkeys(columns, False), title=None, styles={}, drops=("user",)
        )
        shown = capsys.readouterr().out
        assert EVENT in shown
        assert ("user_amara" in shown) is (not left_out)
        assert max(map(len, shown.splitlines())) <= width


def test_a_terminal_of_80_columns_shows_what_a_delivery_is():
    rows = [{name: str(({"id": EVENT} | ROW)[name]) for name in LISTED.names}]
    left_out = columns_to_drop(rows, LISTED.names, LISTED.drops, 80)
    assert not {"id", "status", "type", "reason"} & set(left_out)


def test_the_place_of_a_dead_letter_is_listed_as_other_commands_take_it():
    letter = {"partition": 3, "offset": 17, "reason": "no_connection", "message": "why"}
    with answering(lambda _: {"rows": [letter], "cursor": None}) as (url, _):
        result = CliRunner().invoke(dlq, ["list", "--url", url])
    names, values = (line.split("\t") for line in result.stdout.splitlines())
    assert dict(zip(names, values, strict=True))["position"] == "3/17"


def test_to_replay_all_without_a_terminal_takes_yes():
    row = {"partition": 0, "offset": 1, "topic": "webhooks", "ok": True, "detail": ""}
    page = {"replayed": 2, "failed": 0, "results": [row, row], "next": None}
    with answering(lambda _: page) as (url, requested):
        result = CliRunner().invoke(dlq, ["replay", "--all", "--url", url])
        assert "expected --yes, or a terminal" in result.output
        assert "2 dead letters would be replayed" in result.output
        assert (result.exit_code, len(requested)) == (2, 1)
        assert CliRunner().invoke(dlq, ["replay", "--all", "--yes", "--url", url]).exit_code == 0


def test_times_of_a_journey_end_in_z():
    assert [row["at"] for row in trace_rows([HOP])] == ["2026-07-01T10:00:00.000Z"]
