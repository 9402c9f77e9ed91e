"""The mirror against a scripted server: what passes is tried again, what is new is taken."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest

from headwater.gateway.api.row_streams import page_messages
from headwater.gateway.cli.api import Api, CliEnvironment
from headwater.gateway.cli.sync import Mirror, SyncFailed
from headwater.gateway.client.answers import UnexpectedAnswerError
from headwater.processors.wipes import digest
from headwater.projections.deliveries.sync import SyncPage
from headwater.schemas.failures import ClientError
from headwater.schemas.tables import TABLES, Table

DAY = {"user_id": "u", "source": "garmin", "datetime": "2026-07-01", "steps": 1}


class Script:
    """Answers in turn, and remembers what was asked, said and slept."""

    def __init__(self, answers: Iterable[httpx2.Response | Exception]) -> None:
        self.answers = iter(answers)
        self.asked: list[dict[str, str]] = []
        self.headers: list[httpx2.Headers] = []
        self.said: list[str] = []
        self.slept: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(dict(request.url.params))
        self.headers.append(request.headers)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sync(
        self, database: Path, since: str | None = None, table: str | None = None
    ) -> dict[str, int]:
        with self.mirror(database, table) as (mirror, _):
            return mirror.sync(since)

    @contextmanager
    def mirror(self, database: Path, table: str | None = None) -> Iterator[tuple[Mirror, Api]]:
        environment = CliEnvironment(network=httpx2.MockTransport(self))
        with click.Context(click.Command("sync"), obj=environment):
            api = Api("http://headwater", {})
            mirror = Mirror(
                database,
                api.exchange,
                report=self.said.append,
                sleep=self.slept.append,
                table=table,
            )
            yield mirror, api


def page(
    cursor: str, *rows: dict[str, Any], more: bool = False, **tables: object
) -> httpx2.Response:
    whole = {"tables": {"daily_summary": rows, **tables}, "cursor": cursor, "has_more": more}
    return httpx2.Response(200, json=whole)


def problem(status: int, code: str, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, json={"code": code, "detail": "why"}, headers=named)


def rows(database: Path, query: str = "select * from daily_summary") -> list[dict[str, Any]]:
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query)]
    finally:
        connection.close()


def test_what_was_deleted_is_deleted_and_what_came_back_is_there(tmp_path: Path) -> None:
    database = tmp_path / "copy.sqlite"
    other = {**DAY, "datetime": "2026-07-02"}
    Script([page("c1", DAY, other)]).sync(database)
    removed = {"deleted": True, "user_id": "u", "source": "garmin", "datetime": "2026-07-01"}
    again = {**DAY, "steps": 5}
    unheard_of = {**removed, "datetime": "2026-07-09"}
    written = Script([page("c2", removed, unheard_of)]).sync(database)
    assert written["daily_summary"] == 2
    assert [row["datetime"] for row in rows(database)] == ["2026-07-02"]
    Script([page("c3", removed, again)]).sync(database)
    assert sorted(row["steps"] for row in rows(database)) == [1, 5]
    assert "deleted" not in rows(database)[0]


def test_pages_are_copied_and_the_next_sync_goes_on_from_the_cursor(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    first = Script([page("c1", DAY, more=True), page("c2", {**DAY, "datetime": "2026-07-02"})])
    assert first.sync(database)["daily_summary"] == 2
    second = Script([page("c3", {**DAY, "steps": 7})])
    assert second.sync(database)["daily_summary"] == 1
    assert [requested.get("cursor") for requested in first.asked + second.asked] == [
        None,
        "c1",
        "c2",
    ]
    assert [row["steps"] for row in rows(database)] == [7, 1]


def test_a_stream_is_copied_page_by_page(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    later = {**DAY, "datetime": "2026-07-02"}
    key = {name: DAY[name] for name in ("user_id", "source", "datetime")}
    changes = SyncPage(
        tables={"daily_summary": [{"deleted": True, **key}, later]}, cursor="c2", has_more=False
    )
    half = page_messages(
        SyncPage(tables={"daily_summary": [DAY, later]}, cursor="c3", has_more=False)
    ).partition(b"\n\n")[0]
    body = b"retry: 1000\n\n" + page_messages(changes) + half + b"\n\n"
    stream = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    script = Script([page("c1", DAY), stream])
    with script.mirror(database) as (mirror, api):
        mirror.sync()
        with pytest.raises(ClientError, match="ended too early"):
            mirror.follow(lambda cursor: api.follow("/v1/sync", cursor))
    assert script.headers[-1]["last-event-id"] == "c1"
    assert [row["datetime"] for row in rows(database)] == ["2026-07-02"]
    # What came of an incomplete page comes again.
    again = Script([page("c3", DAY)])
    again.sync(database)
    assert again.asked[0]["cursor"] == "c2"


def test_the_same_page_twice_changes_nothing(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    Script([page("c1", DAY)]).sync(database)
    before = rows(database)
    Script([page("c2", DAY)]).sync(database)
    assert rows(database) == before


def test_columns_have_the_catalogues_types_and_nested_values_become_json(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    Script([page("c1", {**DAY, "column_sources": {"a": 1}, "resting_heart_rate": 52})]).sync(
        database
    )
    (row,) = rows(database)
    assert row["column_sources"] == '{"a":1}'
    kinds = {
        info["name"]: info["type"] for info in rows(database, "pragma table_info(daily_summary)")
    }
    assert (kinds["steps"], kinds["resting_heart_rate"], kinds["user_id"]) == (
        "INTEGER",
        "REAL",
        "TEXT",
    )


def test_a_column_of_a_newer_server_is_added(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    Script([page("c1", DAY)]).sync(database)
    Script([page("c2", {**DAY, "new_column": 5})]).sync(database)
    assert rows(database)[0]["new_column"] == 5


def test_a_table_of_a_newer_server_is_named_and_passed_over(tmp_path: Path) -> None:
    script = Script([page("c1", DAY, moods=[{"user_id": "u"}])])
    script.sync(tmp_path / "rows.sqlite")
    assert any("moods" in line for line in script.said)


def test_an_expired_cursor_starts_over_from_scratch_and_says_so(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    Script([page("c1", DAY, {**DAY, "datetime": "2026-06-01"})]).sync(database)
    script = Script([problem(410, "cursor_expired"), page("c9", DAY)])
    script.sync(database)
    assert [requested.get("cursor") for requested in script.asked] == ["c1", None]
    assert any("starting over" in line for line in script.said)
    assert [row["datetime"] for row in rows(database)] == ["2026-07-01"]


def test_a_server_that_calls_every_beginning_expired_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(SyncFailed, match="cursor_expired"):
        Script([problem(410, "cursor_expired")]).sync(tmp_path / "rows.sqlite")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_passes_is_tried_again_after_a_while(tmp_path: Path, status: int) -> None:
    script = Script([problem(status, "later"), httpx2.ConnectError("refused"), page("c1", DAY)])
    assert script.sync(tmp_path / "rows.sqlite")["daily_summary"] == 1
    assert script.slept == [0.5, 1.0]


def test_a_server_that_asks_for_patience_gets_it(tmp_path: Path) -> None:
    script = Script([problem(429, "later", retry_after="7"), page("c1", DAY)])
    script.sync(tmp_path / "rows.sqlite")
    assert script.slept == [7.0]


def test_a_server_that_stays_away_is_given_up_in_one_line(tmp_path: Path) -> None:
    script = Script([httpx2.ConnectError("refused")] * 6)
    with pytest.raises(SyncFailed, match=r"expected Headwater at http://headwater.*refused"):
        script.sync(tmp_path / "rows.sqlite")
    assert script.slept == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_what_does_not_pass_is_not_tried_again(tmp_path: Path) -> None:
    script = Script([problem(401, "unauthorized")])
    with pytest.raises(SyncFailed, match="401 unauthorized: why"):
        script.sync(tmp_path / "rows.sqlite")
    assert not script.slept


def test_another_server_is_said_to_be_one(tmp_path: Path) -> None:
    script = Script([httpx2.Response(200, text="<html>")])
    with pytest.raises(UnexpectedAnswerError, match=r"expected Headwater at .* found something"):
        script.sync(tmp_path / "rows.sqlite")


def test_since_begins_a_copy_and_does_not_move_one_that_exists(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    script = Script([page("c1", DAY), page("c2", DAY)])
    script.sync(database, "2026-07-01T00:00:00Z")
    script.sync(database, "2026-07-01T00:00:00Z")
    assert script.asked[0]["since"] == "2026-07-01T00:00:00Z"
    assert script.asked[1] == {"limit": "1000", "cursor": "c1"}


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, only a long enough text to be taken for one" * 20)
    with pytest.raises(SyncFailed, match=r"notes\.txt"):
        Script([]).sync(file)


def tables_of(database: Path) -> set[str]:
    return {row["name"] for row in rows(database, "select name from sqlite_master")}


def test_a_table_without_rows_is_there_to_be_asked(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    Script([page("c1")]).sync(database)
    assert {"daily_summary", "sleep_sessions", "terra_connections"} <= tables_of(database)


def test_somebody_may_be_wiped_before_anybody_was_copied(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    removed = {"deleted": True, "user_sha256": "0" * 64}
    everywhere = {table.name: [removed] for table in TABLES if "user_id" in columns_of(table)}
    assert "users" in everywhere
    assert Script([page("c1", **everywhere)]).sync(database)["users"] == 1


def test_of_a_user_who_was_wiped_nothing_is_left_in_the_file(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    wiped = {**DAY, "user_id": "user_wiped"}
    removed = {"deleted": True, "user_sha256": digest("user_wiped")}
    script = Script([page("c1", DAY, wiped, {**wiped, "source": "oura"}), page("c2", removed)])
    script.sync(database)
    assert b"user_wiped" in database.read_bytes()
    script.sync(database)
    assert [row["user_id"] for row in rows(database)] == ["u"]
    assert b"user_wiped" not in database.read_bytes()


def columns_of(table: Table) -> set[str]:
    return {item.name for item in (*table.key, *table.columns, *table.generated)}


def test_biomarkers_are_side_by_side_in_the_copy_as_they_are_in_postgres(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    day = {"user_id": "u", "source": "terra_lab", "date": "2026-07-01"}
    result = [
        {**day, "code": "glucose", "value": 5.0, "unit": "mmol/L"},
        {**day, "code": "ldl", "value": 110.0, "unit": "mg/dL"},
        {**day, "code": "hdl", "value": 50.0},
        {**day, "code": "iron", "value": 12.0, "unit": "\u00b5mol / L"},
        {**day, "code": "of_nobody", "value": 1.0},
    ]
    for cursor in ("c1", "c2"):
        Script([page(cursor, biomarkers_raw=result)]).sync(database)
        (row,) = rows(database, "select * from biomarkers_wide")
        assert {name: value for name, value in row.items() if value is not None} == {
            **day,
            "glucose": pytest.approx(90.078),
            "ldl": 110.0,
            "iron": pytest.approx(67.014),
            "hdl": 50.0,
            "unconverted": 0,
            "without_unit": 1,
        }


def test_one_table_is_copied_alone_and_has_a_cursor_of_its_own(tmp_path: Path) -> None:
    database = tmp_path / "rows.sqlite"
    Script([page("all", DAY)]).sync(database)
    one = Script([page("one", {**DAY, "steps": 2}), problem(410, "cursor_expired"), page("two")])
    assert one.sync(database, table="daily_summary") == {"daily_summary": 1}
    one.sync(database, table="daily_summary")
    assert [requested.get("cursor") for requested in one.asked] == [None, "one", None]
    assert {requested["table"] for requested in one.asked} == {"daily_summary"}
    assert rows(database) == []
    Script([page("more")]).sync(database)
