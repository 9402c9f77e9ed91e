"""Goal: topics get more partitions, and nothing is lost: order, deduplication, rows, instances.

Method: a project takes deliveries, copies, unreadable and parked ones, and runs instances with
timers and events. It is stopped, and grows from 2 to 6 partitions; the command is killed while it
copies, and run again. Then everything is as before: copies are dropped, instances continue, dead
letters can be put back, cursors and positions are valid.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest
from typing_extensions import override

from headwater.streams.kafka.records import partition_of
from tests import forker
from tests.e2e.deliveries import auth, daily, mixed
from tests.e2e.system import READER
from tests.e2e.test_two_projects import WORKFLOWS, Project, names_in
from tests.waiting import ANSWERED_WITHIN_S

BEFORE, AFTER = 2, 6
COPIED_WITHIN_S = 600.0
INSTANCES = [f"p-{number}" for number in range(12)]
TABLES = ("daily_summary", "sleep_sessions", "terra_connections", "users", "webhook_outcomes")


class Growing(Project):
    """A project that gets more partitions."""

    @property
    def old(self) -> str:
        return f"{self.name}."

    @property
    def new(self) -> str:
        return f"{self.name}.v2."

    @override
    def open(self) -> None:
        made = self.command("topics", "create", "--partitions", str(BEFORE))
        assert made.returncode == 0, made.stdout
        assert self.command("migrate").returncode == 0
        self.run()

    def run(self) -> None:
        for part in ("gateway", "worker", "project"):
            self.start(part)
        self.start("worker2", "--app", "tests.e2e.growing_app")

    def rest(self) -> None:
        """Stop everything in order, once everything was processed."""
        self.stop("gateway")
        self.refuses_to_grow_while_processes_run()
        for part in list(self.parts):
            self.stop(part)
        for _ in range(20):
            checked = self.grow("--partitions", str(AFTER), "--check")
            if checked.returncode == 0:
                return
            assert "expected everything to be read" in checked.stdout, checked.stdout
            for part in ("worker", "project"):
                self.start(part)
            self.start("worker2", "--app", "tests.e2e.growing_app")
            time.sleep(2)
            for part in list(self.parts):
                self.stop(part)
        raise AssertionError("there is always something unread")

    def refuses_to_grow_while_processes_run(self) -> None:
        refused = self.grow("--partitions", str(AFTER))
        assert refused.returncode != 0
        assert "expected no process of this project" in refused.stdout, refused.stdout

    def grow(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """The command; a copy takes longer than other commands."""
        file = self.directory / "grow.log"
        with file.open("wb") as log:
            code = self.start_growing(log, *arguments).wait(COPIED_WITHIN_S)
        return subprocess.CompletedProcess(arguments, code, file.read_text())

    def start_growing(self, log: BinaryIO, *arguments: str) -> "subprocess.Popen[bytes]":
        variables = {
            "HEADWATER_KAFKA": self.bootstrap,
            "HEADWATER_POSTGRES": self.server,
            **self.settings,
        }
        command = ["topics", "grow", "--to", self.new, "--yes", *arguments]
        return forker.start("headwater", command, log, **variables)

    def rows_of_all(self) -> dict[str, list[tuple[Any, ...]]]:
        return {
            table: sorted(self.select(f"select t::text from {table} t"))  # noqa: S608 (of this test)
            for table in TABLES
        }

    def status(self, name: str) -> tuple[str, Any]:
        """Status and output of an instance."""
        query = f"select status, output from workflow_instance where instance_id = '{name}'"  # noqa: S608
        ((status, output),) = self.select(query)
        return status, output

    def create(self, name: str, rest: str) -> None:
        self._send("", {"id": name, "params": {"text": name, "rest": rest}}, f"create-{name}")

    def go(self, name: str) -> None:
        self._send(f"/{name}/events", {"type": "go", "payload": f"go {name}"}, f"go-{name}")

    def _send(self, path: str, body: object, key: str) -> None:
        """Sends a request until a worker has executed it."""
        url = f"{self.url()}/api/workflows/workflows/patient/instances{path}"
        headers = WORKFLOWS | {"idempotency-key": key}

        def is_done() -> bool:
            answer = httpx.post(url, json=body, headers=headers, timeout=ANSWERED_WITHIN_S)
            assert answer.is_success or answer.status_code == 503, answer.text
            return answer.is_success

        self.wait(is_done, key)


@pytest.fixture
def system(
    scratch: Path, kafka: str, fresh_database: str, request: pytest.FixtureRequest
) -> Iterator[Growing]:
    # Of its own, because the broker keeps the topics.
    name = {"test_a_copy_can_be_given_up": "kept"}.get(request.node.name, "grown")
    directory = scratch / f"project-{name}"
    directory.mkdir()
    settings = {
        "HEADWATER_PROJECT": name,
        "HEADWATER_DATA_DIR": str(directory / "data"),
        "HEADWATER_PARTITIONS": str(BEFORE),
    }
    system = Growing(name, directory, kafka, fresh_database, **settings)
    try:
        yield system
    finally:
        system.close()


def test_a_system_with_more_partitions_continues_as_it_was(system: Growing):
    bodies = mixed(7, 80)
    system.open()
    outcomes = fill(system, bodies)
    cursor = cursor_of(system)
    letters = system.ask("/admin/dlq")
    assert letters
    system.rest()
    before = system.rows_of_all()

    interrupted_copy(system)
    grown = system.grow("--partitions", str(AFTER))
    assert grown.returncode == 0, grown.stdout
    assert f"HEADWATER_TOPIC_PREFIX={system.new}" in grown.stdout
    old_topics_are_closed(system)

    system.settings |= {"HEADWATER_TOPIC_PREFIX": system.new, "HEADWATER_PARTITIONS": str(AFTER)}
    # As a new database, it has to learn from Kafka where positions have moved.
    growths = "select jsonb_array_length(growths) from projection_identity"
    assert system.select(growths) == [(1,)]
    system.select("update projection_identity set growths = '[]' returning one")
    system.run()
    system.wait(lambda: system.select(growths) == [(1,)], "the growth")
    continues(system, bodies, before, outcomes, letters, cursor)
    drops_the_old_topics(system)


def continues(
    system: Growing,
    bodies: list[bytes],
    before: dict[str, list[tuple[Any, ...]]],
    outcomes: dict[str, str],
    letters: object,
    cursor: str,
) -> None:
    assert system.rows_of_all() == before
    copies_are_dropped(system, bodies, before)
    instances_continue(system)
    positions_are_valid(system, outcomes, letters, cursor)
    system.wipe("user_1")
    assert system.select("select from daily_summary where user_id = 'user_1'") == []
    for command in (("topics", "check"), ("audit", "verify")):
        checked = system.command(*command)
        assert checked.returncode == 0, checked.stdout


def drops_the_old_topics(system: Growing) -> None:
    system.settings["HEADWATER_TOPIC_PREFIX"] = system.old
    dropped = system.grow("--drop-old")
    assert dropped.returncode == 0, dropped.stdout
    names = asyncio.run(names_in(system.bootstrap))[0]
    assert f"{system.old}webhooks" not in names
    assert f"{system.new}webhooks" in names


def fill(system: Growing, bodies: list[bytes]) -> dict[str, str]:
    """Deliveries of all kinds, and instances; return the positions of deliveries."""
    system.deliver([*bodies, b"not JSON"])
    for number, name in enumerate(INSTANCES):
        system.create(name, "1 second" if number % 2 else "60 seconds" if number else "60 days")
    known = len(set(bodies))
    count = "select count(*) from webhook_outcomes"
    system.wait(lambda: system.select(count)[0][0] >= known, "the outcomes")
    began = (
        "select count(*) from workflow_step where workflow_name = 'patient' and name = 'begin' "
        "and status = 'completed'"
    )
    system.wait(lambda: system.select(began)[0][0] == len(INSTANCES), "the instances to begin")
    system.go(INSTANCES[1])
    system.wait(lambda: system.status(INSTANCES[1])[0] == "complete", "the first end")
    positions = "select event_id, format('%s@%s', partition, \"offset\") from webhook_outcomes"
    return dict(system.select(positions))


def cursor_of(system: Growing) -> str:
    cursor = ""
    while True:
        parameters = {"cursor": cursor} if cursor else {}
        page = httpx.get(f"{system.url()}/v1/sync", params=parameters, headers=READER).json()
        cursor = page["cursor"]
        if not page["has_more"]:
            return cursor


def interrupted_copy(system: Growing) -> None:
    """Kill the command while it copies."""
    with (system.directory / "killed.log").open("wb") as log:
        growing = system.start_growing(log, "--partitions", str(AFTER))
    deadline = time.monotonic() + ANSWERED_WITHIN_S
    while f"{system.new}webhooks" not in asyncio.run(names_in(system.bootstrap))[0]:
        assert growing.poll() is None, (system.directory / "killed.log").read_text()
        assert time.monotonic() < deadline
    growing.kill()
    growing.wait()
    unchanged = system.select("select topic_prefix from projection_identity")
    assert unchanged in ([(system.old,)], [(None,)])


def old_topics_are_closed(system: Growing) -> None:
    """A process with the old prefix ends, and names the new one."""
    refused = system.command("worker")
    assert refused.returncode != 0
    assert "headwater topics grow" in refused.stdout


def copies_are_dropped(
    system: Growing, bodies: list[bytes], before: dict[str, list[tuple[Any, ...]]]
) -> None:
    count = "select count(*) from duplicates"
    known = system.select(count)[0][0]
    sent = [body for body in dict.fromkeys(bodies) if json.loads(body)["type"] == "daily"]
    system.deliver(sent)
    rejected = "select count(*) from request_answers where code = 'duplicate'"
    system.wait(
        lambda: system.select(count)[0][0] + system.select(rejected)[0][0] >= known + len(sent),
        "the copies to be dropped",
    )
    assert system.rows_of_all() == before
    new = [auth(40), daily(40, 3, 4_321), daily(1, 27, 12_345, known=True)]
    system.deliver(new)
    steps = "select steps from daily_summary where steps in (4321, 12345) order by steps"
    system.wait(lambda: system.select(steps) == [(4_321,), (12_345,)], "new rows")


def instances_continue(system: Growing) -> None:
    for name in INSTANCES:
        if name != INSTANCES[1]:
            system.go(name)
    for name in INSTANCES[1:]:
        ended = ("complete", [f"began {name}", f"go {name}", "ended"])
        system.wait(
            lambda name=name, ended=ended: system.status(name) == ended, f"the end of {name}"
        )
    key = "workflow_name || '/' || instance_id"
    for table in ("workflow_instance", "workflow_run"):
        for name, partition in system.select(f"select {key}, partition from {table}"):  # noqa: S608 (of this test)
            assert partition == partition_of(name.encode(), AFTER)
    assert system.status(INSTANCES[0])[0] == "waiting"


def positions_are_valid(
    system: Growing,
    outcomes: dict[str, str],
    letters: object,
    cursor: str,
) -> None:
    for event_id, position in outcomes.items():
        stored = system.ask(f"/admin/raw-events/{position}")
        assert stored["raw_event_id"] == event_id
        assert stored.get("gone") is None
    assert system.ask("/admin/dlq") == letters
    page = httpx.get(f"{system.url()}/v1/sync", params={"cursor": cursor}, headers=READER)
    changed = page.json()["tables"]["daily_summary"]
    assert {row["steps"] for row in changed} == {4_321, 12_345}


def another_project_is_left_alone(system: Growing) -> None:
    """Topics that exist are no copies: nothing is written to them, or deleted."""
    system.settings |= {"HEADWATER_TOPIC_PREFIX": "live."}
    assert system.command("topics", "create", "--partitions", "1").returncode == 0
    del system.settings["HEADWATER_TOPIC_PREFIX"]
    message = "expected no topics with the prefix 'live.'"
    for arguments in (("--partitions", str(AFTER)), ("--abort",)):
        command = ("topics", "grow", "--to", "live.", "--yes", *arguments)
        # The broker may still be loading its groups.
        system.wait(lambda command=command: message in system.command(*command).stdout, message)
    assert "live.webhooks" in asyncio.run(names_in(system.bootstrap))[0]


def test_a_copy_can_be_given_up(system: Growing):
    made = system.command("topics", "create", "--partitions", str(BEFORE))
    assert made.returncode == 0, made.stdout
    assert system.command("migrate").returncode == 0
    wrong = system.grow("--partitions", "5")
    assert "a multiple of 2" in wrong.stdout
    another_project_is_left_alone(system)
    interrupted_copy(system)
    aborted = system.grow("--abort")
    assert aborted.returncode == 0, aborted.stdout
    assert f"{system.new}webhooks" not in asyncio.run(names_in(system.bootstrap))[0]
    system.run()
    system.deliver([auth(1), daily(1, 1, 700)])
    rows = "select count(*) from daily_summary"
    system.wait(lambda: system.select(rows) == [(1,)], "the row")
