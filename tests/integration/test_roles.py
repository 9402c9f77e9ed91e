"""The roles of parts; the parts themselves run with them in all tests of `e2e`."""

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import conninfo, sql

from headwater.gateway.cli.main import cli
from headwater.processors.runs.decisions import StepReturned
from headwater.processors.runs.step_commits import StepCommit
from headwater.projections.errors import TableUnfit
from headwater.projections.postgres.migrate import migrate
from headwater.projections.postgres.roles import ROLES, make_roles
from headwater.projections.postgres.table_ddl import make_tables
from headwater.projections.workflows import step_commits
from headwater.projections.workflows.step_commits import StepCommits
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.installed_tables import INSTALLED
from tests.fakes.step_sql import returned
from tests.fakes.toy_table import TOY_BOXES

PASSWORD = "of the tests"
Login = Callable[[str], "psycopg.Connection[tuple[object, ...]]"]


@pytest.fixture(scope="module")
def roles(module_migrated: str) -> str:
    """A database whose roles have passwords, as an operator gives them."""
    make_roles(module_migrated)
    migrate(module_migrated, lambda _: None)
    with psycopg.connect(module_migrated, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(
                sql.SQL("alter role {} password {}").format(
                    sql.Identifier(role), sql.Literal(PASSWORD)
                )
            )
    return module_migrated


def dsn_of(dsn: str, role: str) -> str:
    return conninfo.make_conninfo(
        dsn, user=role, password=PASSWORD, options="-c search_path=headwater"
    )


@pytest.fixture
def login(roles: str) -> Iterator[Login]:
    connections = []

    def connect(role: str) -> "psycopg.Connection[tuple[object, ...]]":
        connections.append(psycopg.connect(dsn_of(roles, role), autocommit=True))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()


REFUSED = {
    "headwater_gateway": (
        "delete from webhook_outcomes",
        "insert into daily_summary (user_id) values ('u')",
        "delete from audit_logs",
        "select * from step_login",
        "update step_epochs set epoch = 0",
        "create table headwater.own (i int)",
        "create schema own",
        "create table authors.own (i int)",
    ),
    "headwater_projector": (
        "select * from step_login",
        "delete from step_commits",
        "delete from schema_migrations",
        "create table headwater.own (i int)",
        "drop table daily_summary",
    ),
    "headwater_worker": (
        "delete from webhook_outcomes",
        "delete from idempotency",
        "update daily_summary set steps = 0",
        "update step_login set password = 'mine'",
        "create table headwater.own (i int)",
    ),
}
ALLOWED = {
    "headwater_gateway": (
        "select * from daily_summary",
        "delete from idempotency",
        "delete from unexpected_hits",
    ),
    "headwater_projector": (
        "delete from daily_summary",
        "delete from idempotency",
        "create schema headwater_rebuilt",
        "drop schema headwater_rebuilt",
    ),
    "headwater_worker": (
        "select * from daily_summary",
        "delete from step_commits",
        "delete from rebuilds",
        "insert into rebuilds (id, projection, dry_run, state) "
        "values (gen_random_uuid()::text, 'users', false, 'verified')",
    ),
}


@pytest.mark.parametrize(
    ("role", "statement"), [(role, item) for role in ROLES for item in REFUSED[role]]
)
def test_a_part_does_not_reach_what_it_does_not_need(login: Login, role: str, statement: str):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        login(role).execute(statement.encode())


@pytest.mark.parametrize(
    ("role", "statement"), [(role, item) for role in ROLES for item in ALLOWED[role]]
)
def test_a_part_reaches_what_it_needs(login: Login, role: str, statement: str):
    login(role).execute(statement.encode())


def test_no_role_of_a_part_has_a_power_over_the_server(login: Login, roles: str):
    with psycopg.connect(roles) as connection:
        result = connection.execute(
            "select count(*) from pg_roles where rolname = any(%s) and not (rolsuper or "
            "rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)",
            [[*ROLES]],
        )
        assert result.fetchone() == (len(ROLES),)


def test_a_projector_finds_the_tables_of_packages_and_makes_none(roles: str):
    dsn = dsn_of(roles, "headwater_projector")
    make_tables(dsn, print, INSTALLED)
    with pytest.raises(TableUnfit, match=r"toy_boxes .*run `headwater migrate`"):
        make_tables(dsn, print, [TOY_BOXES])


def test_a_worker_claims_partitions_with_its_role(roles: str):
    async def scenario() -> None:
        async with StepCommits(dsn_of(roles, "headwater_worker")) as worker:
            assert await worker.claim(0, 1) == []
            await worker.forget(0, [])

    asyncio.run(scenario())


def test_a_login_of_steps_that_sql_has_locked_out_works_again(
    roles: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_commits, "_TURN_TIMEOUT_S", 1.0)
    change = "do $$ begin execute 'alter role current_user password ''mine'''; end $$"

    async def scenario() -> None:
        one = StepCommit("o/1", 0, returned((change,), step="locks-out"))
        two = StepCommit("o/1", 0, returned(("select 1",), step="goes-on"))
        async with StepCommits(dsn_of(roles, "headwater_worker")) as worker:
            await worker.claim(0, 1)
            assert isinstance(await worker.commit(0, 1, one), StepReturned)
        async with StepCommits(dsn_of(roles, "headwater_worker")) as worker:
            await worker.claim(0, 1)
            with pytest.raises(StoreUnavailable):
                await worker.commit(0, 1, two)
            assert isinstance(await worker.commit(0, 1, two), StepReturned)

    asyncio.run(scenario())


def test_the_command_makes_roles_that_cannot_log_in_yet(fresh_database: str):
    for _ in range(2):
        ended = CliRunner().invoke(cli, ["migrate", "--roles", "--postgres", fresh_database])
        assert ended.exit_code == 0, ended.output
    with psycopg.connect(fresh_database) as connection:
        result = connection.execute(
            "select has_table_privilege('headwater_gateway', 'headwater.daily_summary', 'select')"
        )
        assert result.fetchone() == (True,)
