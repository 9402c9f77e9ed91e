"""What the SQL of a step may not do: Postgres refuses it, whatever the words of the SQL are."""

# ruff: noqa: S608 (the names are of this test)

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headwater.processors.runs.decisions import StepReturned
from headwater.processors.runs.step_commits import StepCommit
from headwater.projections.postgres.connections import own_dsn
from headwater.projections.postgres.migrate import migrate
from headwater.projections.workflows import step_commits
from headwater.projections.workflows.step_commits import StepCommits
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import STATEMENT_REFUSED
from headwater.schemas.history import Failure
from tests.databases import of_authors
from tests.fakes.step_sql import INSERT, TABLE, returned

KEY = "orders/1"
PARTITION, EPOCH = 3, 100
_STEPS = itertools.count(1)
LOGIN = "select name from step_login"


class World:
    """A worker that has claimed a partition, and an operator who looks on."""

    def __init__(self, dsn: str, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self._stack = stack
        self.worker: StepCommits

    async def another(self, steps_dsn: str = "") -> StepCommits:
        worker = await self._stack.enter_async_context(StepCommits(self.dsn, steps_dsn))
        await worker.claim(PARTITION, EPOCH)
        return worker

    async def step(
        self, *statements: str, worker: StepCommits | None = None, name: str = ""
    ) -> Failure | None:
        """Has a step end with statements; returns why it failed, if it did."""
        step = returned(*((text,) for text in statements), step=name or f"step-{next(_STEPS)}")
        done = await (worker or self.worker).commit(PARTITION, EPOCH, StepCommit(KEY, 0, step))
        return done if isinstance(done, Failure) else None

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(of_authors(self.dsn), autocommit=True) as connection:
            result = connection.execute(query.encode())
            return result.fetchall() if result.description else []


Script: TypeAlias = Callable[[World], Awaitable[None]]
Play: TypeAlias = Callable[[Script], None]


@pytest.fixture
def play(module_migrated: str, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Plays a script with a worker that has one connection for steps."""
    monkeypatch.setattr(step_commits, "_CONNECTIONS_MAX", 1)
    with psycopg.connect(of_authors(module_migrated), autocommit=True) as connection:
        connection.execute("truncate step_commits, step_epochs")
        connection.execute("drop schema authors cascade")
    migrate(module_migrated, lambda _: None)
    with psycopg.connect(of_authors(module_migrated), autocommit=True) as connection:
        connection.execute(TABLE)

    async def within(script: Script) -> None:
        async with AsyncExitStack() as stack:
            world = World(module_migrated, stack)
            world.worker = await world.another()
            await script(world)

    return lambda script: asyncio.run(within(script))


def test_the_login_of_steps_reaches_nothing_of_headwaters(play: Play):
    async def script(world: World) -> None:
        ((login,),) = world.ask(LOGIN)
        reached = world.ask(
            "select relname from pg_class where relnamespace::regnamespace::text in "
            f"('headwater', 'authors', 'public') and relkind in ('r', 'p', 'v', 'm', 'S') and "
            f"(relkind <> 'S' and has_table_privilege('{login}', oid, "
            "'select, insert, update, delete, truncate, references, trigger'))"
        )
        assert reached == [("charges",)]
        created = world.ask(
            "select nspname from pg_namespace where "
            f"has_schema_privilege('{login}', oid, 'create') and nspname !~ '^pg_'"
        )
        assert created == [("authors",)]
        usable = world.ask(
            f"select has_schema_privilege('{login}', 'headwater', 'usage'), "
            f"has_database_privilege('{login}', current_database(), 'create')"
        )
        assert usable == [(False, False)]
        ((powers,),) = world.ask(
            "select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication "
            f"from pg_roles where rolname = '{login}'"
        )
        assert not powers

    play(script)


@pytest.mark.parametrize(
    "words",
    [
        'set local "role" to headwater',
        "select set_config('role', 'headwater', true)",
        "select set_config('role', 'none', false)",
        "do $$ begin execute 'reset role'; end $$",
        "do $$ begin execute 'set role headwater'; end $$",
        "do $$ begin execute 'set session authorization headwater'; end $$",
        "do $$ begin execute 'set session authorization default'; end $$",
        "select set_config('search_path', 'headwater', true)",
    ],
)
def test_no_words_make_a_step_another_role(play: Play, words: str):
    async def script(world: World) -> None:
        for statement in (
            "delete from headwater.step_epochs",
            "select ticket from headwater.step_epochs",
            "select password from headwater.step_login",
            "create table headwater.of_a_later_release (i int)",
        ):
            failure = await world.step(words, statement)
            assert failure is not None
            assert failure.name == "InsufficientPrivilege"
        assert world.ask("select partition from step_epochs") == [(PARTITION,)]

    play(script)


@pytest.mark.parametrize(
    "statement",
    [
        "create function public.convert_to(text, text) returns bytea language sql as 'select null'",
        "create table public.of_a_later_release (i int)",
        "create schema headwater_rebuilt",
        "create function headwater_steps.mine() returns int language sql as 'select 1'",
        "drop function headwater_steps.commit_step",
        "do $$ begin execute 'copy (select 1) to program ''true'''; end $$",
        "select pg_read_file('/etc/passwd')",
        "create role another superuser",
        "do $$ begin execute format('alter role %I superuser', session_user); end $$",
        "grant headwater to current_user",
    ],
)
def test_a_step_creates_in_the_schema_of_authors_alone(play: Play, statement: str):
    async def script(world: World) -> None:
        failure = await world.step(statement)
        assert failure is not None
        assert failure.name == "InsufficientPrivilege"
        assert await world.step("create table own (i int)", "insert into own values (1)") is None
        assert world.ask("select i from authors.own") == [(1,)]

    play(script)


def test_a_function_with_its_owners_rights_has_the_rights_of_steps(play: Play):
    async def script(world: World) -> None:
        definer = (
            "create function up() returns void language sql security definer begin atomic; {}; end"
        )
        dynamic = (
            "create function up() returns void language plpgsql security definer as "
            "$$ begin delete from headwater.step_epochs; end $$"
        )
        for creation in (definer.format("delete from headwater.step_epochs"), dynamic):
            failure = await world.step(creation, "select up()")
            assert failure is not None
            assert failure.name == "InsufficientPrivilege"

    play(script)


def test_a_function_of_an_author_takes_the_place_of_none_that_headwater_calls(play: Play):
    async def script(world: World) -> None:
        assert (
            await world.step(
                "create table taken (by text)",
                "grant all on taken to public",
                # More exact than pg_catalog.convert_to(text, name) for two texts.
                "create function convert_to(text, text) returns bytea language plpgsql as "
                "$$ begin insert into authors.taken values (current_user); return '\\x00'; end $$",
                "grant usage on schema authors to public",
            )
            is None
        )
        taking = "select convert_to('a'::text, 'UTF8')"
        with psycopg.connect(of_authors(world.dsn), autocommit=True) as connection:
            assert connection.execute(taking.encode()).fetchone() == (b"\x00",)
        with psycopg.connect(own_dsn(world.dsn), autocommit=True) as connection:
            assert connection.execute(taking.encode()).fetchone() == (b"a",)
        assert len(world.ask("select * from taken")) == 1

    play(script)


def test_no_step_writes_the_row_of_another(play: Play):
    async def script(world: World) -> None:
        forged = (
            "do $$ declare row record; begin "
            "select * into row from headwater_steps.commit_step("
            f"{PARTITION}, {EPOCH}, {{}}, 'orders/2', 0, 'pay', 1, '\\x90'); "
            "if row.is_held is distinct from false then raise exception 'it was held'; end if; "
            "end $$"
        )
        assert await world.step(forged.format("gen_random_uuid()")) is None
        assert await world.step(forged.format("null")) is None
        assert world.ask("select 1 from step_commits where instance_key = 'orders/2'") == []

    play(script)


@pytest.mark.parametrize(
    "left",
    [
        "select set_config('search_path', 'pg_catalog', false)",
        "select set_config('default_transaction_read_only', 'on', false)",
        "do $$ begin execute 'set session characteristics as transaction read only'; end $$",
        "create temp table charges (id int)",
        "do $$ begin execute 'alter role current_user set search_path = pg_catalog'; end $$",
        "do $$ begin execute 'alter role current_user set default_transaction_read_only = on'; "
        "end $$",
        "create function commit_step(int, int, uuid, text, int, text, int, bytea) "
        "returns int language sql as 'select 1'",
    ],
)
def test_what_a_step_leaves_behind_does_not_reach_the_next(play: Play, left: str):
    async def script(world: World) -> None:
        assert await world.step(left) is None
        for worker in (world.worker, await world.another()):
            assert await world.step("insert into charges (id) values ('a')", worker=worker) is None
            assert world.ask("select id from authors.charges") == [("a",)]
            assert await world.step("delete from charges", worker=worker) is None

    play(script)


def test_a_step_has_taken_effect_also_where_its_session_cannot_be_reset_in_time(play: Play):
    tables = (
        "do $$ begin for i in 1..400 loop "
        "execute format('create temp table t%s ()', i); end loop; end $$"
    )

    async def script(world: World) -> None:
        hurry = "select set_config('statement_timeout', '1ms', false)"
        statements = ("insert into charges (id) values ('a')", tables, hurry)
        try:
            assert await world.step(*statements, name="hurried") is None
        except StoreUnavailable:  # It is asked for again, and finds its row.
            assert await world.step(*statements, name="hurried") is None
        assert world.ask("select id from authors.charges") == [("a",)]
        assert await world.step("insert into charges (id) values ('b')") is None

    play(script)


@pytest.mark.parametrize("ending", ["select 1", "select 1 / 0"])
def test_a_lock_that_a_step_keeps_is_released_when_the_step_ends(play: Play, ending: str):
    async def script(world: World) -> None:
        # The lock that `headwater migrate` waits for.
        await world.step("select pg_advisory_lock(4820317795)", ending)
        assert world.ask("select 1 from pg_locks where locktype = 'advisory'") == []

    play(script)


@pytest.mark.parametrize(
    "ending",
    ["commit", "commit and chain", "rollback", "rollback and chain", "savepoint a", "begin"],
)
def test_an_end_of_the_transaction_that_was_not_foreseen_is_seen(
    play: Play, monkeypatch: pytest.MonkeyPatch, ending: str
):
    """As if the check of first words had overlooked it."""
    monkeypatch.setattr(step_commits, "refusal", lambda _: None)

    async def script(world: World) -> None:
        insert = "insert into charges (id) values ('{}')"
        failure = await world.step(insert.format("a"), ending, insert.format("b"), name="ends")
        assert failure is not None
        assert failure.name == STATEMENT_REFUSED
        committed = ending.startswith("commit")
        assert world.ask("select id from authors.charges") == ([("a",)] if committed else [])
        assert len(world.ask("select 1 from step_commits")) == committed
        # Once, also if it is tried again.
        again = await world.step(insert.format("a"), name="ends")
        assert again is None
        assert world.ask("select id from authors.charges") == [("a",)]

    play(script)


def test_without_a_login_of_steps_no_partition_is_taken(play: Play):
    async def script(world: World) -> None:
        world.ask("create temp table kept as select * from step_login; delete from step_login")
        with pytest.raises(StoreUnavailable, match="`headwater migrate` creates it"):
            await world.worker.claim(PARTITION, EPOCH)
        migrate(world.dsn, lambda _: None)
        assert await world.worker.claim(PARTITION, EPOCH) == []
        assert await world.step("insert into charges (id) values ('a')") is None

    play(script)


def test_an_operator_may_give_steps_a_login_of_their_own(play: Play):
    async def script(world: World) -> None:
        world.ask("delete from step_login")
        world.ask("drop role if exists shop")
        world.ask("create role shop login password 'open' in role headwater_steps")
        own = make_conninfo(world.dsn, user="shop", password="open")
        worker = await world.another(own)
        insert = "insert into charges (id) values (session_user)"
        assert await world.step(insert, worker=worker) is None
        assert world.ask("select id from authors.charges") == [("shop",)]

    play(script)


def test_who_may_make_no_roles_is_told_what_a_superuser_has_to_run(fresh_database: str):
    name = "modest_migrator"
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        role, database = sql.Identifier(name), sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("drop role if exists {}").format(role))
        connection.execute(sql.SQL("create role {} login password 'modest'").format(role))
        connection.execute(sql.SQL("grant create on database {} to {}").format(database, role))
    said: list[str] = []
    dsn = make_conninfo(fresh_database, user=name, password="modest")
    migrate(dsn, said.append)
    assert f"create role headwater_steps_{database.as_string().strip(chr(34))} login" in said[-1]
    with psycopg.connect(own_dsn(dsn)) as connection:
        assert connection.execute("select * from step_login").fetchall() == []


def test_steps_go_on_as_they_were_written(play: Play):
    async def script(world: World) -> None:
        step = StepCommit(KEY, 0, returned((INSERT, ("a", 1)), step="save"))
        for _ in range(2):
            done = await world.worker.commit(PARTITION, EPOCH, step)
            assert isinstance(done, StepReturned)
        assert world.ask("select id, amount from authors.charges") == [("a", 1)]

    play(script)
