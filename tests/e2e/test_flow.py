"""The flow from a signed webhook to a row, through every part, as its users see it."""

import base64
import html
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest
from psycopg import conninfo, sql

from headwater.processors.trace_context import TraceContext
from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded
from headwater.schemas.tables import TABLES
from tests.e2e.deliveries import auth, body, daily, sleep, terra_user
from tests.e2e.month_check import check_month
from tests.e2e.system import ADMIN, System, opened, signed
from tests.visitor import Visitor, visiting, words
from tests.waiting import ANSWERED_WITHIN_S


@pytest.fixture(scope="module")
def system(scratch: Path, postgres: str) -> Iterator[System]:
    """One system for all tests here; each speaks of users of its own."""
    name = f"flow_{uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    dsn = conninfo.make_conninfo(postgres, dbname=name)
    directory = scratch / name
    directory.mkdir()
    with opened(System(directory, dsn), ("gateway", "gateway2", "worker", "project")) as system:
        yield system


def one(system: System, query: str, *values: object) -> tuple[object, ...] | None:
    with psycopg.connect(system.dsn) as connection:
        return connection.execute(query, values).fetchone()


def post(
    system: System,
    raw: bytes,
    at_s: int | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Posts a delivery, again as senders do while it is not taken; what was answered."""
    taken: list[httpx2.Response] = []

    def is_taken() -> bool:
        url, all_headers = f"{system.url()}/webhooks/terra", {**signed(raw, at_s), **headers}
        answer = httpx2.post(url, content=raw, headers=all_headers, timeout=ANSWERED_WITHIN_S)
        assert answer.status_code in (200, 503), answer.text
        if answer.is_success:
            taken.append(answer)
        return bool(taken)

    system.wait(is_taken, "a delivery to be taken")
    return dict(taken[0].json())


def expect(system: System, query: str, expected: object, *values: object) -> None:
    system.wait(lambda: one(system, query, *values) == expected, f"{query} {values} -> {expected}")


def expect_outcome(system: System, event: dict[str, object], status: str, reason: str = "") -> None:
    expect(
        system,
        "select status, reason from webhook_outcomes where event_id = %s",
        (status, reason),
        event["raw_event_id"],
    )


def test_hundreds_of_copies_sent_at_once_through_two_gateways_are_processed_once(system: System):
    copies = [daily(100, 3, 777, known=True)] * 300
    duplicates = system.deliver(copies, ("gateway", "gateway2"))
    expect(system, "select count(*) from daily_summary where user_id = 'user_100'", (1,))
    appended = [d for _, _, d in system.raw() if d.subject == "terra-100"]
    # One for each gateway may have met no other copy.
    assert 1 <= len(appended) <= 2
    # One whose answer came too late was sent again, and is a copy then.
    assert duplicates >= 300 - len(appended)
    expect_outcome(system, {"raw_event_id": appended[0].event_id}, "processed")
    dropped = "select count(*) from duplicates where event_id = %s"
    expect(system, dropped, (len(appended) - 1,), appended[0].event_id)


def test_a_duplicate_is_known_to_another_gateway_and_after_a_restart(system: System):
    bodies = (daily(101, 1, steps, known=True) for steps in itertools.count(1))

    def a_copy_is_known_to_gateway2() -> bool:
        raw = next(bodies)
        assert "duplicate" not in post(system, raw)
        time.sleep(0.5)  # The other gateway reads of it; a try that comes too early proves nothing.
        url = f"{system.url('gateway2')}/webhooks/terra"
        return bool(
            httpx2.post(url, content=raw, headers=signed(raw), timeout=ANSWERED_WITHIN_S)
            .json()
            .get("duplicate")
        )

    system.wait(a_copy_is_known_to_gateway2, "gateway2 to know a delivery that gateway took")
    restart(system, "gateway2")
    system.wait(a_copy_is_known_to_gateway2, "gateway2 to know one after a restart")


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_arrival_does_not_matter(system: System, seed: int):
    number = 200 + seed
    now = int(time.time())
    sent = [
        (auth(number), now - 9),
        (daily(number, 5, 100), now - 8),
        (daily(number, 5, 200), now - 5),
        (daily(number, 5, 300), now - 5),  # the same second: the event id decides
        (sleep(number, 4, 400), now - 7),
        (sleep(number, 4, 410), now - 6),
        (body("deauth", user=terra_user(number)), now - 4),
    ] * 2
    random.Random(seed).shuffle(sent)
    for raw, at_s in sent:
        post(system, raw, at_s)
    system.check()
    row = one(
        system,
        "select resting_heart_rate, sleep_minutes, recovery_score from daily_summary "
        "where user_id = %s and datetime = '2026-06-05'",
        f"user_{number}",
    )
    assert row is not None
    # From sleep though a day came later; minutes of the later night; steps decide the recovery.
    assert row[:2] == (40.0, 410.0)
    assert one(
        system,
        "select active, deactivated_at = to_timestamp(%s) from terra_connections "
        "where terra_user_id = %s",
        now - 4,
        f"terra-{number}",
    ) == (False, True)


def test_a_value_can_say_which_delivery_it_came_from(system: System):
    event = post(system, daily(102, 3, 4_321, known=True))
    expect_outcome(system, event, "processed")
    query = """select (value_source(column_sources, 'steps')).event_id from daily_summary
               where user_id = 'user_102'"""
    expect(system, query, (event["raw_event_id"],))


def test_a_delivery_and_its_rows_continue_the_trace_of_the_sender(system: System):
    sender = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
    event = post(system, daily(107, 4, 4_242, known=True), headers=dict(sender.headers()))
    expect_outcome(system, event, "processed")
    answer = httpx2.get(
        f"{system.url()}/admin/traces/spans",
        params={"since": "2020-01-01T00:00:00Z", "limit": 1_000},
        headers=ADMIN,
        timeout=ANSWERED_WITHIN_S,
    )
    traced = [span for span in answer.json()["spans"] if span["trace_id"] == sender.trace_id]
    received, process = traced
    assert (received["span_id"], received["parent_id"]) == (
        *(event["raw_event_id"][:16],),
        sender.span_id,
    )
    assert (process["name"], process["parent_id"]) == ("process webhooks", received["span_id"])
    log = (system.directory / "worker.log").read_text("utf-8")
    assert not re.search(r"^\d{4}-\d\d-\d\d \d\d:", log, re.MULTILINE), "times have a zone"


def test_a_delivery_waits_for_its_connection_and_is_released_by_it(system: System):
    early = post(system, daily(103, 3, 55))
    expect_outcome(system, early, "parked", "no_connection_for_terra_user")
    post(system, auth(103))
    expect_outcome(system, early, "processed")
    expect(system, "select steps from daily_summary where user_id = 'user_103'", (55,))

    def stages() -> list[str]:
        traces = httpx2.get(
            f"{system.url()}/admin/traces",
            params={"request_id": early["request_id"]},
            headers=ADMIN,
            timeout=ANSWERED_WITHIN_S,
        ).json()["traces"]
        return [hop["stage"] for trace in traces[:1] for hop in trace["hops"]]

    expected = ["received", "admitted", "parked", "released", "normalized"]
    system.wait(lambda: stages() == expected, "its journey")


@contextmanager
def short_waits(system: System) -> Iterator[None]:
    """A worker that does not wait for long; others would give up what a slow test connects late."""
    try:
        system.settings["HEADWATER_PARK_FOR_S"] = "1"
        restart(system, "worker")
        yield
    finally:
        del system.settings["HEADWATER_PARK_FOR_S"]
        restart(system, "worker")


def restart(system: System, part: str) -> None:
    system.stop(part)
    system.start(part)


def test_a_wait_ends_as_a_dead_letter_and_replaying_it_gives_the_row(system: System):
    raw = daily(104, 3, 66)
    with short_waits(system):
        event = post(system, raw)
        expect_outcome(system, event, "dead", "no_connection_for_terra_user")
    result = system_dead_letter(system, event)
    assert result["reason"] == "no_connection_for_terra_user"
    expect_outcome(system, post(system, auth(104)), "processed")  # the cause is gone
    answer = httpx2.post(
        f"{system.url()}/admin/dlq/replay",
        json={"positions": [{"partition": result["partition"], "offset": result["offset"]}]},
        headers=ADMIN,
        timeout=ANSWERED_WITHIN_S,
    )
    assert answer.is_success, answer.text
    assert [replayed["ok"] for replayed in answer.json()["results"]] == [True], answer.text
    expect_outcome(system, event, "processed")
    expect(system, "select steps from daily_summary where user_id = 'user_104'", (66,))
    replayed = 'select replayed_at is not null from dead_letters where partition=%s and "offset"=%s'
    expect(system, replayed, (True,), result["partition"], result["offset"])

    def whole() -> dict[str, Any]:
        url = f"{system.url()}/admin/deliveries/{event['raw_event_id']}"
        with_body = {"body": "true"}
        return dict(
            httpx2.get(url, params=with_body, headers=ADMIN, timeout=ANSWERED_WITHIN_S).json()
        )

    def journeys() -> list[str]:
        return [one["status"] for one in whole()["delivery"]["journeys"]]

    def tables() -> set[str]:
        return {one["table"] for one in whole()["delivery"]["rows"]}

    system.wait(lambda: journeys() == ["dead", "processed"], "its journeys")
    system.wait(lambda: tables() == {"daily_summary", "users"}, "its rows")
    assert base64.b64decode(whole()["body"]) == raw


def system_dead_letter(system: System, event: dict[str, object]) -> dict[str, object]:
    event_id = event["raw_event_id"]
    expect(system, "select count(*) from dead_letters where event_id = %s", (1,), event_id)
    query = """select partition, "offset", reason, value from dead_letters where event_id = %s"""
    row = one(system, query, event_id)
    assert row is not None
    return dict(zip(("partition", "offset", "reason", "value"), row, strict=True))


def test_an_operator_sees_and_replays_dead_letters_by_hand(system: System):
    # June has no such day.
    event = post(system, daily(105, 31, 5, known=True))
    expect_outcome(system, event, "dead", "no_usable_record")
    letter = system_dead_letter(system, event)
    listed = httpx2.get(
        f"{system.url()}/admin/dlq", headers=ADMIN, timeout=ANSWERED_WITHIN_S
    ).json()
    position = (letter["partition"], letter["offset"])
    assert position in {(one["partition"], one["offset"]) for one in listed["rows"]}
    shown = httpx2.get(
        f"{system.url()}/admin/dlq/{position[0]}/{position[1]}",
        headers=ADMIN,
        timeout=ANSWERED_WITHIN_S,
    ).json()
    assert "2026-06-31" in shown["message"]
    assert httpx2.get(f"{system.url()}/admin/dlq", timeout=ANSWERED_WITHIN_S).status_code == 401

    replay = [sys.executable, "-m", "headwater", "dlq", "replay", "--all", "--url", system.url()]
    replay += ["--reason", "no_usable_record"]
    requested = subprocess.run(replay, input="y\n", capture_output=True, text=True, check=False)
    assert requested.returncode == 2
    assert re.search(r"--yes.*\d+ dead letters? would be replayed", requested.stderr)
    subprocess.run([*replay, "--yes"], capture_output=True, check=True)
    replayed = 'select replayed_at is not null from dead_letters where partition=%s and "offset"=%s'
    expect(system, replayed, (True,), *position)


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        (body("planned_workout", user=terra_user(110)), "skipped", "unknown_type:planned_workout"),
        (body("nutrition", user=None, data=[]), "skipped", "nutrition"),
        (body("daily", user=None, data=[]), "dead", "no_user"),
        (body("daily", user=terra_user(110, "user_110"), data=[]), "skipped", "empty_data"),
        (body("daily", user=terra_user(110, "user_110"), data=7), "dead", "malformed_payload"),
        (daily(110, 31, 5, known=True), "dead", "no_usable_record"),
        (daily(110, 3, 10**12, known=True), "processed", ""),
        (
            body(
                "daily",
                user=terra_user(110, "user_110"),
                data=[{"metadata": {"start_time": "yesterday"}}],
            ),
            "dead",
            "no_usable_record",
        ),
    ],
)
def test_bad_input_ends_in_an_outcome_with_its_reason(
    system: System, raw: bytes, status: str, reason: str
):
    expect_outcome(system, post(system, raw), status, reason)


def test_ten_thousand_records_in_one_delivery_become_rows(system: System):
    records = [
        {
            "metadata": {"start_time": f"{2000 + n // 336}-{n // 28 % 12 + 1:02}-{n % 28 + 1:02}"
                                       "T00:00:00Z"},
            "distance_data": {"steps": n, "unknown_column": [1, 2, 3]},
        }
        for n in range(8_000)
    ]  # fmt: skip
    records += records[:2_000]
    event = post(system, body("daily", user=terra_user(111, "user_111"), data=records))
    expect_outcome(system, event, "processed")
    expect(system, "select count(*) from daily_summary where user_id = 'user_111'", (8_000,))


def test_the_largest_body_comes_through_byte_for_byte(system: System):
    note = "x" * (10 * 1024 * 1024 - 1_000)
    raw = sleep(112, 3, 300, known=True).replace(
        b'"metadata"', f'"n": "{note}", "metadata"'.encode()
    )
    expect_outcome(system, post(system, raw), "processed")
    length = (
        "select length(raw::text) > 10 * 1024 * 1024 - 1000 from sleep_sessions where user_id = %s"
    )
    expect(system, length, (True,), "user_112")


def test_webhooks_are_taken_while_the_rest_is_down(system: System):
    for part in ("worker", "project"):
        system.stop(part)
    event = post(system, daily(113, 3, 99, known=True))
    for part in ("worker", "project"):
        system.start(part)
    expect_outcome(system, event, "processed")


def test_webhooks_are_refused_with_503_while_kafka_is_down_and_nothing_is_pretended(system: System):
    raw = daily(114, 3, 98, known=True)
    system.broker.kill()
    try:
        answer = httpx2.post(
            f"{system.url()}/webhooks/terra",
            content=raw,
            headers=signed(raw),
            timeout=ANSWERED_WITHIN_S,
        )
        assert answer.status_code == 503
        assert answer.json()["code"] == "broker_unavailable"
        assert int(answer.headers["retry-after"]) > 0
    finally:
        system.broker.start()
    system.deliver([raw])
    expect(system, "select steps from daily_summary where user_id = 'user_114'", (98,))


def test_workouts_bodies_and_lab_reports_are_rows_and_a_day_has_them_side_by_side(system: System):
    user = terra_user(140, provider="WITHINGS")
    record = {
        "metadata": {"start_time": "2026-06-12T07:00:00+02:00"},
        "measurements_data": {"measurements": [{"weight_kg": 70.5, "bodyfat_percentage": 18}]},
        "blood_pressure_data": {
            "blood_pressure_samples": [
                {"systolic_bp": 118, "diastolic_bp": 76},
                {"systolic_bp": 121, "diastolic_bp": 79},
            ]
        },
    }
    workout = {
        "metadata": {
            "start_time": "2026-06-12T07:00:00+02:00",
            "end_time": "2026-06-12T07:45:00+02:00",
            "type": 0,
        }
    }
    early = post(system, body("body", user=user, data=[record]))
    post(system, body("activity", user=user, data=[workout]))
    post(system, body("permission_change", user=user | {"scopes": "BODY"}))
    expect_outcome(system, early, "parked", "no_connection_for_terra_user")
    post(system, auth(140))
    expect(
        system,
        "select weight_kg, body_fat_percent, systolic_bp, diastolic_bp, glucose"
        " from biomarkers_wide where user_id = 'user_140' and date = '2026-06-12'"
        " and source = 'withings_body'",
        (70.5, 18.0, 119.5, 77.5, None),
    )
    expect(
        system,
        "select type, duration_seconds, start_time = '2026-06-12T05:00:00Z' from activities"
        " where user_id = 'user_140'",
        (0, 2700.0, True),
    )
    scopes = "select scopes from terra_connections where terra_user_id = 'terra-140'"
    expect(system, scopes, ("BODY",))


def test_a_lab_report_becomes_biomarkers_of_the_upload_that_it_is_of(system: System):
    at_ms = int(time.time() * 1000)
    named = {"at_ms": at_ms, "user_id": "user_141", "upload_id": "u141"}
    results = [
        {"biomarker": "glucose_fasting", "value": "92", "unit": "mg/dL", "classification": "high"},
        {"biomarker": "ldl", "value": "<9", "classification": "normal"},
        {"biomarker": "tsh", "value": 1, "collection_date": "20260-01-01"},
    ]
    report = {"upload_id": "upl_141", "data": [{"report_date": "2026-06-30", "results": results}]}
    early = post(system, json.dumps(report).encode())
    assert early["type"] == "lab_report"
    expect_outcome(system, early, "parked", "no_lab_upload_for_upload_id")
    system.tell(
        LabUploaded(
            **named, storage_key="lab-uploads/u141.pdf", original_name="a.pdf",
            content_type="application/pdf", size=9,
        ),
        LabSubmitted(**named, terra_status="submitted", terra_upload_id="upl_141"),
    )  # fmt: skip
    expect_outcome(system, early, "processed")
    expect(
        system,
        "select b.value, b.status, b.name, w.glucose, w.ldl, b.upload_id from biomarkers_raw b"
        " join biomarkers_wide w using (user_id, source, date) where code = 'glucose'"
        " and user_id = 'user_141' and source = 'terra_lab'",
        (92.0, "out_of_range", None, 92.0, None, "u141"),
    )
    expect(
        system,
        "select terra_status, parsed_at is not null, created_at is not null from lab_uploads"
        " where id = 'u141' and user_id = 'user_141'",
        ("parsed", True, True),
    )
    rejected = "select rejected, rows from webhook_outcomes where event_id = %s"
    expect(system, rejected, (0, 4), early["raw_event_id"])
    seen = "select created_at <= last_seen_at from users where id = 'user_141'"
    expect(system, seen, (True,))


def test_a_worker_that_is_stopped_leaves_a_log_that_can_be_read(system: System):
    expect_outcome(system, post(system, daily(106, 3, 1, known=True)), "processed")
    system.stop("worker")
    log = system.log("worker")
    system.start("worker")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]|Unclosed", log), log


def test_a_month_of_some_people_sent_in_any_order_comes_to_what_a_plain_program_says(
    system: System,
):
    check_month(system, seed=7, people=8, days=5, name="few", gateways=("gateway", "gateway2"))


def test_everything_above_equals_the_fold(system: System):
    """Runs last: all that this system went through, compared row for row."""
    expected = system.check()
    assert all(expected.rows[table.name] for table in TABLES)


@pytest.fixture
def visitor(system: System) -> Iterator[Visitor]:
    with visiting(system.url()) as visitor:
        yield visitor


def test_the_console_shows_a_delivery_and_has_it_replayed(system: System, visitor: Visitor):
    hostile = "<script>alert(1)</script>"
    event = post(system, body(hostile, user=terra_user(120, "user_120"), data=[]))
    kept = post(system, daily(121, 3, 77, known=True))
    expect_outcome(system, event, "skipped", f"unknown_type:{hostile}")
    expect_outcome(system, kept, "processed")
    assert "processed" in words(visitor.page("/console"))
    listed = visitor.press("/console/deliveries", "Find", type=hostile, status="skipped").text
    assert html.escape(hostile) in listed
    assert str(event["raw_event_id"])[:12] in listed
    skipped = f"/console/deliveries/{event['raw_event_id']}"
    system.wait(lambda: hostile in words(visitor.page(skipped)), "what was skipped to be shown")
    assert visitor.client.get("/console/deliveries/no-such").status_code == 404

    at = f"/console/deliveries/{kept['raw_event_id']}"
    row = "daily_summary user_121 / garmin / 2026-06-03"
    for part in ("Trace: processed", '"steps": 77', row):
        system.wait(lambda: part in words(visitor.page(at)), f"{part} to be shown")  # noqa: B023
    replayed = visitor.press(at, "Reprocess").text
    assert "The delivery is being reprocessed." in words(replayed)
    system.wait(lambda: "Trace 2: processed" in words(visitor.page(at)), "the replay's journey")
    result = visitor.press("/console/deliveries", "Find", id=f" {kept['raw_event_id']} ")
    assert result.url.path == at
    why = "/console/why?table=daily_summary&key=user_121&key=garmin&key=2026-06-03"
    assert why in html.unescape(visitor.page(at))
    assert f"steps 77 {str(kept['raw_event_id'])[:12]}" in words(visitor.page(why))
    user = words(visitor.press("/console/users", "Find", user_id="user_121").text)
    assert "daily_summary 1" in user


def test_the_console_shows_the_rows_of_a_user_and_the_parts_of_the_system(
    system: System, visitor: Visitor
):
    kept = post(system, daily(122, 3, 78, known=True))
    expect_outcome(system, kept, "processed")
    at = "/console/rows?user_id=user_122&table=daily_summary"
    system.wait(lambda: "2026-06-03" in words(visitor.page(at)), "the row to be shown")
    assert re.search(r"user_122 garmin 2026-06-03.* 78 ", words(visitor.page(at)))
    found = visitor.client.get("/console/search", params={"q": "user_122"})
    assert found.url.path == "/console/users"
    parts = words(visitor.page("/console/system"))
    assert "webhooks" in parts
    assert "terra" in parts


def test_the_console_puts_dead_letters_back_one_or_all_of_a_reason(
    system: System, visitor: Visitor
):
    # Each twice: put back, they die again.
    events = [post(system, body("daily", user=None, data=[number])) for number in range(3)]
    letters = [system_dead_letter(system, event) for event in events]
    assert "no_user" in words(visitor.page("/console/dead-letters"))
    at = "/console/dead-letters/{partition}/{offset}".format(**letters[0])
    assert "no_user" in words(visitor.page(at))
    done = words(visitor.press(at, "Reprocess").text)
    assert "1 reprocessed, 0 failed." in done
    assert "The delivery is now dead no_user" in done
    listed = "/console/dead-letters?reason=no_user"
    assert "terra" in words(visitor.page(listed))
    assert "No dead letters." in words(visitor.page(f"{listed}&source=nobody"))
    requested = visitor.press(listed, "Reprocess all …")
    assert re.search(
        r"[2-9] dead letters with the reason no_user would be published", words(requested.text)
    )
    done = visitor.press(str(requested.url), "Reprocess them")
    assert re.search(r"[2-9] reprocessed, 0 failed\.", words(done.text))
    replayed = 'select replayed_at is not null from dead_letters where partition=%s and "offset"=%s'
    for letter in letters:
        expect(system, replayed, (True,), letter["partition"], letter["offset"])
    action = "dead_letters.replay"

    def audited() -> bool:
        page = visitor.press("/console/audit", "Find", action=action, result="success")
        return words(page.text).count(f"{action} /admin/dlq/replay success admin:") >= 3

    system.wait(audited, "what was done to be in the audit log")
