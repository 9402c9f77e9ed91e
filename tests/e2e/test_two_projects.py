"""Goal: two projects and another program share one Kafka and one Postgres, and see nothing of each
other.

Method: both take deliveries with the same bytes, run an instance with the same key and publish
under the same idempotency key. Then one of them wipes a user, rebuilds a table and checks its
topics; the other one, and the program, have what they had.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from typing_extensions import override

from headwater.projections.postgres.connections import in_schema, own_dsn
from tests import forker
from tests.e2e.deliveries import auth, daily
from tests.e2e.system import ADMIN, System
from tests.waiting import ANSWERED_WITHIN_S

#: Topics of the other program: two are named like Headwater's, one like a project's.
TOPICS = ("events", "webhooks", "taken.events")
SOURCES = """
every_provider = true

[[source]]
name = "program"
kind = "kafka"
topic = "events"
format = "json"
type = { cel = "'seen'" }
subject = { cel = "'program'" }
"""
WORKFLOWS = {"x-api-key": "dev-workflow-key"}
USER = "user_1"


class Project(System):
    """The processes of a project; broker and database are there."""

    def __init__(self, name: str, directory: Path, kafka: str, dsn: str, **settings: str) -> None:
        self.name = name
        schema = f"headwater_{name}"
        super().__init__(directory, own_dsn(in_schema(dsn, schema)), **settings)
        self.server = dsn
        self.bootstrap = kafka

    @override
    def open(self) -> None:
        assert self.command("topics", "create", "--partitions", "1").returncode == 0
        assert self.command("migrate").returncode == 0
        for part in ("gateway", "worker", "project"):
            self.start(part)
        self.start("worker2", "--app", "tests.e2e.project_app")

    @override
    def close(self) -> None:
        for part in list(self.parts):
            self.kill(part)

    @override
    def _dsn_of(self, command: str) -> str:
        return self.server

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command in a process of its own, whose clients have the prefix of this project."""
        file = self.directory / "command.log"
        variables = {
            "HEADWATER_KAFKA": self.bootstrap,
            "HEADWATER_POSTGRES": self.server,
            "HEADWATER_PARTITIONS": "1",
            "HEADWATER_URL": f"{self.url()}/api/workflows" if self.ports else "",
            **self.settings,
        }
        with file.open("wb") as log:
            code = forker.start("headwater", arguments, log, **variables).wait(ANSWERED_WITHIN_S)
        return subprocess.CompletedProcess(arguments, code, file.read_text())

    def ask(self, path: str, body: object = None) -> Any:  # noqa: ANN401
        method = "GET" if body is None else "POST"
        url, headers = self.url() + path, ADMIN | WORKFLOWS
        answer = httpx2.request(method, url, json=body, headers=headers, timeout=ANSWERED_WITHIN_S)
        assert answer.is_success, answer.text
        return answer.json()

    def select(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        body = {"id": "order-1", "params": {"text": text}}
        created = f"{self.url()}/api/workflows/workflows/note/instances"
        headers = WORKFLOWS | {"idempotency-key": "key-1"}

        def create() -> bool:
            answer = httpx2.post(created, json=body, headers=headers, timeout=ANSWERED_WITHIN_S)
            assert answer.is_success or answer.status_code == 503, answer.text
            return answer.is_success

        self.wait(create, "a worker")
        output = "select output from workflow_instance where instance_id = 'order-1'"
        self.wait(lambda: self.select(output) == [(text,)], "the instance to be complete")

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        tables = ("daily_summary", "users", "webhook_outcomes", "audit_logs")
        queries = {table: f"select t::text from {table} t" for table in tables}  # noqa: S608
        # Headwater's own instances go on by themselves.
        of_authors = "where workflow_name not like 'headwater-%'"
        instances = "workflow_instance"
        queries[instances] = f"select t::text from {instances} t {of_authors}"  # noqa: S608
        return {table: sorted(self.select(query)) for table, query in queries.items()}


async def make_topics(kafka: str) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        made = [name for name in TOPICS if name not in await admin.list_topics()]
        await admin.create_topics([NewTopic(name, 1, 1) for name in made])
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for name in made:
            await producer.send_and_wait(name, b"not Headwater's", partition=0)
    return made


async def delete_topics(kafka: str, names: list[str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        ours = [n for n in await admin.list_topics() if n.startswith(("acme.", "shop."))]
        await admin.delete_topics([*names, *ours])
    finally:
        await admin.close()


async def ends(kafka: str) -> dict[str, int]:
    async with AIOKafkaConsumer(bootstrap_servers=kafka) as consumer:
        ends = await consumer.end_offsets([TopicPartition(name, 0) for name in TOPICS])
    return {partition.topic: end for partition, end in ends.items()}


async def names_in(kafka: str) -> tuple[set[str], set[str]]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        return set(await admin.list_topics()), {g for g, _ in await admin.list_consumer_groups()}
    finally:
        await admin.close()


@pytest.fixture
def program(kafka: str, fresh_database: str) -> Iterator[list[str]]:
    """A program with a table `users` and topics; it has the same afterwards. The new topics."""
    made = asyncio.run(make_topics(kafka))
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute("create table public.users (id integer, name text)")
        connection.execute("insert into public.users values (1, 'Ada')")
    before = asyncio.run(ends(kafka))
    try:
        yield made
        assert asyncio.run(ends(kafka)) == before
        with psycopg.connect(fresh_database) as connection:
            assert connection.execute("select * from users").fetchall() == [(1, "Ada")]
    finally:
        asyncio.run(delete_topics(kafka, made))


def project(name: str, scratch: Path, kafka: str, dsn: str, sources: str = "") -> Project:
    directory = scratch / f"project-{name}"
    directory.mkdir()
    (directory / "sources.toml").write_text(sources)
    # One data folder: the stores of both have different folders in it.
    data = str(scratch / "data-of-projects")
    settings = {"HEADWATER_PROJECT": name, "HEADWATER_DATA_DIR": data}
    if sources:
        settings["HEADWATER_SOURCES"] = str(directory / "sources.toml")
    return Project(name, directory, kafka, dsn, **settings)


def test_two_projects_and_another_program_share_kafka_and_postgres(
    scratch: Path, kafka: str, fresh_database: str, program: list[str]
):
    acme = project("acme", scratch, kafka, fresh_database)
    shop = project("shop", scratch, kafka, fresh_database, SOURCES)
    refuses_what_others_have(acme, kafka)
    groups_before = asyncio.run(names_in(kafka))[1]
    try:
        acme.open()
        shop.open()
        both_work_with_the_same_names(acme, shop)
        if "events" in program:
            # Its own topic of that name is `shop.events`.
            read = "select reason from webhook_outcomes where source = 'program'"
            shop.wait(lambda: shop.select(read) == [("malformed_payload",)], "the program's record")
        before = shop.everything()
        acme_is_wiped_rebuilt_and_checked(acme)
        assert shop.everything() == before
        assert shop.ask("/admin/rebuilds")["rebuilds"] == []
        topics, groups = asyncio.run(names_in(kafka))
        assert {"acme.webhooks", "shop.webhooks"} <= topics
        prefixes = {group.partition(".")[0] for group in groups - groups_before}
        assert prefixes == {"acme", "shop"}
    finally:
        acme.close()
        shop.close()


def both_work_with_the_same_names(acme: Project, shop: Project) -> None:
    deliveries = [auth(1), daily(1, 1, 700), daily(1, 2, 800)]
    acme.deliver(deliveries)
    shop.deliver(deliveries[:2])
    acme.note("of acme")
    shop.note("of shop")
    acme.wait(lambda: len(acme.select("select from daily_summary")) == 2, "the rows of acme")
    shop.wait(lambda: len(shop.select("select from daily_summary")) == 1, "the row of shop")
    # The id of a connection event also depends on its time.
    terra = "select event_id from webhook_outcomes where source = 'terra' and type = 'daily'"
    assert [len(each.select(terra)) for each in (acme, shop)] == [2, 1]
    assert set(shop.select(terra)) < set(acme.select(terra)), "ids are the same in both"
    for each in (acme, shop):
        notes = each.select(f"select * from headwater_{each.name}_authors.notes")  # noqa: S608
        assert notes == [("order-1", f"of {each.name}")]
        assert set(each.select("select project_id from audit_logs")) == {(each.name,)}


def acme_is_wiped_rebuilt_and_checked(acme: Project) -> None:
    acme.wipe(USER)
    assert acme.select("select from daily_summary") == []
    begun = acme.ask("/admin/rebuilds", {"projection": "daily_summary", "verify": False})
    path = f"/admin/rebuilds/{begun['id']}"
    acme.wait(lambda: acme.ask(path)["state"] == "compared", "the rebuild to be compared")
    checked = acme.command("topics", "check")
    assert checked.returncode == 0, checked.stdout
    doctor = acme.command("doctor", "--json").stdout
    assert '"check":"topics","state":"ok"' in "".join(doctor.split()), doctor


def refuses_what_others_have(acme: Project, kafka: str) -> None:
    """With names that another program has, nothing is created."""
    topics = asyncio.run(names_in(kafka))[0]
    acme.settings["HEADWATER_TOPIC_PREFIX"] = "taken."
    refused = acme.command("topics", "create")
    assert refused.returncode != 0
    assert "topics of another program: taken.events; nothing was changed" in refused.stdout
    assert asyncio.run(names_in(kafka))[0] == topics
    del acme.settings["HEADWATER_TOPIC_PREFIX"]
