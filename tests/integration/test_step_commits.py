"""The SQL of steps on a real Postgres: the contract, and what takes effect once."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import conninfo, sql

from headwater.processors.runs.decisions import StepReturned
from headwater.processors.runs.step_commits import EffectUnknown, StepCommit, StepId
from headwater.projections.postgres.migrate import migrate
from headwater.projections.workflows.step_commits import StepCommits
from headwater.schemas.errors import StoreUnavailable, Superseded, UndecodableRecord
from headwater.schemas.history import Failure, Post, StartRun
from tests.databases import of_authors
from tests.fakes.step_sql import INSERT, TABLE, Run, Scenario, StepSqlContract, returned

KEY = "orders/1"
PARTITION, EPOCH = 3, 100
#: Statements that do something strange the first time only; a sequence is not rolled back.
AT_FIRST_ALONE = "IF nextval('times') = 1 THEN {}; END IF;"
FIRST_TIME = f"DO $$ BEGIN {AT_FIRST_ALONE} END $$"
BEGIN_AGAIN = "RAISE EXCEPTION 'once more' USING ERRCODE = '{}'"
BREAK_OFF = "PERFORM break_off()"
#: Runs when all statements have.
BREAK_OFF_AT_COMMIT = f"""
CREATE OR REPLACE FUNCTION break_off_first() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
AS $f$ BEGIN {AT_FIRST_ALONE.format(BREAK_OFF)} RETURN NULL; END $f$;
CREATE CONSTRAINT TRIGGER breaks AFTER INSERT ON charges DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION break_off_first()
"""
#: Not every role may end the sessions of a superuser.
MAKE_BREAK_OFF = (
    "CREATE OR REPLACE FUNCTION break_off() RETURNS boolean LANGUAGE sql SECURITY DEFINER "
    "AS 'SELECT pg_terminate_backend(pg_backend_pid())'"
)
#: A row as the first release wrote it. It is never edited: such rows may be there after an upgrade.
OLD_ROW = bytes.fromhex(
    "98ac5374657052657475726e656496a473617665a47361766501cf0000019f2314e60006cdea60019305cd03e8ab"
    "6578706f6e656e7469616ca77b226e223a317dc3929700c0c0c0a763686172676573a161a1319700a7696e766f69"
    "6365a5696e762d3193a8537461727452756ea46e756c6cc0c0c0c090"
)
OLD_COMMIT = StepCommit(
    KEY,
    0,
    msgspec.structs.replace(
        returned(step="save", result='{"n":1}'),
        rollback=True,
        posts=(
            Post(0, topic="charges", key="a", value="1"),
            Post(0, "invoice", "inv-1", StartRun("null")),
        ),
    ),
)
#: How many transactions of steps wait for somebody.
WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE application_name = 'headwater-steps' AND wait_event_type = 'Lock'"
)


class World:
    """A database of steps, more workers than one, and somebody who looks on."""

    def __init__(self, dsn: str, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self._stack = stack
        self._numbers = itertools.count(1)
        self.database: StepCommits

    async def another(self) -> StepCommits:
        """One more worker's."""
        return await self._stack.enter_async_context(StepCommits(self.dsn))

    async def outsider(self) -> "psycopg.AsyncConnection[Any]":
        """A connection of nobody of ours."""
        connection = await psycopg.AsyncConnection.connect(of_authors(self.dsn))
        return await self._stack.enter_async_context(connection)

    async def commit(self, commit: StepCommit, epoch: int = EPOCH) -> StepReturned | Failure:
        return await self.database.commit(PARTITION, epoch, commit)

    async def ask(self, query: str) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(of_authors(self.dsn)) as connection:
            return await (await connection.execute(query.encode())).fetchall()

    async def until(self, query: str, expected: list[Any]) -> None:
        """Waits until a query gives what is expected."""
        async with asyncio.timeout(60):
            while await self.ask(query) != expected:
                pass

    # What the contract asks for.

    async def run(self, *statements: Sequence[Any]) -> Failure | None:
        step = f"step-{next(self._numbers)}"
        done = await self.commit(StepCommit(KEY, 0, returned(*statements, step=step)))
        return done if isinstance(done, Failure) else None

    async def rows(self, columns: str = "id, amount") -> list[tuple[Any, ...]]:
        return await self.ask(f"SELECT {columns} FROM charges ORDER BY id")  # noqa: S608


Script = Callable[[World], Awaitable[None]]


@pytest.fixture(scope="module")
def database(postgres: str) -> Iterator[str]:
    """A migrated database for all tests of this module, each of which empties it first."""
    name = sql.Identifier("step_commits")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
    dsn = conninfo.make_conninfo(postgres, dbname="step_commits")
    migrate(dsn, lambda _: None)
    yield dsn
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def play(database: str) -> Callable[[Script], None]:
    """Plays a script in an empty world whose partition is claimed."""
    with psycopg.connect(of_authors(database), autocommit=True) as connection:
        connection.execute("TRUNCATE step_commits, step_epochs")
        connection.execute("DROP TABLE IF EXISTS charges")
        connection.execute("DROP SEQUENCE IF EXISTS times")
        connection.execute(TABLE)
        connection.execute("CREATE SEQUENCE times")
        connection.execute(MAKE_BREAK_OFF)

    async def within(script: Script) -> None:
        async with AsyncExitStack() as stack:
            world = World(database, stack)
            world.database = await world.another()
            assert await world.database.claim(PARTITION, EPOCH) == []
            await script(world)

    return lambda script: asyncio.run(within(script))


class TestStepSqlOnPostgres(StepSqlContract):
    @pytest.fixture
    def run(self, play: Callable[[Script], None]) -> Run:
        def scenario_in(scenario: Scenario) -> None:
            play(scenario)

        return scenario_in


def charge(
    amount: int = 1, *, step: str = "save", attempt: int = 1, result: str = '"saved"'
) -> StepCommit:
    """A step that charges `a`, if nobody has; otherwise it adds to the charge."""
    upsert = f"{INSERT} ON CONFLICT (id) DO UPDATE SET amount = charges.amount + excluded.amount"
    one = returned((upsert, ("a", amount)), step=step, attempt=attempt, result=result)
    return StepCommit(KEY, 0, one)


def test_a_step_takes_effect_once_however_often_it_is_asked_for(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        posts = (Post(0, topic="charges", key="a", value="1"),)
        step = charge()
        step = StepCommit(KEY, 0, msgspec.structs.replace(step.returned, posts=posts))
        expected = msgspec.structs.replace(step.returned, statements=())
        for _ in range(3):
            assert await world.commit(step) == expected
        assert await world.rows() == [("a", 1)]

    play(script)


def test_copies_that_arrive_together_take_effect_once(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        done = await asyncio.gather(*(world.commit(charge()) for _ in range(12)))
        assert done == [done[0]] * 12
        assert await world.rows() == [("a", 1)]

    play(script)


def test_an_attempt_that_ends_a_step_again_has_the_result_of_the_first(
    play: Callable[[Script], None],
):
    async def script(world: World) -> None:
        await world.commit(charge(1, result='"first"'))
        second = await world.commit(charge(2, attempt=2, result='"second"'))
        assert isinstance(second, StepReturned)
        assert (second.attempt, second.result) == (2, '"first"')
        assert await world.rows() == [("a", 1)]

    play(script)


def test_runs_and_instances_have_steps_of_their_own(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        same = charge().returned
        for step in (
            StepCommit(KEY, 0, same),
            StepCommit(KEY, 1, same),
            StepCommit("o/2", 0, same),
        ):
            assert isinstance(await world.commit(step), StepReturned)
        assert await world.rows() == [("a", 3)]

    play(script)


def test_the_next_owner_is_given_what_took_effect_until_it_is_forgotten(
    play: Callable[[Script], None],
):
    async def script(world: World) -> None:
        steps = [charge(step=f"pages/~{number}/save") for number in range(3)]
        for step in steps:
            await world.commit(step)
        expected = [
            StepCommit(KEY, 0, msgspec.structs.replace(step.returned, statements=()))
            for step in steps
        ]
        heir = await world.another()
        assert await heir.claim(PARTITION, EPOCH + 1) == expected
        assert await heir.claim(PARTITION + 1, EPOCH + 1) == []
        await heir.forget(PARTITION, [steps[0].id, steps[2].id, StepId("o/9", 0, "save")])
        assert await heir.claim(PARTITION, EPOCH + 2) == [expected[1]]
        await heir.forget(PARTITION, [])
        await heir.forget(PARTITION, [steps[1].id])
        assert await heir.claim(PARTITION, EPOCH + 3) == []
        assert await world.rows() == [("a", 3)]

    play(script)


def test_nothing_is_left_of_a_step_whose_sql_failed(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        wrong = StepCommit(KEY, 0, returned((INSERT, ("a", 1)), (INSERT, ("a", 2))))
        failure = await world.commit(wrong)
        assert failure == Failure(
            "UniqueConstraintError",
            f"expected statement 2 of 2 ({INSERT}) to take effect, found: duplicate key value "
            'violates unique constraint "charges_pkey" (Key (id)=(a) already exists.)',
        )
        assert await world.database.claim(PARTITION, EPOCH + 1) == []
        assert isinstance(await world.commit(charge(attempt=2), EPOCH + 1), StepReturned)
        assert await world.rows() == [("a", 1)]

    play(script)


@pytest.mark.parametrize("is_early", [False, True])
def test_a_constraint_that_waits_for_the_end_fails_the_step_too(
    play: Callable[[Script], None], monkeypatch: pytest.MonkeyPatch, is_early: bool
):
    execute = psycopg.AsyncConnection.execute

    async def execute_later(
        connection: psycopg.AsyncConnection[Any], query: bytes | str, *args: object, **options: bool
    ) -> psycopg.AsyncCursor[Any]:
        if "reset_session" in str(query):
            await asyncio.sleep(0.2)  # The answer to COMMIT is there before this is sent.
        return await execute(connection, query, *args, **options)  # type: ignore[arg-type]

    if is_early:
        monkeypatch.setattr(psycopg.AsyncConnection, "execute", execute_later)

    async def script(world: World) -> None:
        table = "CREATE TABLE seats (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        assert await world.run((table,)) is None
        insert = "INSERT INTO seats VALUES (1)"
        failure = await world.run((insert,), (insert,))
        assert failure is not None
        assert failure.name == "UniqueConstraintError"
        assert await world.ask("SELECT * FROM seats") == []
        assert await world.run(("DROP TABLE seats",)) is None

    play(script)


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("UndefinedTable", ("INSERT INTO no_such_table VALUES (1)",)),
        ("CheckViolation", (INSERT, ("b", 901))),
        ("SyntaxError", ("SELEKT 1",)),
        ("SyntaxError", ("INSERT INTO charges VALUES ('b'); COMMIT",)),
        ("DatetimeFieldOverflow", ("SELECT %s::timestamptz", ("2026-13-01T00:00:00Z",))),
        ("ProgrammingError", (INSERT, ("b",))),
        ("UnicodeEncodeError", (INSERT, ("a lone surrogate \ud800", 1))),
        ("ActiveSqlTransaction", ("VACUUM charges",)),
        ("InvalidTransactionTermination", ("DO $$ BEGIN COMMIT; END $$",)),
        ("RaiseException", ("DO $$ BEGIN RAISE EXCEPTION 'no'; END $$",)),
    ],
)
def test_other_errors_of_sql_have_their_names_and_leave_nothing(
    play: Callable[[Script], None], name: str, statement: Sequence[Any]
):
    async def script(world: World) -> None:
        failure = await world.run((INSERT, ("a", 1)), statement)
        assert failure is not None
        assert failure.name == name
        text = str(statement[0])
        assert failure.message.startswith(f"expected statement 2 of 2 ({text}) to take effect, ")
        assert await world.rows() == []

    play(script)


def test_a_statement_that_takes_too_long_fails_its_step(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        failure = await world.run(
            ("SET LOCAL statement_timeout = '20ms'",), ("SELECT pg_sleep(60)",)
        )
        assert failure is not None
        assert failure.name == "QueryCanceled"

    play(script)


def test_values_become_what_their_columns_are(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        table = (
            "CREATE TEMP TABLE v (at timestamptz, n numeric, j jsonb, yes boolean) ON COMMIT DROP"
        )
        values = ("2026-01-01T00:00:00+01:00", "12.50", {"a": [1, None]}, True)
        copied = (
            "INSERT INTO charges (id, note) "
            "SELECT 'a', concat_ws(' ', at AT TIME ZONE 'UTC', n, j, yes) FROM v"
        )
        failure = await world.run(
            (table,), ("INSERT INTO v VALUES (%s, %s, %s, %s)", values), (copied,)
        )
        assert failure is None
        assert await world.rows("note") == [('2025-12-31 23:00:00 12.50 {"a": [1, null]} t',)]
        assert await world.run((INSERT, ("b", 2)), (INSERT, ("c", 3))) is None
        assert await world.run(("DELETE FROM charges WHERE id = ANY(%s)", (["a", "b"],))) is None
        assert await world.rows() == [("c", 3)]

    play(script)


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_what_postgres_asks_to_begin_again_is_begun_again(
    play: Callable[[Script], None], code: str
):
    async def script(world: World) -> None:
        again = FIRST_TIME.format(BEGIN_AGAIN.format(code))
        assert await world.run((INSERT, ("a", 1)), (again,)) is None
        assert await world.rows() == [("a", 1)]

    play(script)


def test_what_would_begin_again_for_ever_fails_its_step(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        always = f"DO $$ BEGIN {BEGIN_AGAIN.format('40001')}; END $$"
        failure = await world.run((INSERT, ("a", 1)), (always,))
        assert failure is not None
        assert failure.name == "SerializationFailure"
        assert await world.rows() == []
        assert await world.run((INSERT, ("a", 1))) is None

    play(script)


def test_a_connection_that_breaks_fails_no_step(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        break_off = FIRST_TIME.format(BREAK_OFF)
        step = StepCommit(KEY, 0, returned((INSERT, ("a", 1)), (break_off,)))
        with pytest.raises(StoreUnavailable, match="expected Postgres to run the SQL") as broken:
            await world.commit(step)
        assert type(broken.value) is StoreUnavailable, "it surely took no effect"
        assert await world.rows() == []
        assert isinstance(await world.commit(step), StepReturned)
        assert await world.rows() == [("a", 1)]

    play(script)


def test_a_connection_that_breaks_amid_commit_leaves_the_effect_unknown(
    play: Callable[[Script], None],
):
    async def script(world: World) -> None:
        outsider = await world.outsider()
        await outsider.execute(BREAK_OFF_AT_COMMIT.encode())
        await outsider.commit()
        with pytest.raises(EffectUnknown, match="expected Postgres to run the SQL of a step"):
            await world.commit(charge())
        assert isinstance(await world.commit(charge()), StepReturned)
        assert await world.rows() == [("a", 1)]

    play(script)


def test_connections_that_died_idle_are_not_noticed(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        await world.ask(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
            "WHERE application_name = 'headwater-steps'"
        )
        assert isinstance(await world.commit(charge()), StepReturned)
        assert await world.rows() == [("a", 1)]

    play(script)


def test_who_has_not_claimed_is_refused(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        for partition, epoch in ((PARTITION, EPOCH - 1), (PARTITION, EPOCH + 1), (9, EPOCH)):
            with pytest.raises(Superseded, match=f"epoch {epoch} to hold partition {partition}"):
                await world.database.commit(partition, epoch, charge())
        with pytest.raises(Superseded):
            await world.database.claim(PARTITION, EPOCH - 1)
        assert await world.database.claim(PARTITION, EPOCH) == []
        assert await world.rows() == []

    play(script)


def test_a_claim_waits_for_what_is_under_way_and_shuts_out_what_comes_later(
    play: Callable[[Script], None],
):
    async def script(world: World) -> None:
        await world.commit(charge(step="before"))
        outsider, heir = await world.outsider(), await world.another()
        await outsider.execute("SELECT * FROM charges FOR UPDATE")
        # The step holds the claim of its partition, and waits for the outsider.
        under_way = asyncio.create_task(world.commit(charge()))
        await world.until(WAITING, [(1,)])
        claim = asyncio.create_task(heir.claim(PARTITION, EPOCH + 1))
        await world.until(WAITING, [(2,)])
        await outsider.rollback()
        assert isinstance(await under_way, StepReturned)
        assert [commit.id.step for commit in await claim] == ["before", "save"]
        with pytest.raises(Superseded):
            await world.commit(charge(step="after"))
        with pytest.raises(Superseded):
            await world.commit(charge())
        assert await world.rows() == [("a", 2)]
        assert isinstance(await heir.commit(PARTITION, EPOCH + 1, charge()), StepReturned)
        assert await world.rows() == [("a", 2)]

    play(script)


def test_a_row_is_kept_for_an_attempt_that_is_still_under_way(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        await world.commit(charge(attempt=2))
        outsider = await world.outsider()
        await outsider.execute("SELECT * FROM step_epochs FOR UPDATE")
        late = asyncio.create_task(world.commit(charge(attempt=1)))
        await world.until(WAITING, [(1,)])
        await world.database.forget(PARTITION, [charge().id])
        await outsider.rollback()
        assert isinstance(await late, StepReturned)
        assert await world.rows() == [("a", 1)]
        await world.database.forget(PARTITION, [charge().id])
        assert await world.ask("SELECT * FROM step_commits") == []

    play(script)


def test_a_name_that_postgres_cannot_hold_fails_its_step(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        failure = await world.commit(charge(step="a NUL \x00"))
        assert isinstance(failure, Failure)
        assert failure.name == "DataError"
        assert await world.rows() == []

    play(script)


def test_a_row_of_an_older_release_is_read(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        outsider = await world.outsider()
        await outsider.execute(
            "INSERT INTO step_commits VALUES (%s, %s, 0, 'save', 1, %s, %b)",
            [PARTITION, KEY, EPOCH, OLD_ROW],
        )
        await outsider.commit()
        assert await world.database.claim(PARTITION, EPOCH) == [OLD_COMMIT]

    play(script)


def test_a_row_of_a_newer_release_is_not_passed_over(play: Callable[[Script], None]):
    async def script(world: World) -> None:
        await world.commit(charge())
        outsider = await world.outsider()
        await outsider.execute("UPDATE step_commits SET returned = '\\x93'")
        await outsider.commit()
        with pytest.raises(UndecodableRecord, match="expected a commit row"):
            await world.database.claim(PARTITION, EPOCH + 1)

    play(script)


def test_a_database_before_its_migration_is_unavailable(fresh_database: str):
    async def script() -> None:
        async with StepCommits(fresh_database) as database:
            with pytest.raises(StoreUnavailable, match="headwater migrate"):
                await database.claim(PARTITION, EPOCH)
            with pytest.raises(StoreUnavailable, match="headwater migrate"):
                await database.commit(PARTITION, EPOCH, charge())

    asyncio.run(script())
