"""A replay of everything goes through every part, is marked, and changes no row.

The same system sends notifications.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg import sql

from headwater.processors.signatures import SCHEMES, Verified, verify
from headwater.schemas.tables import TABLES
from tests.e2e.deliveries import mixed
from tests.e2e.system import ADMIN, System, opened
from tests.fakes.receiver import Received, receiving
from tests.waiting import ANSWERED_WITHIN_S

RUNNER = ("worker2", "--app", "tests.apps.service")
#: A failure starts a workflow.
RULES = """
[[rule]]
name = "on-failure"
source = "headwater"
type = "instance_errored"
workflow = "echo"
mode = "start"
params = '{"failed": event.body.id, "params": event.body.params}'
"""
SIGNED = SCHEMES["standard-webhooks"]


@pytest.fixture
def system(tmp_path: Path, fresh_database: str) -> Iterator[System]:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    system = System(
        tmp_path,
        fresh_database,
        HEADWATER_RULES=str(rules),
        HEADWATER_ENDPOINT_RETRIES="1 second, 1 second",
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


def wait_for(system: System, path: str) -> None:
    """Waits until Postgres has an operation: a slow system answers before it has."""
    url = system.url() + path
    system.wait(lambda: httpx2.get(url, headers=ADMIN, timeout=ANSWERED_WITHIN_S).is_success, path)


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
    wait_for(system, f"/admin/replays/{rehearsed['id']}")
    assert ask(system, f"/admin/replays/{rehearsed['id']}") == rehearsed

    begun = ask(system, "/admin/replays", {"all": True, "rate": 10})
    path = f"/admin/replays/{begun['id']}"
    assert begun["instance"] == {"workflow": "headwater-replay", "id": begun["id"]}
    wait_for(system, path)
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
    notifies(system)


def prunes_what_is_past_its_retention(system: System, replay_id: str) -> None:
    past = ask(system, "/admin/prunes", {"dry_run": True})
    # The replay and the dry run before it.
    assert (past["state"], past["by_workflow"]) == ("dry_run", {"headwater-replay": 2})
    begun = ask(system, "/admin/prunes", {})
    path = f"/admin/prunes/{begun['id']}"
    wait_for(system, path)
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


# -- notifications


def create(system: System, url: str, types: list[str]) -> tuple[str, str]:
    """Create an endpoint; return its path and its secret."""
    made = ask(system, "/v1/endpoints", {"url": url, "types": types})
    return f"/v1/endpoints/{made['id']}", made["secret"]


def fail(system: System, name: str) -> None:
    def created() -> bool:
        answer = httpx2.post(
            system.url() + "/api/workflows/workflows/flaky/instances",
            json={"id": name, "params": {"name": name}},
            headers={"authorization": "Bearer dev-workflow-key"},
            timeout=ANSWERED_WITHIN_S,
        )
        return answer.is_success or answer.status_code == 409

    system.wait(created, f"{name} to begin")


class Notified:
    """What arrived at a path of the receiver."""

    def __init__(self, requests: list[Received], path: str, secret: str = "") -> None:
        self.requests = requests
        self.path = path
        self.secret = secret

    def arrived(self) -> list[Received]:
        return [request for request in list(self.requests) if request.path == self.path]

    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.arrived()]

    def bodies(self, type_: str) -> list[dict[str, Any]]:
        """Bodies of a type; all are signed with the secret."""
        bodies = []
        for request in self.arrived():
            verified = verify(SIGNED, request.headers, request.body, [self.secret], time.time())
            assert isinstance(verified, Verified), verified
            bodies.append(json.loads(request.body))
        return [body for body in bodies if body["type"] == type_]

    def failed(self, name: str) -> bool:
        return any(body["data"]["id"] == name for body in self.bodies("instance_errored"))


class Receiver:
    """Answers by path: `/broken` with 500 while it is, `/late` with 503 the first time."""

    def __init__(self) -> None:
        self.is_broken = True
        self.refused: list[Received] = []

    def status_of(self, request: Received) -> int:
        if request.path == "/broken" and self.is_broken:
            return 500
        if request.path == "/late" and not self.refused:
            self.refused.append(request)
            return 503
        return 204


def notifies(system: System) -> None:
    receiver = Receiver()
    with receiving(receiver.status_of) as (url, requests):
        _, secret = create(system, f"{url}/hooks", ["instance_errored", "dead_letter"])
        hooks = Notified(requests, "/hooks", secret)
        failures_arrive_signed(system, hooks)
        endpoint, secret = create(system, f"{url}/late", ["instance_errored"])
        late = Notified(requests, "/late", secret)
        arrives_though_the_worker_is_killed(system, receiver, endpoint, late)
        endpoint, secret = create(system, f"{url}/broken", ["instance_errored"])
        fail(system, "n-3")
        is_disabled(system, endpoint)
        fail(system, "n-4")
        system.wait(lambda: hooks.failed("n-4"), "others to be notified")
        receiver.is_broken = False
        gets_what_it_has_missed(system, endpoint, Notified(requests, "/broken", secret))


def failures_arrive_signed(system: System, hooks: Notified) -> None:
    fail(system, "n-1")
    system.deliver([b'{"type": "daily", "user": 7}'])
    system.wait(lambda: hooks.failed("n-1"), "the failed instance")
    system.wait(lambda: bool(hooks.bodies("dead_letter")), "the dead letter")
    (body,) = hooks.bodies("instance_errored")
    assert body["data"]["error"]["name"] == "NonRetryableError"
    assert body["data"]["params"] == {"name": "n-1"}
    reacts_once(system, "n-1")


def arrives_though_the_worker_is_killed(
    system: System, receiver: Receiver, endpoint: str, late: Notified
) -> None:
    fail(system, "n-2")
    system.wait(lambda: bool(receiver.refused), "an attempt to be refused")
    system.kill("worker2")
    system.start(*RUNNER)
    system.wait(lambda: late.failed("n-2"), "the notification")
    message = receiver.refused[0].headers["webhook-id"]
    system.wait(lambda: late.ids().count(message) > 1, "the next attempt")
    deliveries = ask(system, f"{endpoint}/deliveries")["deliveries"]
    (delivery,) = (one["id"] for one in deliveries if one["messageId"] == message)
    path = f"{endpoint}/deliveries/{delivery}"
    system.wait(lambda: ask(system, path)["state"] == "delivered", "its delivery to be complete")
    # The worker may have been killed before it had recorded the first attempt.
    assert statuses(system, path) in ([204, 503], [204])


def statuses(system: System, delivery: str) -> list[int]:
    """The statuses that the attempts of a delivery were answered with, the latest first."""
    return [attempt["status"] for attempt in ask(system, delivery)["attempts"]]


def is_disabled(system: System, endpoint: str) -> None:
    system.wait(lambda: ask(system, endpoint)["state"] == "disabled", "it to be disabled")
    system.wait(lambda: bool(failed_to(system, endpoint)), "its failed delivery")
    attempts = statuses(system, f"{endpoint}/deliveries/{failed_to(system, endpoint)[-1]}")
    # A worker that was killed may have cut off the first one.
    assert (len(attempts), set(attempts[1:])) == (3, {500})
    name = endpoint.rpartition("/")[2]
    system.wait(lambda: system.says("worker2", f"the endpoint {name} is disabled"), "its line")

    def is_audited() -> bool:
        query = "select key_id from audit_logs where action = %s and resource = %s"
        with psycopg.connect(system.dsn) as connection:
            rows = connection.execute(query, ["endpoints.disable", endpoint]).fetchall()
        return rows == [("headwater",)]

    system.wait(is_audited, "its entry in the audit log")


def failed_to(system: System, endpoint: str) -> list[str]:
    """Ids of the failed deliveries to an endpoint, the newest first."""
    page = ask(system, f"{endpoint}/deliveries?state=failed")
    return [delivery["id"] for delivery in page["deliveries"]]


def gets_what_it_has_missed(system: System, endpoint: str, repaired: Notified) -> None:
    ask(system, f"{endpoint}/enable", {})
    begun = ask(system, f"{endpoint}/replays", {"since": "2020-01-01T00:00:00Z"})
    replay = f"{endpoint}/replays/{begun['id']}"
    wait_for(system, replay)
    system.wait(lambda: ask(system, replay)["state"] == "done", "the replay to end")
    for name in ("n-1", "n-3", "n-4"):
        system.wait(lambda name=name: repaired.failed(name), f"{name}, which it has missed")
    assert ask(system, replay)["restarted"] >= 1


def reacts_once(system: System, name: str) -> None:
    """A workflow that a rule names has started, with the params of the failed instance."""
    query = "select output from workflow_instance where workflow_name = 'echo' and status = %s"

    def outputs() -> list[Any]:
        with psycopg.connect(system.dsn) as connection:
            rows = connection.execute(query, ["complete"]).fetchall()
        return [output for (output,) in rows if output["failed"] == name]

    system.wait(lambda: bool(outputs()), "the reaction")
    assert outputs() == [{"failed": name, "params": {"name": name}}]
