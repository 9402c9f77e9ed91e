"""Two installations and another program in one database: each has its own, and nothing else."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headwater.processors.runs.step_commits import StepCommit
from headwater.projections.api_keys import API_KEYS
from headwater.projections.audit import AUDIT, AuditFilter, newest
from headwater.projections.errors import SchemaTaken
from headwater.projections.postgres import schema_prefix
from headwater.projections.postgres.connections import PooledReader, in_schema, own_dsn
from headwater.projections.postgres.migrate import catalogue, migrate, unapplied
from headwater.projections.postgres.roles import make_reader, make_roles
from headwater.projections.rebuilds.rebuilds import RebuildWork
from headwater.projections.workflows.step_commits import StepCommits
from headwater.schemas.codec import encode
from headwater.schemas.records import OperationAudited
from tests.fakes.step_sql import returned
from tests.integration.one_topic import project
from tests.integration.test_deployment_projection import key_created

ANALYST = "analyst_of_schemas"
PASSWORD = "of the tests"


def silent(line: str) -> None:
    del line


def ask(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        result = connection.execute(query.encode())
        return result.fetchall() if result.description else []


@pytest.fixture(scope="module")
def shared(module_migrated: str) -> Iterator[str]:
    """A database with the schema of the default project, that of another, and a program's table."""
    ask(module_migrated, "create table public.users (id integer, name text)")
    ask(module_migrated, "insert into public.users values (1, 'Ada')")
    other = in_schema(module_migrated, "headwater_acme")
    make_roles(other)
    assert migrate(other, silent) == [migration.name for migration in catalogue()]
    yield module_migrated
    assert ask(module_migrated, "select * from public.users") == [(1, "Ada")]
    for role in ("gateway", "projector", "worker"):
        ask(module_migrated, f"drop owned by headwater_acme_{role}")
        ask(module_migrated, f"drop role headwater_acme_{role}")


@pytest.fixture
def acme(shared: str) -> str:
    return in_schema(shared, "headwater_acme")


def test_two_schemas_have_the_same_tables_and_none_of_the_others_rows(shared: str, acme: str):
    names = "select relname from pg_class where relnamespace = current_schema()::regnamespace"
    assert set(ask(own_dsn(acme), names)) == set(ask(own_dsn(shared), names))
    assert unapplied(acme)[0] == []
    ask(own_dsn(acme), "insert into step_epochs (partition, epoch) values (7, 1)")
    assert ask(own_dsn(shared), "select * from step_epochs where partition = 7") == []
    outside = (
        "select distinct n.nspname from pg_depend d join pg_class c on c.oid = d.refobjid "
        "join pg_namespace n on n.oid = c.relnamespace join pg_rewrite r on r.oid = d.objid "
        "join pg_class v on v.oid = r.ev_class "
        "where v.relnamespace = 'headwater_acme'::regnamespace"
    )
    assert ask(shared, outside) == [("headwater_acme",)], "views read tables of their own schema"


def test_steps_of_two_projects_write_tables_of_their_own(shared: str, acme: str):
    async def committed(dsn: str, text: str) -> object:
        async with StepCommits(dsn) as commits:
            await commits.claim(3, 100)
            step = returned(
                ("create table if not exists notes (text text)",),
                (f"insert into notes values ('{text}')",),  # noqa: S608 (of this test)
            )
            return await commits.commit(3, 100, StepCommit("note/1", 0, step))

    for dsn, text in ((shared, "default"), (acme, "acme")):
        asyncio.run(committed(dsn, text))
    assert ask(shared, "select * from authors.notes") == [("default",)]
    assert ask(shared, "select * from headwater_acme_authors.notes") == [("acme",)]
    for dsn in (shared, acme):
        assert ask(own_dsn(dsn), "select instance_key from step_commits") == [("note/1",)]
    login = make_conninfo(shared, **dict(zip(("user", "password"), _login(acme), strict=True)))
    for query in ("select * from authors.notes", "select * from headwater_acme.step_login"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(login, query)
    assert ask(login, "select * from headwater_acme_authors.notes") == [("acme",)]


def _login(dsn: str) -> tuple[str, str]:
    ((name, password),) = ask(own_dsn(dsn), "select name, password from step_login")
    return name, password


def test_a_role_reaches_its_schema_alone(shared: str, acme: str):
    with psycopg.connect(shared, autocommit=True) as connection:
        set_password = sql.SQL("alter role headwater_acme_projector password {}")
        connection.execute(set_password.format(sql.Literal(PASSWORD)))
    login = make_conninfo(acme, user="headwater_acme_projector", password=PASSWORD)
    assert ask(own_dsn(login), "select count(*) from daily_summary") == [(0,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(own_dsn(login), "select * from headwater.daily_summary")


def test_an_analyst_of_a_project_finds_its_tables_by_name(shared: str, acme: str):
    assert "daily_summary" in make_reader(acme, ANALYST)
    try:
        with psycopg.connect(shared, autocommit=True) as connection:
            connection.execute(
                sql.SQL("alter role {} password {}").format(
                    sql.Identifier(ANALYST), sql.Literal(PASSWORD)
                )
            )
        login = make_conninfo(shared, user=ANALYST, password=PASSWORD)
        assert ask(login, "select count(*) from daily_summary") == [(0,)]
        ask(login, "select * from data_quality")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(login, "select * from headwater.daily_summary")
    finally:
        ask(shared, f"drop owned by {ANALYST}")
        ask(shared, f"drop role {ANALYST}")


def test_two_projects_rebuild_at_the_same_time(shared: str, acme: str):
    async def begun() -> list[bool]:
        works = [RebuildWork(dsn, "r") for dsn in (shared, acme, acme)]
        try:
            return [await work.begin() for work in works]
        finally:
            for work in works:
                await work.close()

    assert asyncio.run(begun()) == [True, True, False]


def test_a_schema_with_tables_of_another_program_is_refused(fresh_database: str):
    ask(fresh_database, "create schema headwater")
    ask(fresh_database, "create table headwater.users (id integer)")
    ask(fresh_database, "create table headwater.orders (id integer)")
    with pytest.raises(SchemaTaken, match=r"schema headwater .*: orders, users; nothing was"):
        migrate(fresh_database, silent)
    schemas = "select nspname from pg_namespace where nspname like 'headwater%'"
    assert ask(fresh_database, schemas) == [("headwater",)]
    assert ask(fresh_database, "select * from headwater.users") == []
    migrate(in_schema(fresh_database, "elsewhere"), silent)
    assert ask(fresh_database, "select count(*) from elsewhere.daily_summary") == [(0,)]


def test_a_schema_has_the_rows_of_one_prefix(migrated: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schema_prefix, "_RETRY_S", 0.01)
    refused = r"prefix 'shop\.', found rows of those with 'acme\.'"

    async def scenario() -> None:
        # A gateway or worker may start before the first projector of its schema.
        checking = asyncio.create_task(schema_prefix.check_prefix(migrated, "shop."))
        await asyncio.sleep(0.1)
        assert not checking.done()
        for _ in range(2):
            await schema_prefix.bind_prefix(migrated, "acme.")
        with pytest.raises(SchemaTaken, match=refused):
            await schema_prefix.bind_prefix(migrated, "shop.")
        with pytest.raises(SchemaTaken, match=refused):
            await checking
        await schema_prefix.check_prefix(migrated, "acme.")

    asyncio.run(scenario())


def test_a_new_schema_gets_the_growths_of_its_topics_from_the_log(migrated: str):
    first, second = (2, [10, 20]), (4, [15, 25, 5, 6])

    async def after(prefix: str, *growths: tuple[int, list[int]]) -> object:
        await schema_prefix.bind_prefix(migrated, prefix, growths)
        return ask(migrated, "select growths from projection_identity")[0][0]

    assert asyncio.run(after("v3.")) == []
    assert asyncio.run(after("v3.", first, second)) == [list(first), list(second)]
    assert asyncio.run(after("v3.", first)) == [list(first), list(second)]
    with pytest.raises(SchemaTaken):
        asyncio.run(after("other.", first, second, first))
    assert asyncio.run(after("v3.")) == [list(first), list(second)]


def test_rows_of_a_project_are_written_to_and_read_from_its_schema(shared: str, acme: str):
    async def listed(dsn: str) -> list[str]:
        async with PooledReader(dsn) as reader:
            entries, _ = await newest(reader, AuditFilter(), limit=10)
        return [chained.entry.id for chained in entries]

    for dsn, name in ((shared, "default"), (acme, "acme")):
        project(AUDIT, dsn, [encode(audited(name))], [])
        project(API_KEYS, dsn, [encode(key_created(f"key_{name}", 0))], [])
    for dsn, name in ((shared, "default"), (acme, "acme")):
        assert asyncio.run(listed(dsn)) == [f"entry of {name}"]
        assert ask(own_dsn(dsn), "select id from api_keys") == [(f"key_{name}",)]


def audited(project: str) -> OperationAudited:
    return OperationAudited(
        id=f"entry of {project}", key_id="admin:1", project_id=project, action="keys.create",
        resource="/v1/keys", result="success", ip="", user_agent="", metadata="{}", at_ms=1,
    )  # fmt: skip
