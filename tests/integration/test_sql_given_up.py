"""A step that is given up while Postgres is at its SQL: what took effect is known and undone."""

import asyncio
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from headwater.projections.workflows.step_commits import StepCommits
from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import SendEvent, StartRun
from tests.databases import of_authors
from tests.e2e.workflow_system import Sender
from tests.fakes.proxy import Proxy
from tests.waiting import until
from tests.workflow_parts import a_client, a_worker, running, started

#: How many steps wait for the lock that a test holds.
WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE application_name = 'headwater-steps' AND wait_event_type = 'Lock'"
)


@pytest.mark.parametrize("workflow", ["races", "groups"])
def test_a_step_whose_sql_takes_effect_after_it_was_given_up_is_rolled_back(
    topics: str, migrated: str, tmp_path: Path, workflow: str
):
    undone, tells = tmp_path / "undone", tmp_path / "told"
    params = f'{{"undone": "{undone}", "told": "{tells}"}}'
    client = a_client(topics)

    async def scenario(lock: "psycopg.Connection[tuple[int]]") -> None:
        async with started(client), StepCommits(migrated) as database:
            worker = a_worker(topics, apps=["tests.apps.giving_up"], database=database)
            async with running(worker):
                sender = Sender(client)
                await sender.ready()
                reply = await sender.send(workflow, workflow, StartRun(params))
                assert reply.code in {"", INSTANCE_EXISTS}
                await until(lambda: lock.execute(WAITING).fetchone() == (1,))
                await sender.send(workflow, workflow, SendEvent("go", "go", "null"))
                await until(tells.exists)
                lock.execute("SELECT pg_advisory_unlock(1)")
                await until(undone.exists)

    with psycopg.connect(of_authors(migrated), autocommit=True) as lock:
        lock.execute("CREATE TABLE charges (id int)")
        lock.execute("SELECT pg_advisory_lock(1)")
        asyncio.run(scenario(lock))
        assert lock.execute("SELECT count(*) FROM charges").fetchone() == (1,)
    assert undone.read_text() == "paid"


#: COMMIT waits for a lock that a test holds.
WAITS_AT_COMMIT = b"""
CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN PERFORM pg_advisory_xact_lock(2); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON charges DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION waits()
"""


def test_a_step_that_is_given_up_though_nobody_knows_its_effect_is_rolled_back(
    topics: str, migrated: str, tmp_path: Path
):
    """The connection breaks amid COMMIT, which Postgres carries out all the same."""
    undone, tells = tmp_path / "undone", tmp_path / "told"
    params = f'{{"undone": "{undone}", "told": "{tells}"}}'
    client = a_client(topics)
    where = conninfo.conninfo_to_dict(migrated)

    async def scenario(lock: "psycopg.Connection[tuple[int]]", network: Proxy) -> None:
        host, port = network.address.split(":")
        dsn = conninfo.make_conninfo(migrated, host=host, port=port)
        async with started(client), StepCommits(dsn) as database:
            worker = a_worker(topics, apps=["tests.apps.giving_up"], database=database)
            async with running(worker):
                sender = Sender(client)
                await sender.ready()
                await sender.send("races", "unknown", StartRun(params))
                await until(lambda: lock.execute(WAITING).fetchone() == (1,))
                await sender.send("races", "unknown", SendEvent("go", "go", "null"))
                await until(tells.exists)
                network.drop()
                # It is asked for again, and waits for the transaction whose end nobody knows.
                await until(lambda: lock.execute(WAITING).fetchone() == (2,))
                lock.execute("SELECT pg_advisory_unlock(2)")
                await until(undone.exists)

    network = Proxy(lambda: f"{where['host']}:{where['port']}")
    with psycopg.connect(of_authors(migrated), autocommit=True) as lock, network:
        lock.execute("CREATE TABLE charges (id int)")
        lock.execute(WAITS_AT_COMMIT)
        lock.execute("SELECT pg_advisory_lock(2)")
        asyncio.run(scenario(lock, network))
        assert lock.execute("SELECT count(*) FROM charges").fetchone() == (1,)
    assert undone.read_text() == "paid"
