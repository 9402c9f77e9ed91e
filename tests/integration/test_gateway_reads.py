"""The gateway's reads on a real Postgres, and the mirror that follows them."""

import asyncio
import json
import sqlite3
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import psycopg
import pytest
from litestar.testing import TestClient

from headwater.gateway.cli.sync import Mirror
from headwater.gateway.client.requests import HttpAnswer
from headwater.processors.wipes import digest
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deliveries.replaying import (
    ReplayCursor,
    Selection,
    matched,
    page,
    user_with_digest,
)
from headwater.projections.projector.store import Store
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS
from headwater.streams.clock import now_ms
from tests.fakes.delivery_log import MemoryLog, MemoryReplays, a_delivery
from tests.integration.written import (
    RECEIVED_AT_MS,
    Written,
    apply,
    day,
    dead_letter,
    dead_letter_gone,
    duplicate,
    outcome,
    row,
    table_record,
)
from tests.unit.gateway.memory_app import memory_app

READ = {"authorization": "Bearer dev-read-key"}
NEWER_MS = RECEIVED_AT_MS + 60_000
ADMIN = {"x-admin-key": "dev-admin-key"}

Client = TestClient[Any]
Write = Callable[..., None]


@contextmanager
def gateway_on(
    dsn: str, log: MemoryLog | None = None, replays: MemoryReplays | None = None
) -> Iterator[Client]:
    app = memory_app(
        log=log or MemoryLog(),
        reader=Reader(dsn),
        replays=replays or MemoryReplays(),
        clock=now_ms,
    )
    with TestClient(app) as client:
        yield client


@pytest.fixture(scope="module")
def gateways() -> Iterator[Callable[[str], Client]]:
    """A gateway for each database: to make one takes longer than most tests."""
    with ExitStack() as exits:
        yield cache(lambda dsn: exits.enter_context(gateway_on(dsn)))


@pytest.fixture
def client(migrated: str, gateways: Callable[[str], Client]) -> Client:
    return gateways(migrated)


@pytest.fixture
def write(migrated: str) -> Write:
    """Applies records to Postgres as the projector does."""

    def applied(records: Sequence[Written], clock_ms: int = RECEIVED_AT_MS) -> None:
        async def run() -> None:
            store = Store(migrated, projection=DELIVERIES, clock=lambda: clock_ms)
            try:
                await apply(store, records)
            finally:
                await store.close()

        asyncio.run(run())

    return applied


def test_a_database_that_has_nothing_yet_answers_with_empty_tables(client: Client) -> None:
    page = client.get("/v1/sync", headers=READ).json()
    assert page["tables"] == {table.name: [] for table in ALL_TABLES}
    assert page["has_more"] is False
    assert page["cursor"]


def test_the_cursor_goes_on_with_what_changed(client: Client, write: Write) -> None:
    write([day("user_1", "2026-07-01", steps=1), day("user_2", "2026-07-01", steps=2)])
    first = client.get("/v1/sync", params={"limit": 1}, headers=READ).json()
    assert first["has_more"] is True
    rest = client.get("/v1/sync", params={"since": first["cursor"]}, headers=READ).json()
    rows = first["tables"]["daily_summary"] + rest["tables"]["daily_summary"]
    assert [(row["user_id"], row["datetime"], row["steps"]) for row in rows] == [
        ("user_1", "2026-07-01", 1),
        ("user_2", "2026-07-01", 2),
    ]
    write([day("user_1", "2026-07-02", steps=3)])
    later = client.get("/v1/sync", params={"cursor": rest["cursor"]}, headers=READ).json()
    assert [row["steps"] for row in later["tables"]["daily_summary"]] == [3]


def test_since_and_user_limit_what_is_answered(client: Client, write: Write) -> None:
    write([day("user_1", "2026-07-01", steps=1), day("user_2", "2026-07-01", steps=2)])
    for parameters, users in (
        ({"since": "2000-01-01T00:00:00+00:00"}, ["user_1", "user_2"]),
        ({"since": "2000-01-01T00:00:00 00:00"}, ["user_1", "user_2"]),
        ({"since": "9000-01-01T00:00:00Z"}, []),
        ({"user_id": "user_2"}, ["user_2"]),
    ):
        page = client.get("/v1/sync", params=parameters, headers=READ).json()
        assert [row["user_id"] for row in page["tables"]["daily_summary"]] == users, parameters


def lines_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_rows_are_streamed_as_lines_and_the_last_one_is_the_cursor(
    client: Client, write: Write
) -> None:
    write([day("user_1", f"2026-07-{number:02}", steps=number) for number in range(1, 13)])
    lines = READ | {"accept": "application/x-ndjson"}
    three = lines_of(client.get("/v1/sync", params={"limit": 3}, headers=lines))
    assert [item.get("table") for item in three] == ["daily_summary"] * 3 + [None]
    assert three[-1]["has_more"] is True
    rest = {"cursor": three[-1]["cursor"]}
    # Without a limit it goes on, whatever a page holds.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater.projections.deliveries.sync.PAGE_CHARS_MAX", 100)
        more = lines_of(client.get("/v1/sync", params=rest, headers=lines))
    assert [item["row"]["steps"] for item in more[:-1]] == list(range(4, 13))
    assert set(more[-1]) == {"cursor", "has_more"}
    key = ("user_1", "garmin", "2026-07-01")
    write([Written(DAILY_SUMMARY.topic, 0, DAILY_SUMMARY.row_key(key), None)])
    after = {"cursor": more[-1]["cursor"]}
    removed = lines_of(client.get("/v1/sync", params=after, headers=lines))
    named = {"user_id": "user_1", "source": "garmin", "datetime": "2026-07-01"}
    assert removed[0] == {"table": "daily_summary", "deleted": True, "key": named}


def test_a_table_is_read_alone_with_a_cursor_of_its_own(client: Client, write: Write) -> None:
    write([day("user_1", "2026-07-01", steps=1)])
    days = client.get("/v1/sync", params={"table": "daily_summary"}, headers=READ).json()
    assert [row["steps"] for row in days["tables"].pop("daily_summary")] == [1]
    assert days["tables"] == {}
    again = {"table": "daily_summary", "cursor": days["cursor"]}
    assert client.get("/v1/sync", params=again, headers=READ).status_code == 200
    other = client.get("/v1/sync", params=again | {"table": "sleep_sessions"}, headers=READ)
    assert other.json()["code"] == "invalid_cursor"
    nothing = client.get("/v1/sync", params={"table": "'; drop"}, headers=READ)
    assert (nothing.status_code, nothing.json()["field"]) == (400, "table")


def test_a_cursor_that_is_none_of_ours_is_refused(client: Client) -> None:
    for parameter in ("since", "cursor"):
        answer = client.get("/v1/sync", params={parameter: "nonsense"}, headers=READ)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")
        assert answer.json()["field"] == parameter


def test_a_parameter_that_postgres_cannot_take_harms_nobody(client: Client) -> None:
    for text in ("a\0b", "\ud800", "'; drop table traces", "x" * 5000):
        query = quote(text, errors="surrogatepass")
        for path in ("/admin/traces?request_id=", "/admin/outcomes/", "/v1/sync?user_id="):
            answer = client.get(path + query, headers=ADMIN | READ)
            assert answer.status_code in (200, 400, 404), f"{path}{query}: {answer.text}"


def test_outcomes_are_counted_and_found(client: Client, write: Write) -> None:
    write([outcome("e1"), outcome("e2"), outcome("e3", status="dead", reason="why")])
    counts = client.get("/admin/outcomes", headers=ADMIN).json()["outcomes"]
    assert {(one["status"], one["deliveries"]) for one in counts} == {("processed", 2), ("dead", 1)}
    dead = client.get("/admin/outcomes?status=dead", headers=ADMIN).json()["outcomes"]
    assert dead == [{"status": "dead", "reason": "why", "deliveries": 1}]
    received = {"2026-01-01T00:00:00Z": 3, "2026-01-01T01:00:00.001%2B01:00": 0}
    for since, number in received.items():
        result = client.get(f"/admin/outcomes?since={since}", headers=ADMIN).json()["outcomes"]
        assert sum(row["deliveries"] for row in result) == number
    assert client.get("/admin/outcomes/e3", headers=ADMIN).json()["reason"] == "why"
    assert client.get("/admin/outcomes/e4", headers=ADMIN).status_code == 404


def test_a_journey_is_found_by_its_request(client: Client, write: Write) -> None:
    write([outcome("e1"), outcome("e2", status="dead", reason="why"), duplicate("again")])
    result = client.get("/admin/traces?request_id=req-e1", headers=ADMIN).json()["traces"]
    assert [[hop["stage"] for hop in one["hops"]] for one in result] == [
        ["received", "admitted", "normalized"]
    ]
    [copy] = client.get("/admin/traces?request_id=again", headers=ADMIN).json()["traces"]
    assert copy["hops"][-1]["detail"] == "of webhooks/3@17"
    errors = client.get("/admin/traces?level=error", headers=ADMIN).json()["traces"]
    assert [one["request_id"] for one in errors] == ["req-e2"]


def test_no_dead_letters_are_an_empty_page_and_nothing_to_replay(client: Client) -> None:
    assert client.get("/admin/dlq", headers=ADMIN).json() == {"rows": [], "cursor": None}
    assert client.get("/admin/dlq/0/0", headers=ADMIN).status_code == 404
    for dry_run in (True, False):
        body = {"all": True, "dry_run": dry_run}
        answer = client.post("/admin/dlq/replay", json=body, headers=ADMIN).json()
        assert (answer["replayed"], answer["failed"], answer["next"]) == (0, 0, None)


def waiting(event_id: str, offset: int, **more: str | int | None) -> Written:
    return outcome(
        event_id,
        user_id=None,
        status="parked",
        reason="no_connection_for_terra_user",
        parked_at_ms=RECEIVED_AT_MS + offset,
        at_ms=RECEIVED_AT_MS + offset,
        offset=offset,
        position=f"webhooks/3@{offset}",
        **more,
    )


def test_deliveries_that_wait_are_listed_beside_dead_letters_or_alone(
    client: Client, write: Write
) -> None:
    write([dead_letter("old"), waiting("w1", 1), waiting("w2", 2), dead_letter("new", NEWER_MS)])

    def listed(query: str) -> list[tuple[str, str]]:
        rows, cursor = [], None
        while not rows or cursor:
            after = f"&after={cursor}" if cursor else ""
            page = client.get(f"/admin/dlq?limit=1&{query}{after}", headers=ADMIN).json()
            rows += [(row["state"], row.get("event_id") or row["reason"]) for row in page["rows"]]
            cursor = page["cursor"]
        return rows

    dead, parked = [("dead", "new"), ("dead", "old")], [("parked", "w2"), ("parked", "w1")]
    assert listed("state=parked") == parked
    assert listed("state=all") == [dead[0], *parked, dead[1]]
    assert listed("state=dead") == listed("") == dead


def test_a_dead_letter_is_listed_until_its_delivery_was_processed(
    client: Client, write: Write
) -> None:
    def listed() -> list[str]:
        return [row["reason"] for row in client.get("/admin/dlq", headers=ADMIN).json()["rows"]]

    def put_back() -> int:
        body = {"all": True, "dry_run": True}
        answer = client.post("/admin/dlq/replay", json=body, headers=ADMIN).json()
        return len(answer["results"])

    named = {"event_id": "e1", "request_id": "req-e1"}
    write([dead_letter("why", **named), dead_letter("a_rule", rule="pushed", **named)])
    write([outcome("e1", status="dead", reason="why", position="webhooks/3@17")])
    assert (listed(), put_back()) == (["a_rule", "why"], 2)
    replayed = {"at_ms": NEWER_MS, "position": "webhooks/3@40", "replay": "r1"}
    write([outcome("e1", status="dead", reason="why", **replayed)])
    assert listed() == ["a_rule", "why"]
    write([outcome("e1", **{**replayed, "position": "webhooks/3@41"})])
    assert (listed(), put_back()) == (["a_rule"], 1), "an effect that failed has not happened"
    assert client.get("/admin/user/user_1", headers=ADMIN).json()["counts"]["dead_letters"] == 1


def test_what_died_before_a_user_connected_is_shown_traced_and_counted_as_the_users(
    client: Client, write: Write
) -> None:
    dead = {"status": "dead", "reason": "no_connection_for_terra_user", "user_id": None}
    write([outcome("e1", **dead), outcome("e2", **{**dead, "subject": "t2"}), outcome("e3")])
    write([dead_letter("no_connection_for_terra_user", event_id="e1")])
    write([table_record(CONNECTIONS, row(CONNECTIONS, ("t1",), user_id="user_1"))])
    shown = client.get("/admin/user/user_1", headers=ADMIN).json()
    assert [one["event_id"] for one in shown["dead"]] == ["e1"]
    assert shown["counts"]["dead_letters"] == 1
    for query, traced in (("", {"e1", "e3"}), ("&level=error", {"e1"})):
        answer = client.get(f"/admin/traces?user_id=user_1{query}", headers=ADMIN).json()
        assert {one["event_id"] for one in answer["traces"]} == traced


async def _selected(dsn: str, **selectors: object) -> set[str]:
    reader = await Reader(dsn).open()
    try:
        selection = msgspec.convert(selectors, Selection)
        rows = await page(reader, selection, ReplayCursor(), 10)
        assert len(rows) == await matched(reader, selection)
        if selection.user_id is not None:
            found = await user_with_digest(reader, digest(selection.user_id))
            assert found == (selection.user_id if rows else None)
        return {row.event_id for row in rows}
    finally:
        await reader.close()


def test_a_replay_of_a_user_includes_what_died_before_the_user_connected(
    migrated: str, write: Write
) -> None:
    dead = {"status": "dead", "reason": "no_connection_for_terra_user", "user_id": None}
    write([outcome("e1", **dead), outcome("e2"), outcome("e3", user_id="user_3", subject="t3")])
    write([outcome("e4", **{**dead, "subject": "t4"})])
    write([table_record(CONNECTIONS, row(CONNECTIONS, ("t1",), user_id="user_1"))])
    assert asyncio.run(_selected(migrated, user_id="user_1")) == {"e1", "e2"}
    assert asyncio.run(_selected(migrated, user_id="user_3")) == {"e3"}
    assert asyncio.run(_selected(migrated, user_id="nobody")) == set()
    assert asyncio.run(_selected(migrated, ids=["e4", "e2"])) == {"e2", "e4"}


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ({}, "no_selector"),
        ({"user_id": None, "ids": None, "type": None}, "no_selector"),
        ({"rate": 5}, "no_selector"),
        ({"all": False, "dry_run": True}, "no_selector"),
        ({"all": True, "user_id": "user_1"}, "invalid_parameter"),
        ({"user_id": ""}, "invalid_parameter"),
        ({"ids": []}, "invalid_parameter"),
        ({"partition": 3}, "invalid_parameter"),
        ({"since": ""}, "invalid_parameter"),
    ],
)
def test_an_order_to_replay_selects_something(
    client: Client, order: dict[str, object], code: str
) -> None:
    answer = client.post("/admin/replays", json=order, headers=ADMIN)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


@pytest.mark.parametrize("order", [{"user_id": "nobody"}, {"all": True, "dry_run": True}])
def test_a_replay_of_nothing_needs_no_instance(client: Client, order: dict[str, object]) -> None:
    answer = client.post("/admin/replays", json=order, headers=ADMIN)
    state = answer.json()
    assert (answer.status_code, state["state"], state["matched"]) == (202, "done", 0)
    assert (state["id"], state["instance"]) == (None, None)


def test_a_drain_looks_again_at_what_was_looked_at_longest_ago(migrated: str, write: Write) -> None:
    replays = MemoryReplays()
    connection = row(CONNECTIONS, ("t7",), user_id="user_7")
    write([waiting("w2", 2), waiting("w1", 1), waiting("w7", 7, subject="t7")])
    write([table_record(CONNECTIONS, connection)])
    with gateway_on(migrated, replays=replays) as client:

        def drained(**body: object) -> object:
            replays.appended_again.clear()
            return client.post("/admin/drain", json=body, headers=ADMIN).json()

        assert drained(limit=2) == {"ok": True, "enqueued": 2}
        assert replays.appended_again == [(3, 1), (3, 2)]
        assert drained(user_id="user_7") == {"ok": True, "enqueued": 1}
        assert replays.appended_again == [(3, 7)]
        assert drained(user_id="user_8") == {"ok": True, "enqueued": 0}
        shown = client.get("/admin/user/user_7", headers=ADMIN).json()
        assert [one["event_id"] for one in shown["waiting"]] == ["w7"]
        assert [one["terra_user_id"] for one in shown["connections"]] == ["t7"]


def test_a_user_is_shown_with_counts_and_somebody_unknown_with_none(
    client: Client, write: Write
) -> None:
    write([day("user_1", "2026-07-01", steps=1), day("user_1", "2026-07-02"), outcome("e1")])
    shown = client.get("/admin/user/user_1", headers=ADMIN).json()
    counts = shown["counts"]
    assert (counts["daily_summary"], counts["sleep_sessions"], counts["raw_events"]) == (2, 0, 1)
    assert [one["event_id"] for one in shown["last_outcomes"]] == ["e1"]
    nobody = client.get("/admin/user/nobody", headers=ADMIN).json()
    assert (set(nobody["counts"].values()), nobody["connections"]) == ({0}, [])
    assert client.get("/admin/user/a%00b", headers=ADMIN).status_code == 200


def test_what_is_dead_of_a_user_is_shown_until_it_is_processed(
    client: Client, write: Write
) -> None:
    """Also what died before the user had connected."""
    nobody = {"user_id": None, "status": "dead", "reason": "no_connection_for_terra_user"}
    dead = {"user_id": "user_7", "status": "dead", "reason": "no_usable_record"}
    write([table_record(CONNECTIONS, row(CONNECTIONS, ("t7",), user_id="user_7"))])
    write([outcome("early", subject="t7", **nobody), outcome("other", subject="t8", **nobody)])
    write([outcome("mended", **dead), outcome("dead", **dead), outcome("well", user_id="user_7")])

    def shown() -> set[str]:
        whole = client.get("/admin/user/user_7", headers=ADMIN).json()
        return {one["event_id"] for one in whole["dead"]}

    assert shown() == {"early", "mended", "dead"}
    later = {"at_ms": RECEIVED_AT_MS + 900, "position": "webhooks/0@9"}
    write([outcome("mended", user_id="user_7", **later)])
    assert shown() == {"early", "dead"}


def test_the_rows_of_a_user_are_counted_by_source(client: Client, write: Write) -> None:
    garmin = [day("user_1", f"2026-07-0{number}", steps=1) for number in (1, 2)]
    key = ("user_1", "whoop", "2026-07-01T22:00:00.000Z")
    night = table_record(SLEEP_SESSIONS, row(SLEEP_SESSIONS, key, end_time="2026-07-02T06:00:00Z"))
    write([*garmin, night])
    sources = client.get("/admin/user/user_1", headers=ADMIN).json()["sources"]
    assert [(one["source"], one["rows"]) for one in sources] == [
        ("garmin", {"daily_summary": 2}),
        ("whoop", {"sleep_sessions": 1}),
    ]
    assert all(one["updated_at"] for one in sources)


def test_a_raw_event_is_shown_whole_and_replayed(migrated: str, write: Write) -> None:
    log, replays = MemoryLog(), MemoryReplays()
    log.deliveries.append(a_delivery("e1"))
    removed = outcome("e2", partition=0, offset=9, position="webhooks/0@9")
    write([outcome("e1", partition=0, offset=0, position="webhooks/0@0"), removed])
    with gateway_on(migrated, log, replays) as client:

        def raw(named: str) -> dict[str, Any]:
            result: dict[str, Any] = client.get(f"/admin/raw-events/{named}", headers=ADMIN).json()
            return result

        actual = raw("e1")
        assert (actual["raw_event_id"], actual["position"]) == ("e1", "webhooks/3@0")
        assert b64decode(actual["body_base64"]) == b'{"type":"daily"}'
        assert (actual["body"], actual["headers"]) == ({"type": "daily"}, [["ce_id", "e1"]])
        assert actual["outcome"]["status"] == "processed"
        assert len(actual["journeys"]) == 1
        assert raw("req-e1") == raw("0@0") == actual
        assert "wiped" in raw("e2")["gone"]
        assert raw("e2")["body_base64"] is None
        assert raw("nobody")["code"] == raw("0@7")["code"] == "not_found"
        answer = client.post("/admin/raw-events/e1/replay", headers=ADMIN)
        assert (answer.status_code, answer.json()["position"]) == (202, "webhooks/3@1000")
        assert client.post("/admin/raw-events/e9/replay", headers=ADMIN).status_code == 404


def test_all_dead_letters_come_page_by_page(client: Client, write: Write) -> None:
    write([dead_letter("odd" if number % 2 else "even") for number in range(1_003)])

    def pages(**asked: object) -> list[list[int]]:
        actual, after = [], None
        while not actual or after is not None:
            body = {"all": True, "dry_run": True, "after": after, **asked}
            answer = client.post("/admin/dlq/replay", json=body, headers=ADMIN).json()
            actual.append([result["offset"] for result in answer["results"]])
            after = answer["next"]
        return actual

    assert [len(page) for page in pages()] == [1_000, 3]
    assert [len(page) for page in pages(reason="odd")] == [500, 1]
    write([dead_letter_gone(17)])
    assert 17 not in pages()[0]
    [expired] = [
        row
        for row in client.get("/admin/dlq?limit=2000", headers=ADMIN).json()["rows"]
        if row["expired_at"] is not None
    ]
    assert expired["offset"] == 17


def test_what_its_topic_has_forgotten_is_no_row_any_more(client: Client, write: Write) -> None:
    def there() -> tuple[list[str], int]:
        letters = client.get("/admin/dlq", headers=ADMIN).json()["rows"]
        traces = client.get("/admin/traces?request_id=copy", headers=ADMIN).json()["traces"]
        return [letter["reason"] for letter in letters], len(traces)

    day_ms = 24 * 60 * 60 * 1_000
    write([dead_letter("old"), duplicate("copy")])
    write([outcome("e1")], RECEIVED_AT_MS + 13 * day_ms)
    assert there() == (["old"], 1)
    write([dead_letter("new", RECEIVED_AT_MS + 20 * day_ms)], RECEIVED_AT_MS + 20 * day_ms)
    assert there() == (["new", "old"], 0)
    write([outcome("e2")], RECEIVED_AT_MS + 31 * day_ms)
    assert there() == (["new"], 0)


def test_the_projections_say_how_far_they_are(client: Client, write: Write) -> None:
    write([outcome("e1")])
    result = client.get("/admin/projections", headers=ADMIN).json()
    assert [(one["topic"], one["next_offset"]) for one in result["positions"]] == [
        ("webhook-outcomes", 1)
    ]
    assert result["errors"] == []


def mirrored(client: Client, database: Path, said: list[str]) -> dict[str, int]:
    client.headers.update(READ)

    def fetch(path: str, **parameters: str | int | None) -> HttpAnswer:
        answer = client.get(path, params=parameters)
        return HttpAnswer(str(answer.url), answer.status_code, answer.headers, answer.content)

    mirror = Mirror(database, fetch, report=said.append, sleep=lambda _: None)
    return mirror.sync()


def test_the_mirror_follows_the_rows(client: Client, write: Write, tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    said: list[str] = []
    write([day("user_1", f"2026-07-{number:02}", steps=number) for number in range(1, 31)])
    assert mirrored(client, database, said)["daily_summary"] == 30
    assert mirrored(client, database, said)["daily_summary"] == 0
    write([day("user_1", "2026-07-01", steps=99)])
    assert mirrored(client, database, said)["daily_summary"] == 1
    rows = sqlite3.connect(database)
    total = rows.execute("select count(*), sum(steps) from daily_summary").fetchone()
    rows.close()
    assert total == (30, sum(range(2, 31)) + 99)
    assert not said


def test_the_mirror_starts_over_on_another_database(
    client: Client, write: Write, migrated: str, tmp_path: Path
) -> None:
    """The same address, rebuilt: its cursors are those of another database."""
    database = tmp_path / "rows.sqlite"
    said: list[str] = []
    write([day("user_1", "2026-07-01", steps=1)])
    mirrored(client, database, said)
    rows = sqlite3.connect(database)
    with rows:
        rows.execute("update daily_summary set datetime = '1999-01-01'")
    rows.close()
    _rename(migrated)
    assert mirrored(client, database, said)["daily_summary"] == 1
    rows = sqlite3.connect(database)
    days = rows.execute("select datetime from daily_summary").fetchall()
    rows.close()
    assert days == [("2026-07-01",)]
    assert any("starting over" in line for line in said)


def _rename(dsn: str) -> None:
    """Gives a database another identity, as one that was rebuilt has."""
    with psycopg.connect(dsn) as connection:
        connection.execute("update projection_identity set id = gen_random_uuid()")
