"""A replay of everything goes through every part, is marked, and changes no row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from headwater.schemas.tables import TABLES
from tests.e2e.deliveries import mixed
from tests.e2e.house import ADMIN, House, opened
from tests.waiting import ANSWERED_WITHIN_S

#: The house's own workflows alone.
RUNNER = ("worker2", "--app", "headwater")


@pytest.fixture
def house(tmp_path: Path, fresh_database: str) -> Iterator[House]:
    house = House(
        tmp_path,
        fresh_database,
        HEADWATER_PARK_FOR_S="600",
        HEADWATER_RETENTION="headwater-replay=1 ms, 1 day",
    )
    with opened(house) as opened_house:
        opened_house.start(*RUNNER)
        yield opened_house


def versions(house: House) -> dict[str, list[tuple[Any, ...]]]:
    """The transaction that wrote each row last."""
    with psycopg.connect(house.dsn) as connection:
        return {
            table.name: connection.execute(
                sql.SQL("select t::text from {} t order by 1").format(sql.Identifier(table.name))
            ).fetchall()
            for table in TABLES
        }


def ask(house: House, path: str, body: object = None) -> dict[str, Any]:
    method = "GET" if body is None else "POST"
    answer = httpx.request(
        method, house.url() + path, json=body, headers=ADMIN, timeout=ANSWERED_WITHIN_S
    )
    assert answer.is_success, answer.text
    return dict(answer.json())


def marked(house: House, replay_id: str) -> int:
    with psycopg.connect(house.dsn) as connection:
        query = "select count(*) from webhook_outcomes where replay = %s"
        (count,) = connection.execute(query, [replay_id]).fetchone() or (0,)
        return int(count)


def test_a_replay_of_everything_changes_no_row_and_goes_on_after_a_kill(house: House) -> None:
    house.deliver(mixed(3, 300))
    expected = house.check()
    before = versions(house)
    rehearsed = ask(house, "/admin/replays", {"dry_run": True})
    assert (rehearsed["state"], rehearsed["replayed"]) == ("done", 0)
    assert rehearsed["matched"] == len(expected.outcomes)
    assert ask(house, f"/admin/replays/{rehearsed['id']}") == rehearsed

    begun = ask(house, "/admin/replays", {"rate": 20})
    path = f"/admin/replays/{begun['id']}"
    assert begun["instance"] == {"workflow": "headwater-replay", "id": begun["id"]}
    house.wait(lambda: ask(house, path)["replayed"] >= 40, "some pages to be replayed")
    house.kill("worker2")
    assert ask(house, path)["state"] == "running"
    house.start(*RUNNER)
    house.wait(lambda: ask(house, path)["state"] != "running", "the replay to end")
    done = ask(house, path)
    assert (done["state"], done["replayed"], done["gone"]) == ("done", rehearsed["matched"], 0)

    house.wait(lambda: marked(house, begun["id"]) == done["replayed"], "outcomes to be marked")
    assert versions(house) == before
    house.check()
    event_id = next(iter(expected.outcomes))
    trace = ask(house, f"/admin/deliveries/{event_id}")["delivery"]["journeys"][-1]
    assert trace["replay"] == begun["id"]
    assert f"replay {begun['id']}" in [hop["detail"] for hop in trace["hops"]]
    prunes_what_is_past_its_retention(house, begun["id"])


def prunes_what_is_past_its_retention(house: House, replay_id: str) -> None:
    past = ask(house, "/admin/prunes", {"dry_run": True})
    # The replay and the dry run before it.
    assert (past["state"], past["by_workflow"]) == ("dry_run", {"headwater-replay": 2})
    begun = ask(house, "/admin/prunes", {})
    path = f"/admin/prunes/{begun['id']}"
    house.wait(lambda: ask(house, path)["state"] == "done", "the prune to end")
    done = ask(house, path)
    assert (done["matched"], done["deleted"], done["kept"]) == (2, 2, 0)
    assert done["records"] > 0
    house.wait(lambda: not rows_of(house, replay_id), "the rows to go")
    assert rows_of(house, begun["id"]) > 0
    house.wait(
        lambda: ask(house, "/admin/prunes", {"dry_run": True})["matched"] == 0,
        "the rows of the dry run to go, too",
    )


def rows_of(house: House, instance_id: str) -> int:
    with psycopg.connect(house.dsn) as connection:
        tables = ("workflow_instance", "workflow_step", "workflow_log", "workflow_event")
        query = " + ".join(
            f"(select count(*) from {table} where instance_id = %(id)s)"  # noqa: S608
            for table in tables
        )
        (count,) = connection.execute(f"select {query}", {"id": instance_id}).fetchone() or (0,)
        return int(count)
