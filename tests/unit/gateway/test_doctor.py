"""`headwater doctor`: what is found of a user in five steps, and of the system; exit codes tell."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headwater.gateway.cli import findings
from headwater.gateway.cli.doctor import doctor
from headwater.gateway.cli.user_findings import user_findings
from headwater.monitoring.address import Address
from headwater.monitoring.endpoint import monitoring
from headwater.schemas.deployments import DeploymentCreated
from tests.fakes.json_server import Asked, answering

NOW = datetime(2026, 7, 1, tzinfo=UTC)
ACTIVE = {"terra_user_id": "t-1", "provider": "WHOOP", "active": True, "deactivated_at": None}
GONE = {**ACTIVE, "active": False, "deactivated_at": "2026-06-01T00:00:00Z"}
DEPLOYED = DeploymentCreated(
    id="dep_1", app="shop", digest="d", size=3, offset=0, workflows=(), by="admin:1", at_ms=0
)
JOURNEY = {
    "request_id": "01JZ",
    "ended_at": "2026-07-01T22:10:00Z",
    "hops": [{"stage": "dead", "detail": "no_usable_record"}],
}


def verified(days: int = 0, projection: str = "users", **numbers: int) -> dict[str, Any]:
    return {
        "projection": projection,
        "version": None,
        "state": "verified",
        "error": "",
        "difference": {"added": 0, "removed": 0, "changed": 0, **numbers},
        "created_at": (NOW - timedelta(days=days)).isoformat(),
    }


def failed(days: int = 0, **changes: object) -> dict[str, Any]:
    return {**verified(days), "state": "failed", "error": "it is broken", **changes}


def verification(
    *rebuilds: dict[str, Any], scheduled: tuple[str, ...] = ("users",)
) -> findings.Finding:
    return findings.verification(rebuilds, NOW, scheduled)


DEAD = {
    "event_id": "e1",
    "subject": "t-1",
    "source": "terra",
    "reason": "no_usable_record",
    "status": "dead",
}
EARLY = {**DEAD, "event_id": "e2", "reason": "no_connection_for_terra_user"}
GARMIN = {**ACTIVE, "terra_user_id": "t-2", "provider": "GARMIN"}


DAYS_AGO_91 = (NOW - timedelta(days=91)).isoformat()


def api_key(**changes: object) -> dict[str, Any]:
    usual = {
        "name": "ci",
        "createdAt": DAYS_AGO_91,
        "lastUsedAt": (NOW - timedelta(days=1)).isoformat(),
        "expiresAt": (NOW + timedelta(days=1)).isoformat(),
    }
    return usual | changes


def rows_of(*sources: str) -> list[dict[str, Any]]:
    return [
        {"source": source, "rows": {"daily_summary": 3}, "updated_at": "2026-07-01T00:00:00Z"}
        for source in sources
    ]


def user(
    connections: object = (ACTIVE,),
    waiting: object = (),
    dead: object = (),
    sources: object = (),
) -> dict[str, Any]:
    return {
        "user_id": "user_amara",
        "connections": list(connections),
        "counts": {"daily_summary": 3, "raw_events": 9, "dead_letters": 0},
        "sources": list(sources),
        "last_outcomes": [],
        "waiting": list(waiting),
        "dead": list(dead),
    }


def look(
    known: dict[str, Any], *more: str, **others: object
) -> tuple[Result, list[Any], list[Asked]]:
    answers: dict[str, object] = {
        "/admin/user/user_amara": known,
        "/admin/traces": {"traces": others.get("traces", [])},
        "/v1/me": others.get("me"),
    }
    with answering(answers.get) as (url, requested):
        result = CliRunner().invoke(doctor, ["user", "user_amara", "--url", url, "--json", *more])
    return result, json.loads(result.stdout)["findings"] if result.stdout else [], requested


def test_a_user_whose_days_arrive_is_well():
    known = user([ACTIVE, GARMIN], sources=rows_of("whoop", "garmin_body"))
    result, steps, requested = look(known)
    assert result.exit_code == 0, result.output
    assert [step["check"][0] for step in steps] == ["1", "2", "3", "4", "5", "6"]
    assert {step["state"] for step in steps} == {"ok"}
    assert not any(step["next"] for step in steps)
    assert "WHOOP: 3 rows of daily_summary, last 2026-07-01" in steps[4]["found"]
    assert [item.path.partition("?")[0] for item in requested] == [
        "/admin/user/user_amara",
        "/admin/traces",
    ]
    assert "level=error" in requested[1].path


def test_a_user_of_a_source_without_connections_is_well():
    result, steps, _ = look(user((), sources=rows_of("payco")))
    assert result.exit_code == 0, result.output
    assert {step["state"] for step in steps} == {"ok"}
    assert steps[0]["found"] == "none, and none needed: rows come from payco"
    assert steps[4]["found"] == "payco: 3 rows of daily_summary, last 2026-07-01T00:00:00Z"


def test_a_user_whom_no_part_knows_is_named_so():
    _, steps, _ = look({**user(()), "counts": {"daily_summary": 0, "raw_events": 0}})
    assert (steps[0]["state"], steps[0]["next"]) == ("problem", "check the id, or connect the user")
    assert "unknown" in steps[0]["found"]


@pytest.mark.parametrize(
    ("known", "others", "step", "found", "command"),
    [
        (user(()), {}, 1, "none, now or before", "headwater user reconcile user_amara"),
        (user(()), {}, 2, "not checked", "headwater user reconcile user_amara"),
        # Of one wearable whose days arrive beside one without.
        (
            user((ACTIVE, GARMIN), sources=rows_of("garmin")),
            {},
            5,
            "WHOOP: no rows",
            "headwater user import user_amara --days 365",
        ),
        (user(waiting=[{}, {}]), {}, 3, "2 waiting", "deliveries drain --user user_amara"),
        (
            user(dead=[DEAD, DEAD]),
            {},
            3,
            "2 dead; WHOOP: 2 no_usable_record",
            "headwater deliveries list --status dead --user user_amara",
        ),
        (user(dead=[DEAD, EARLY]), {}, 3, "WHOOP: 1 no_connection", "headwater replay e2"),
        (user(), {"traces": [JOURNEY]}, 4, "1, the newest .* no_usable_record", "trace 01JZ"),
        (user(), {}, 5, "WHOOP: no rows", "headwater user import user_amara --days 365"),
    ],
)
def test_each_step_says_what_it_found_and_the_command_that_comes_next(
    known: dict[str, Any], others: dict[str, Any], step: int, found: str, command: str
):
    result, steps, _ = look(known, **others)
    assert result.exit_code == 1
    reported = steps[step - 1]
    assert reported["state"] != "ok"
    assert command in reported["next"]
    findings_of_it = reported["found"]
    assert all(part in findings_of_it for part in found.split(" .* ")), findings_of_it
    assert "headwater token" not in str(steps)


SILENT = {
    "provider": "whoop",
    "state": "silent",
    "last_day": "2026-06-20",
    "last_delivery_at": "2026-06-21T04:00:00Z",
    "failing_since": None,
}
FAILING = {**SILENT, "state": "failing", "failing_since": "2026-06-22T00:00:00Z"}


@pytest.mark.parametrize(
    ("activity", "state", "code", "found", "command"),
    [
        (SILENT, "warning", 0, "whoop: silent, newest day 2026-06-20, last", "user reconcile"),
        (FAILING, "problem", 1, "an error since 2026-06-22", "POST http://.*/v1/connect"),
    ],
)
def test_a_connection_without_new_data_is_found(
    activity: dict[str, Any], state: str, code: int, found: str, command: str
):
    known = user([ACTIVE], sources=rows_of("whoop")) | {"activity": [activity]}
    result, steps, _ = look(known)
    assert (result.exit_code, steps[5]["state"]) == (code, state)
    assert found in steps[5]["found"]
    assert re.search(command, steps[5]["next"])


UNNAMED = {**GONE, "terra_user_id": "t-3", "provider": None}


@pytest.mark.parametrize(
    ("connections", "found"),
    [
        ((GONE,), "WHOOP until 2026-06-01T00:00:00Z"),
        ((GONE, GARMIN), "GARMIN (t-2), WHOOP until 2026-06-01T00:00:00Z"),
        # Only its end was received.
        ((UNNAMED, GARMIN), "GARMIN (t-2), unknown until 2026-06-01T00:00:00Z"),
    ],
)
def test_a_connection_that_has_ended_is_no_problem(connections: tuple[Any, ...], found: str):
    result, steps, _ = look(user(connections, sources=rows_of("garmin")))
    assert result.exit_code == 0, result.output
    assert (steps[0]["state"], steps[0]["found"]) == ("warning", found)
    assert steps[1]["state"] == "warning"
    assert not any(step["next"] for step in steps)


def test_what_lacks_beside_a_connection_that_has_ended_is_found():
    result, steps, _ = look(user((GONE, GARMIN)))
    assert result.exit_code == 1
    assert (steps[4]["state"], "user import" in steps[4]["next"]) == ("problem", True)


@pytest.mark.parametrize(
    ("connections", "me", "state", "found"),
    [
        ((GONE,), {"connections": [ACTIVE]}, "ok", "Terra has WHOOP"),
        ((GONE,), {"connections": []}, "warning", "Terra has no WHOOP"),
        ((GONE,), {"connections": [GARMIN]}, "warning", "Terra has no WHOOP"),
        ((GONE,), {"connections": [], "reconciled": False}, "unknown", "Terra does not answer"),
        ((), {"connections": []}, "problem", "Terra has no connection"),
        # What is active here, Terra has to have.
        ((ACTIVE, GARMIN), {"connections": [GARMIN]}, "problem", "Terra has no WHOOP"),
        ((GONE, GARMIN), {"connections": []}, "problem", "Terra has no GARMIN, WHOOP"),
    ],
)
def test_with_a_token_terra_is_asked_through_me(
    connections: object, me: object, state: str, found: str
):
    _, steps, requested = look(user(connections), "--token", "abc", me=me)
    assert (steps[1]["state"], found in steps[1]["found"]) == (state, True)
    assert Asked("/v1/me", "Bearer abc") in requested


@pytest.mark.parametrize(("listed", "command"), [([ACTIVE], "user reconcile user_amara"), ([], "")])
def test_a_reconcile_is_the_remedy_if_terra_still_lists_what_has_ended_here(
    listed: list[Any], command: str
):
    _, steps, _ = look(user((GONE,)), "--token", "abc", me={"connections": listed})
    assert steps[0]["state"] == "warning"
    assert steps[0]["next"].endswith(command)
    assert bool(steps[0]["next"]) == bool(command)


def test_an_id_goes_into_commands_quoted():
    known = {**user(waiting=[{}]), "user_id": "x; rm -rf /"}
    reported = user_findings("http://here", known, [], None)[2]
    assert reported.next == "headwater deliveries drain --user 'x; rm -rf /'"


def test_a_system_that_is_away_is_told_part_by_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWATER_POSTGRES", "postgresql://nobody@127.0.0.1:1/none")
    arguments = ["--url", "http://127.0.0.1:1", "--kafka", "127.0.0.1:1", "--json"]
    result = CliRunner().invoke(doctor, arguments)
    assert result.exit_code == 1
    reported = {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}
    for check, remedy in (
        ("gateway", "headwater serve"),
        ("kafka", "start Kafka"),
        ("migrations", "start Postgres"),
    ):
        assert reported[check]["state"] == "problem"
        assert remedy in reported[check]["next"]
    assert {"disk", "certificates", "clock"} <= reported.keys()


def test_processes_of_up_are_checked_where_they_answer_monitors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HEADWATER_POSTGRES", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("HEADWATER_DATA_DIR", str(tmp_path))
    with monitoring(Address("127.0.0.1", 0), "projector", "1") as monitor:
        targets = [
            {"targets": [str(monitor.address)], "labels": {"process": "projector", "name": "p"}},
            {"targets": ["127.0.0.1:1"], "labels": {"process": "gateway"}},
        ]
        (tmp_path / "prometheus-targets.json").write_text(json.dumps(targets))
        arguments = ["--url", "http://127.0.0.1:1", "--kafka", "127.0.0.1:1", "--json"]
        result = CliRunner().invoke(doctor, arguments)
        (finding,) = [
            finding
            for finding in json.loads(result.stdout)["findings"]
            if finding["check"] == "metrics"
        ]
        assert finding["state"] == "warning"
        assert finding["found"] == (
            f"p at {monitor.address}: process: starting; gateway at 127.0.0.1:1: no answer"
        )


@pytest.mark.parametrize(
    "answer", [{}, [7], {"parts": 7, "info": {"version": 1}}, "hello", b"<html>"]
)
def test_another_server_in_the_place_of_the_gateway_is_a_finding(answer: object):
    with answering(lambda _: answer) as (url, _):
        result = CliRunner().invoke(doctor, ["--url", url, "--kafka", "127.0.0.1:1", "--json"])
    reported = {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert reported["gateway"]["state"] == "problem"
    said = reported["gateway"]["found"]
    assert said.startswith(f"expected Headwater at {url}")
    assert "found something else" in said
    assert {"kafka", "migrations", "disk"} <= reported.keys()


def test_keys_that_need_attention_are_warned_of():
    never = [api_key(name=f"key {number}", lastUsedAt=None) for number in range(7)]
    finding = findings.keys([*never, api_key(expiresAt=None)], [], NOW)
    assert (
        "8 API keys; not used for 90 days: key 0, key 1, key 2, key 3, key 4 and 2" in finding.found
    )
    assert "without expiry: ci" in finding.found


def test_what_failed_and_what_was_never_compared_is_named():
    rebuilds = failed(), verified(projection="days", added=1), verified(projection="weeks")
    finding = verification(*rebuilds, scheduled=("users", "days", "weeks", "months"))
    assert "days differed from Kafka at 2026-07-01" in finding.found
    assert "users could not be compared with Kafka at 2026-07-01T00:00: it is bro" in finding.found
    assert "never compared: months" in finding.found


@pytest.mark.parametrize(
    ("finding", "state", "next_"),
    [
        (findings.parts(["pipeline a-1", "projector a-2"]), "ok", ""),
        (findings.parts(["pipeline a-1"]), "problem", "headwater project"),
        (findings.versions("1.0", "1.0", {}), "ok", ""),
        (findings.versions("1.1", "1.0", {}), "warning", "restart"),
        (findings.versions("1.0", "1.0", {"pipeline a": ("webhook",)}), "warning", "restart"),
        (findings.migrations(["0007_wiped"]), "problem", "headwater migrate"),
        (findings.lag({"pipeline": 10_000}), "ok", ""),
        (findings.lag({"pipeline": 10_001}), "warning", "falls"),
        (findings.deployment(None, ""), "ok", ""),
        (findings.deployment(DEPLOYED, ""), "ok", ""),
        (findings.deployment(DEPLOYED, "it is lost"), "problem", "deployments rollback"),
        (findings.refused_records(1), "problem", "projection_errors"),
        (findings.refused_records(None), "unknown", ""),
        (findings.keys([], [], NOW), "ok", ""),
        (findings.keys([api_key()], [], NOW), "ok", ""),
        (findings.keys([api_key(expiresAt=None)], [], NOW), "warning", "rotate --expires 90d"),
        (findings.keys([api_key(lastUsedAt=None)], [], NOW), "warning", "keys revoke"),
        (findings.keys([api_key(lastUsedAt=DAYS_AGO_91)], [], NOW), "warning", "keys revoke"),
        (findings.keys([], ["admin_key"], NOW), "problem", "keys of your own"),
        (findings.clock({}), "unknown", ""),
        (findings.disk("/data", 3 * 1024**3, 20 * 1024**3), "ok", ""),
        (findings.disk("/data", 3 * 1024**3, 40 * 1024**3), "problem", "du -sh /data"),
        (findings.disk("/data", 1024**3, 2 * 1024**3), "problem", "du -sh /data"),
        (findings.monitored({"pipeline at 127.0.0.1:9600": "ready"}), "ok", ""),
        (findings.monitored({"pipeline at 127.0.0.1:9600": "no answer"}), "warning", "logs"),
        (findings.clock({"postgres": 59.0}), "ok", ""),
        (findings.clock({"postgres": -61.0}), "problem", "NTP"),
        (verification(), "ok", "headwater rebuild --verify"),
        (verification(verified()), "ok", ""),
        (verification(verified(days=4)), "warning", "headwater rebuild --verify"),
        (verification(verified(days=4), scheduled=()), "ok", ""),
        # Only those that are compared every night have to be recent.
        (verification(verified(), verified(days=40, projection="workflows")), "ok", ""),
        (verification(verified(days=4), verified(projection="workflows")), "warning", "--verify"),
        # One that fails is not hidden by one that is equal, or by an earlier comparison.
        (verification(failed()), "problem", "headwater rebuild --verify users"),
        (verification(failed(), verified(days=1)), "problem", "headwater rebuild --verify users"),
        (verification(failed(), verified(projection="days")), "problem", "--verify users"),
        (verification(verified(), failed(days=1)), "ok", ""),
        (verification(failed(), verified(projection="days", added=1)), "problem", "rebuild days"),
        # A rebuild that has failed compared nothing.
        (verification(failed(version=3), verified(days=1)), "ok", ""),
        (verification(verified(), scheduled=("users", "days")), "warning", "--verify days"),
        (
            verification(verified(), scheduled=("users", "days", "weeks")),
            "warning",
            "headwater rebuild --verify",
        ),
        (verification(verified(removed=1)), "problem", "headwater rebuild users, then"),
        (verification(verified(), verified(removed=1)), "ok", ""),
        (verification({**verified(), "state": "switched"}, verified(changed=1)), "ok", "--verify"),
        (verification({**verified(), "state": "building"}, verified(added=1)), "problem", "users"),
        (findings.certificates({}, NOW), "ok", ""),
        (findings.certificates({"kafka": NOW + timedelta(days=22)}, NOW), "ok", ""),
        (findings.certificates({"kafka": NOW + timedelta(days=20)}, NOW), "warning", "renew"),
        (findings.certificates({"kafka": NOW}, NOW), "problem", "renew"),
    ],
)
def test_what_is_found_of_the_system_has_a_state_and_a_remedy(
    finding: findings.Finding, state: str, next_: str
):
    assert finding.state == state
    assert next_ in finding.next
    assert bool(finding.next) == bool(next_)
    assert findings.is_well([finding]) == (state in ("ok", "warning"))


@pytest.mark.parametrize(
    ("server_s", "sent_s", "received_s", "offset_s"),
    [
        (100.0, 100.2, 100.9, 0.0),
        (100.0, 100.9, 101.1, 0.0),
        (100.0, 101.0, 103.0, 0.0),
        (100.0, 99.0, 99.5, 0.5),
        (100.0, 160.5, 161.0, -59.5),
    ],
)
def test_a_clock_is_off_by_what_a_date_in_whole_seconds_proves(
    server_s: float, sent_s: float, received_s: float, offset_s: float
):
    offset = findings.clock_offset_s(server_s, sent_s, received_s)
    assert offset == pytest.approx(offset_s)


@pytest.mark.parametrize(
    ("minutes", "laws", "state"),
    [(1, (), "ok"), (20, (), "warning"), (1, ("row_differs",), "problem")],
)
def test_the_auditor_is_well_if_it_reports_and_finds_nothing(
    minutes: int, laws: tuple[str, ...], state: str
):
    ended = {"law": "log_cut", "ended": NOW.isoformat()}
    report = {
        "at": (NOW - timedelta(minutes=minutes)).isoformat(),
        "deliveries": 7,
        "lost": 0,
        "findings": [ended, *({"law": law, "ended": None} for law in laws)],
    }
    finding = findings.audited(report, NOW)
    assert finding.state == state
    assert ("0 lost of 7 deliveries" in finding.found) == (not laws)
    assert findings.audited(None, NOW).state == "warning"
