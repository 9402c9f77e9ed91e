"""A replay of everything goes through every part, is marked, and changes no row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg import sql

from headwater.schemas.tables import TABLES
from tests.e2e.deliveries import mixed
from tests.e2e.system import ADMIN, System, opened
from tests.waiting import ANSWERED_WITHIN_S

#: The system's own workflows alone.
RUNNER = ("worker2", "--app", "headwater")


@pytest.fixture
def system(tmp_path: Path, fresh_database: str) -> Iterator[System]:
    system = System(
        tmp_path,
        fresh_database,
        HEADWATER_PARK_FOR_S="600",
        HEADWATER_RETENTION="headwater-replay=1 ms, 1 day",
    )
    with opened(system) as opened_system:
        opened_system.start(*RUNNER)
        yield opened_system


def versions(system: System) -> dict[str, list[tuple[Any, ...]]]:
    """The transaction that wrote each row last."""
    with psycopg.connect(system.dsn) as connection:
        return {
            table.name: connection.execute(
                sql.SQL("select t::text from {} t order by 1").format(sql.Identifier(table.name))
            ).fetchall()
            for table in TABLES
        }


def ask(system: System, path: str, body: object = None) -> dict[str, Any]:
    method = "GET" if body is None else "POST"
    answer = httpx2.request(
        method, system.url() + path, json=body, headers=ADMIN, timeout=ANSWERED_WITHIN_S
    )
    assert answer.is_success, answer.text
    return dict(answer.json())


def marked(system: System, replay_id: str) -> int:
    with psycopg.connect(system.dsn) as connection:
        query = "select count(*) from webhook_outcomes where replay = %s"
        (count,) = connection.execute(query, [replay_id]).fetchone() or (0,)
        return int(count)


def test_a_replay_of_everything_changes_no_row_and_goes_on_after_a_kill(system: System) -> None:
    system.deliver(mixed(3, 150))
    expected = system.check()
    before = versions(system)
    rehearsed = ask(system, "/admin/replays", {"all": True, "dry_run": True})
    assert (rehearsed["state"], rehearsed["replayed"]) == ("done", 0)
    assert rehearsed["matched"] == len(expected.outcomes)
    assert ask(system, f"/admin/replays/{rehearsed['id']}") == rehearsed

    begun = ask(system, "/admin/replays", {"all": True, "rate": 10})
    path = f"/admin/replays/{begun['id']}"
    assert begun["instance"] == {"workflow": "headwater-replay", "id": begun["id"]}
    system.wait(lambda: ask(system, path)["replayed"] >= 20, "some pages to be replayed")
    system.kill("worker2")
    assert ask(system, path)["state"] == "running"
    system.start(*RUNNER)
    system.wait(lambda: ask(system, path)["state"] != "running", "the replay to end")
    done = ask(system, path)
    assert (done["state"], done["replayed"], done["gone"]) == ("done", rehearsed["matched"], 0)

    system.wait(lambda: marked(system, begun["id"]) == done["replayed"], "outcomes to be marked")
    assert versions(system) == before
    system.check()
    event_id = next(iter(expected.outcomes))

    def trace() -> dict[str, Any]:
        return dict(ask(system, f"/admin/deliveries/{event_id}")["delivery"]["journeys"][-1])

    system.wait(lambda: trace()["replay"] == begun["id"], "the replay's trace")
    system.wait(
        lambda: f"replay {begun['id']}" in [hop["detail"] for hop in trace()["hops"]], "its hop"
    )
    prunes_what_is_past_its_retention(system, begun["id"])


def prunes_what_is_past_its_retention(system: System, replay_id: str) -> None:
    past = ask(system, "/admin/prunes", {"dry_run": True})
    # The replay and the dry run before it.
    assert (past["state"], past["by_workflow"]) == ("dry_run", {"headwater-replay": 2})
    begun = ask(system, "/admin/prunes", {})
    path = f"/admin/prunes/{begun['id']}"
    system.wait(lambda: ask(system, path)["state"] == "done", "the prune to end")
    done = ask(system, path)
    assert (done["matched"], done["deleted"], done["kept"]) == (2, 2, 0)
    assert done["records"] > 0
    system.wait(lambda: not rows_of(system, replay_id), "the rows to go")
    assert rows_of(system, begun["id"]) > 0
    system.wait(
        lambda: ask(system, "/admin/prunes", {"dry_run": True})["matched"] == 0,
        "the rows of the dry run to go, too",
    )


def rows_of(system: System, instance_id: str) -> int:
    with psycopg.connect(system.dsn) as connection:
        tables = ("workflow_instance", "workflow_step", "workflow_log", "workflow_event")
        query = " + ".join(
            f"(select count(*) from {table} where instance_id = %(id)s)"  # noqa: S608
            for table in tables
        )
        (count,) = connection.execute(f"select {query}", {"id": instance_id}).fetchone() or (0,)
        return int(count)
