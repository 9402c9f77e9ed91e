"""What can be asked of projected workflows: in the right order, in pages, from indexes."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from headwater.processors.runs.claims import claim_of
from headwater.projections.deliveries.queries import Reader
from headwater.projections.errors import InvalidCursor
from headwater.projections.postgres.cursors import pack
from headwater.projections.postgres.migrate import migrate
from headwater.projections.postgres.statements import filled, template
from headwater.projections.workflows.instances import failed_runs
from headwater.projections.workflows.listings import MESSAGES, _filled, changes_of
from headwater.projections.workflows.queries import (
    FIND_INSTANCE,
    Order,
    Page,
    RunKey,
    TimeRange,
    Workflows,
)
from headwater.projections.workflows.trimmed_entries import TrimmedEntries
from headwater.schemas import answers
from headwater.schemas.history import (
    Artifact,
    Child,
    EntryErrored,
    EntryOpened,
    EventReceived,
    Failure,
    HistoryAppended,
    JobActivated,
    LogWritten,
    LoopAdvanced,
    Parent,
    RunCompleted,
    RunErrored,
    RunPaused,
    RunStarted,
    RunSuspended,
    RunTerminated,
    StepCompleted,
    StepFailed,
    TaskDispatch,
    TasksDispatched,
    TokenCompleted,
    TokenFailed,
    TokensCreated,
)
from headwater.schemas.statuses import EntryKind, RunStatus
from tests.integration.test_workflow_projection import project
from tests.unit.projections.histories import START_MS, Log

MANY = 30_000
ITERATIONS = 25
RUN = RunKey("order", "x", 0)
FAILURE = Failure("E", "")


def step(key: str, ordinal: int, result: str = "1") -> StepCompleted:
    return StepCompleted(key, key, ordinal, START_MS, 1, 0, 600_000, result)


def failed(key: str, ordinal: int) -> StepFailed:
    return StepFailed(key, key, ordinal, START_MS, 1, 0, 600_000, FAILURE)


def asking(dsn: str, log: Log, scenario: Callable[[Workflows], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Reader(dsn) as reader:
            await scenario(Workflows(reader))

    project(dsn, log)
    asyncio.run(run())


def text(value: msgspec.Raw) -> str:
    """A value of an author's, as it was written."""
    return bytes(value).decode()


async def pages(ask: Callable[[str | None], Awaitable[Page[Any]]]) -> list[Any]:
    """All rows, page by page."""
    rows: list[Any] = []
    cursor = None
    while True:
        page = await ask(cursor)
        rows += page.rows
        cursor = page.cursor
        if cursor is None:
            return rows


def test_an_instance_is_shown_with_what_it_stands_at(migrated: str):
    log = Log()
    log.claim()
    parent = Parent("order", "big", 3, "child")
    log.write("x", RunStarted('{"n":  1e3}', "s", parent), step("a", 0))
    wait = EntryOpened("b", "B", EntryKind.WAIT, 1, START_MS + 60_000, ("paid", "sent"))
    log.write("x", wait, step("c", 2), RunSuspended())

    async def scenario(workflows: Workflows) -> None:
        result = await workflows.instance("order", "x")
        assert result is not None
        assert (result.partition, result.offset) == (0, 2)
        meta = result.instance.meta
        assert (result.instance.details.status, meta.run_number) == ("waiting", 0)
        assert text(meta.params) == '{"n":  1e3}'
        assert meta.parent is not None
        assert (meta.parent.instance_id, meta.parent.step_key) == ("big", "child")
        assert meta.created_at == datetime.fromtimestamp(START_MS / 1_000 + 2, UTC)
        assert meta.completed_at is None
        current = meta.current_step
        assert current is not None
        assert (current.step_key, current.status, current.attempts) == ("b", "waiting", 0)
        assert current.wait_event_type == ["paid", "sent"]
        assert current.wake_at == datetime.fromtimestamp(START_MS / 1_000 + 60, UTC)
        assert await workflows.instance("order", "y") is None
        assert await workflows.instance("other", "x") is None
        assert await workflows.instance("order", "\x00") is None
        assert await workflows.next_offsets() == {0: 3}
        assert await workflows.next_offsets() == {0: 3}

    asking(migrated, log, scenario)


def test_an_instance_says_which_deployment_its_run_began_on(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s", deployment=Artifact("dep_1", "app", "digest")))
    log.write("y", RunStarted("{}", "s"))

    async def scenario(workflows: Workflows) -> None:
        for name, deployment in (("x", "dep_1"), ("y", None)):
            result = await workflows.instance("order", name)
            assert result is not None
            assert result.instance.meta.deployment_id == deployment
        page = await workflows.instances("order", order="asc", limit=2)
        assert [row.deployment_id for row in page.rows] == ["dep_1", None]

    asking(migrated, log, scenario)


def test_the_workflows_are_those_that_owners_have_or_had_the_code_of(migrated: str):
    log = Log([[], [], []])
    schemas = {"Invoice": '{"type":  "object"}'}
    log.partitions[1].append(claim_of("me", {"Invoice": "replay"}, START_MS, schemas))
    for number, names in ((0, ("order", "old")), (2, ("headwater-replay",))):
        log.claim(number, workflows=names)
    log.write("x", RunStarted("{}", "s"), workflow="gone")
    log.write("x", RunStarted("{}", "s"), workflow="terra-lab")
    log.claim(owner="newer", workflows=("order", "ä"))

    async def scenario(workflows: Workflows) -> None:
        result = await workflows.registered()
        assert [item.name for item in result] == ["Invoice", "gone", "old", "order", "ä"]
        assert text(result[0].params_schema) == '{"type":  "object"}'
        assert await workflows.next_offsets() == {0: 4, 1: 1, 2: 1}

    async def nobody(workflows: Workflows) -> None:
        assert await workflows.registered() == []
        assert await workflows.next_offsets() == {}

    asking(migrated, Log([]), nobody)
    asking(migrated, log, scenario)


def test_what_a_retry_took_over_comes_first_in_pages(migrated: str):
    log = Log()
    log.claim()
    received = [EventReceived(f"e{n}", "paid", str(n), START_MS) for n in range(3)]
    log.write("x", RunStarted("{}", "s"), *received, step("a", 0), step("b", 0))
    retry = RunStarted("{}", "s", None, ("a", "b"))
    log.write("x", retry, EventReceived("e9", "paid", "9", 0), step("c", 0), run_number=1)

    async def scenario(workflows: Workflows) -> None:
        run = RunKey("order", "x", 1)
        for order in ("asc", "desc"):
            steps = await pages(lambda c, o=order: workflows.steps(run, order=o, limit=1, after=c))
            events = await pages(
                lambda c, o=order: workflows.events(run, order=o, limit=1, after=c)
            )
            turned = slice(None, None, 1 if order == "asc" else -1)
            assert [item.step_key for item in steps][turned] == ["a", "b", "c"]
            assert [text(event.payload) for event in events][turned] == ["0", "1", "2", "9"]

    asking(migrated, log, scenario)


@pytest.mark.parametrize(
    ("events", "current"),
    [
        ([step("a", 0)], None),
        (
            [
                EntryOpened("a", "", EntryKind.LOOP, 0),
                EntryOpened("a/~0/b", "", EntryKind.SLEEP, 1),
            ],
            "a/~0/b",
        ),
        ([EntryOpened("a", "", EntryKind.SLEEP, 5), EntryOpened("b", "", EntryKind.SLEEP, 4)], "a"),
        ([EntryOpened("a", "", EntryKind.SLEEP, 5), EntryOpened("b", "", EntryKind.SLEEP, 5)], "b"),
        ([StepFailed("a", "", 0, 0, 1, 1, 1, FAILURE, 9), step("b", 1)], "a"),
        ([EntryOpened("a", "", EntryKind.SLEEP, 0), failed("b", 1)], "a"),
    ],
)
def test_the_current_step_is_the_open_one_that_was_reached_last(
    migrated: str, events: list[Any], current: str | None
):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"), *events)

    async def scenario(workflows: Workflows) -> None:
        result = await workflows.instance("order", "x")
        assert result is not None
        step = result.instance.meta.current_step
        assert (step.step_key if step else None) == current

    asking(migrated, log, scenario)


@pytest.mark.parametrize(
    ("ends", "current"),
    [
        ([], None),
        ([step("c", 2)], None),
        ([RunPaused()], None),
        ([step("c", 2), RunCompleted("1")], None),
        ([EntryOpened("c", "", EntryKind.SLEEP, 2), RunCompleted("1")], None),
        ([RunTerminated("")], None),
        ([RunErrored(FAILURE)], "b"),
        ([step("c", 2), EntryOpened("d", "", EntryKind.SLEEP, 3), RunErrored(FAILURE)], "b"),
    ],
)
def test_what_failed_is_current_only_if_the_instance_failed(
    migrated: str, ends: list[Any], current: str | None
):
    log = Log()
    log.claim()
    fails = [EntryOpened("b", "", EntryKind.JOIN, 1), EntryErrored("b", FAILURE)]
    log.write("x", RunStarted("{}", "s"), failed("a", 0), *fails, *ends)

    async def scenario(workflows: Workflows) -> None:
        result = await workflows.instance("order", "x")
        assert result is not None
        step = result.instance.meta.current_step
        assert (step.step_key if step else None) == current

    asking(migrated, log, scenario)


def test_runs_that_may_need_a_person_are_grouped_by_workflow_state_and_error(migrated: str):
    def failed_attempt(number: int) -> StepFailed:
        retry_at_ms = START_MS + 10_000
        error = Failure("Away", f"attempt {number}")
        return StepFailed("a", "", 0, START_MS, number, 9, 1, error, retry_at_ms)

    log = Log()
    log.claim()
    for name, ends in {
        "declined-1": [RunErrored(Failure("CardError", "first"))],
        "declined-2": [RunErrored(Failure("CardError", "second"))],
        "other": [RunErrored(Failure("E", ""))],
        "tried-once": [failed_attempt(1), RunSuspended()],
        "tried-again": [failed_attempt(1), failed_attempt(2), RunSuspended()],
        "tried-and-done": [failed_attempt(1), failed_attempt(2), step("a", 0), RunCompleted("1")],
        "done": [RunCompleted("1")],
    }.items():
        log.write(name, RunStarted("{}", "s"), *ends)

    async def scenario() -> None:
        async with Reader(migrated) as reader:
            groups = await failed_runs(reader, datetime.fromtimestamp(START_MS / 1_000, UTC))
            found = {(group.state, group.error): group for group in groups}
            assert found.keys() == {
                ("errored", "CardError"), ("errored", "E"), ("retrying", "Away"),
            }  # fmt: skip
            declined = found["errored", "CardError"]
            assert (declined.workflow, declined.runs, declined.new) == ("order", 2, 2)
            assert (declined.instance_id, declined.message) == ("declined-2", "second")
            assert declined.first_at < declined.last_at
            assert found["retrying", "Away"].instance_id == "tried-again"
            assert {group.new for group in await failed_runs(reader)} == {0}
            page = await Workflows(reader).instances("order", error_name="CardError", limit=9)
            assert [row.id for row in page.rows] == ["declined-2", "declined-1"]

    project(migrated, log)
    asyncio.run(scenario())


def test_failed_runs_are_found_without_looking_at_the_others(crowded: str):
    names = template("workflow_names_of_instances").format(of_authors=sql.SQL("name is not null"))
    query = b"explain (costs off) " + filled("failed_runs", workflows=names)
    bound = {"since": "infinity", "limit": 1000, "groups": 100}
    with psycopg.connect(crowded) as connection:
        result = connection.execute(query, bound).fetchall()
    plan = "\n".join(line for (line,) in result)
    assert "workflow_step_retrying" in plan
    assert "workflow_token_retrying" in plan
    assert "workflow_instance_ended" in plan
    assert not re.search(r"Seq Scan on workflow_", plan), plan


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_instances_are_listed_page_by_page_while_they_move(migrated: str, order: Order):
    log = Log()
    log.claim()
    for n in range(25):
        log.write(f"i{n:02}", RunStarted("{}", "s"))
        log.write(f"i{n:02}", RunCompleted(f'{{"n":  {n}}}') if n % 2 else RunSuspended())

    async def scenario(workflows: Workflows) -> None:
        async def ask(cursor: str | None) -> Page[Any]:
            page = await workflows.instances("order", order=order, limit=4, after=cursor)
            assert len(page.rows) <= 4
            # What goes on meanwhile moves nobody to another page.
            with psycopg.connect(migrated) as connection:
                connection.execute("update workflow_instance set updated_at = now()")
            return page

        result = [page.id for page in await pages(ask)]
        assert result == sorted(result, reverse=order == "desc")
        assert len(result) == 25

        async def ask_complete(cursor: str | None) -> Page[Any]:
            return await workflows.instances(
                "order", status=RunStatus.COMPLETE, order=order, limit=5, after=cursor
            )

        complete = await pages(ask_complete)
        assert len(complete) == 12
        assert {item.details.status for item in complete} == {"complete"}
        outputs = {text(item.details.output) for item in complete}
        assert outputs == {f'{{"n":  {n}}}' for n in range(1, 25, 2)}
        assert (await workflows.instances("other", limit=5)).rows == ()
        assert {item.workflow_name for item in complete} == {"order"}
        assert (await workflows.instances("order", status=RunStatus.PAUSED, limit=5)).cursor is None

    asking(migrated, log, scenario)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_instances_of_all_workflows_are_listed_but_for_those_of_the_system(
    migrated: str, order: Order
):
    log = Log()
    log.claim()
    for n, workflow in enumerate(["order", "ship", "headwater-replay", "order", "terra-lab", "a"]):
        log.seconds = n // 2  # two at a time have the same moment
        log.write(f"i{n}", RunStarted("{}", "s"), workflow=workflow)
    wait = EntryOpened("ok?", "ok?", EntryKind.WAIT, 0, START_MS + 60_000, ("paid",))
    log.write("i5", wait, RunSuspended(), workflow="a")

    async def scenario(workflows: Workflows) -> None:
        async def ask(cursor: str | None) -> Page[Any]:
            return await workflows.instances(None, order=order, limit=1, after=cursor)

        result = [f"{page.workflow_name}/{page.id}" for page in await pages(ask)]
        expected = ["order/i0", "ship/i1", "order/i3", "a/i5"]
        assert result == (expected if order == "asc" else expected[::-1])
        (waiting,) = (await workflows.instances(None, status=RunStatus.WAITING, limit=9)).rows
        assert waiting.id == "i5"
        assert waiting.current_step is not None
        assert waiting.current_step.wait_event_type == "paid"
        # Each is found under its own name.
        assert len((await workflows.instances("terra-lab", limit=9)).rows) == 1

    asking(migrated, log, scenario)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_history_is_read_in_order_whatever_the_clocks_said(migrated: str, order: Order):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"))
    ordinals = [3, 0, 2, 2, 2, 1]
    for n, ordinal in enumerate(ordinals):
        log.seconds -= 2  # an owner whose clock goes backwards
        level, category = ("info", "warn")[n % 2], ("money", "system")[n // 3]
        log.write("x", EventReceived(f"e{9 - n}", "paid", f"[ {n} ]", START_MS - n))
        log.write("x", step(f"s{n}", ordinal), LogWritten(level, category, str(n), f"[ {n} ]"))
    log.write("x", RunStarted("{}", "s"), step("s9", 0), run_number=1)

    async def scenario(workflows: Workflows) -> None:
        def turned(rows: list[Any]) -> list[Any]:
            return rows if order == "asc" else rows[::-1]

        steps = turned(await pages(lambda c: workflows.steps(RUN, order=order, limit=2, after=c)))
        assert [item.step_key for item in steps] == ["s1", "s5", "s2", "s3", "s4", "s0"]
        assert steps[0].max_attempts is None
        events = turned(await pages(lambda c: workflows.events(RUN, order=order, limit=2, after=c)))
        assert [text(event.payload) for event in events] == [f"[ {n} ]" for n in range(6)]
        lines = turned(await pages(lambda c: workflows.logs(RUN, order=order, limit=2, after=c)))
        assert [line.message for line in lines] == list("012345")
        assert [text(line.data) for line in lines] == [f"[ {n} ]" for n in range(6)]
        assert [line.id for line in lines] == sorted(line.id for line in lines)
        for filters, expected in (
            ({"level": "warn"}, "135"),
            ({"category": "system"}, "345"),
            ({"level": "warn", "category": "system"}, "35"),
            ({"level": "debug"}, ""),
        ):
            result = await workflows.logs(RUN, **filters, order=order, limit=10)  # type: ignore[arg-type]
            assert "".join(item.message for item in turned(list(result.rows))) == expected
        other = await workflows.steps(RunKey("order", "x", 1), limit=10)
        assert [row.step_key for row in other.rows] == ["s9"]

    asking(migrated, log, scenario)


def test_every_column_of_a_step_is_shown(migrated: str):
    log = Log()
    log.claim()
    failure = Failure("E", "m", '{"x":  1}')
    child = EntryOpened("c", "C", EntryKind.CHILD, 1, None, None, None, Child("invoice", "inv-1"))
    log.write("x", RunStarted("{}", "s"), child, EntryErrored("c", failure))

    async def scenario(workflows: Workflows) -> None:
        (result,) = (await workflows.steps(RUN, limit=1)).rows
        assert (result.child_workflow_name, result.child_instance_id) == ("invoice", "inv-1")
        assert (result.error_name, result.error_message) == ("E", "m")
        assert result.error == answers.Failure(name="E", message="m")

    asking(migrated, log, scenario)


def test_jobs_that_have_not_ended_are_shown_with_who_has_them(migrated: str):
    log = Log()
    log.claim()
    tokens = TokensCreated(0, 5, "pay", None, None, "root", None, None, 0, 5, (), task="charge")
    provided = [TaskDispatch(nth, 1, "5", None if nth == 4 else f"token-{nth}") for nth in range(5)]
    until_ms = START_MS + 60_000
    log.write("x", RunStarted("{}", "s"), tokens, TasksDispatched(tuple(provided)))
    log.write("x", JobActivated(1, 1, "me", until_ms), JobActivated(3, 1, "me", until_ms))
    log.write("x", TokenFailed(2, 1, FAILURE, until_ms), TokenCompleted(3, 1, "1"))
    # What a run had that was restarted is nobody's any more.
    log.write("y", RunStarted("{}", "s"), tokens, TasksDispatched(tuple(provided)))
    log.write("y", RunStarted("{}", "s"), run_number=1)

    async def scenario(workflows: Workflows) -> None:
        jobs = await pages(lambda after: workflows.jobs(limit=1, after=after))
        assert [(job.instance_id, job.token_id, job.status) for job in jobs] == [
            ("x", "0", "waiting"),
            ("x", "1", "taken"),
            ("x", "2", "retrying"),
        ]
        until = datetime.fromtimestamp(until_ms / 1_000, UTC)
        assert [(job.worker, job.lease_until, job.next_retry_at) for job in jobs] == [
            (None, None, None),
            ("me", until, None),
            (None, None, until),
        ]
        assert jobs[0].created_at == datetime.fromtimestamp(START_MS / 1_000 + 2, UTC)
        assert (await workflows.jobs(task="charge", limit=9)).rows == tuple(jobs)
        assert (await workflows.jobs(task="ship", limit=9)).rows == ()

    asking(migrated, log, scenario)


@pytest.mark.parametrize("cursor", ["no cursor", pack([2**70, 0]), pack(["x"]), pack([1])])
def test_what_is_no_cursor_is_refused(migrated: str, cursor: str):
    async def scenario(workflows: Workflows) -> None:
        with pytest.raises(InvalidCursor):
            await workflows.steps(RUN, limit=1, after=cursor)
        with pytest.raises(ValueError, match="limit"):
            await workflows.steps(RUN, limit=0)

    asking(migrated, Log(), scenario)


# --- indexes ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(postgres: str) -> Iterator[str]:
    """A database of many instances, and of one with a long history."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create database crowded")
    dsn = psycopg.conninfo.make_conninfo(postgres, dbname="crowded")
    migrate(dsn, lambda _: None)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            """
            insert into workflow_instance (workflow_name, instance_id, run_number, status, params,
                created_at, updated_at, started_at, partition, run_offset, "offset")
            select 'order', 'i' || n, 0, case when n %% 1000 = 0 then 'errored' else 'complete' end,
                '{}', to_timestamp(n), now(), now(), 0, n, n
            from generate_series(1, %(many)s) n
            """,
            {"many": MANY},
        )
        connection.execute(
            """
            insert into workflow_step (workflow_name, instance_id, run_number, step_key, name, type,
                status, attempts, ordinal, sequence, created_at, updated_at, "offset")
            select 'order', 'i' || n %% 10, 0, 's' || n, '', 'do', 'completed', 1, n, n,
                now(), now(), n
            from generate_series(1, %(many)s) n
            """,
            {"many": MANY},
        )
        connection.execute(
            """
            insert into workflow_token (workflow_name, instance_id, run_number, id, node_ref,
                status, path_id, branch_index, branch_total, iteration_counts, attempts,
                created_at, updated_at, completed_at, "offset")
            select 'order', 'i' || n %% 10, 0, n, 'n', 'completed', '', 0, 1, '{}', 1, now(),
                now(), now(), n
            from generate_series(1, %(many)s) n
            """,
            {"many": MANY},
        )
        connection.execute(
            """
            insert into workflow_event (workflow_name, instance_id, run_number, id, type, sequence,
                created_at, "offset")
            select 'order', 'i' || n %% 10, 0, 'e' || n, 'paid', n, now(), n
            from generate_series(1, %(many)s) n
            """,
            {"many": MANY},
        )
        connection.execute(
            """
            insert into workflow_log (workflow_name, instance_id, run_number, id, level, category,
                message, is_replay, created_at)
            select 'order', 'i' || n %% 10, 0,
                '00000-' || lpad(n::text, 15, '0') || '-000000',
                case when n %% 100 < 10 then 'error' else 'info' end,
                case when n %% 100 < 10 then 'system' else 'mine' end, '', false, now()
            from generate_series(1, %(many)s) n
            """,
            {"many": MANY},
        )
        connection.execute("vacuum analyze")
    yield dsn
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("drop database crowded with (force)")


INSTANCE = {"workflow_name": "order", "instance_id": "i1", "run_number": 0, "limit": 26}


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize(
    ("name", "filters", "more", "index"),
    [
        ("workflow_steps", {}, {"ordinal": 200, "sequence": 200}, "workflow_step_history"),
        ("workflow_tokens", {}, {"id": 200}, "workflow_token_pkey"),
        ("workflow_events", {}, {"sequence": 200}, "workflow_event_history"),
        ("workflow_logs", {}, {"id": "00000-000000000015000"}, "workflow_log_pkey"),
        (
            "workflow_logs",
            {"level": "error"},
            {"id": "00000-000000000015000"},
            "workflow_log_level",
        ),
        (
            "workflow_logs",
            {"category": "system"},
            {"id": "00000-000000000015000"},
            "workflow_log_category",
        ),
    ],
)
def test_pages_are_read_from_an_index_in_its_order(
    crowded: str,
    order: Order,
    name: str,
    filters: dict[str, str],
    more: dict[str, object],
    index: str,
):
    query = b"explain (costs off) " + _filled(name, order, tuple(filters))
    with psycopg.connect(crowded) as connection:
        result = connection.execute(query, {**INSTANCE, **filters, **more}).fetchall()
    plan = "\n".join(line for (line,) in result)
    assert f"using {index}" in plan or f"on {index}" in plan, plan
    assert "Sort" not in plan, plan
    assert not re.search(r"Seq Scan on workflow_(?!slot|owner)", plan), plan


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("name", ["workflow_instances", "instances_of_all"])
@pytest.mark.parametrize(
    ("filters", "after", "index"),
    [
        ({}, "2000-01-01", "workflow_instance_newest"),
        ({"status": "errored"}, "1970-01-01 04:00", "workflow_instance_status"),
    ],
)
def test_a_page_of_instances_reads_no_more_of_them_than_it_has(
    crowded: str, order: Order, name: str, filters: dict[str, str], after: str, index: str
):
    query = b"explain (analyze, timing off, summary off) " + _filled(name, order, tuple(filters))
    position = {"created_at": after, "workflow_name": "", "instance_id": "", "workflow": "order"}
    with psycopg.connect(crowded) as connection:
        result = connection.execute(query, {**INSTANCE, **filters, **position}).fetchall()
    plan = "\n".join(line for (line,) in result)
    scans = re.findall(r"(\w+) on workflow_instance.*rows=(\d+)\S* loops=(\d+)", plan)
    assert index in {name for name, _, _ in scans}, plan
    names = 2  # What is read to find the workflows, and that there are no more of them.
    read = sum(int(rows) * int(loops) for _, rows, loops in scans)
    assert read <= INSTANCE["limit"] + names, plan
    assert not re.search(r"Seq Scan on workflow_(?!slot|owner)", plan), plan


@pytest.mark.parametrize("after", [0, MANY - 100])
def test_what_changed_is_found_without_looking_at_what_did_not(crowded: str, after: int):
    query = b"explain (costs off) " + changes_of(frozenset(MESSAGES.values()))
    with psycopg.connect(crowded) as connection:
        result = connection.execute(query, {**INSTANCE, "after": after, "limit": 500}).fetchall()
    plan = "\n".join(line for (line,) in result)
    assert plan.count("using workflow_step_changed on") == 2, plan
    assert plan.count("using workflow_token_changed on") == 2, plan
    assert plan.count("using workflow_event_changed on") == 2, plan
    assert plan.count("using workflow_log_pkey on") == 2, plan
    assert not re.search(r"Seq Scan on workflow_(?!slot|owner)", plan), plan


def test_an_instance_is_found_without_looking_at_all_of_its_steps(crowded: str):
    query = b"explain (costs off) " + FIND_INSTANCE
    with psycopg.connect(crowded) as connection:
        result = connection.execute(query, INSTANCE).fetchall()
    plan = "\n".join(line for (line,) in result)
    assert "workflow_instance_pkey" in plan
    assert "workflow_step_unfinished" in plan
    assert "workflow_token_current" in plan
    assert not re.search(r"Seq Scan on workflow_(?!slot|owner)", plan)
    assert "Sort Key: workflow_step" not in plan


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize(
    ("limit", "rows_max", "bytes_max"), [(7, 100, 10**6), (7, 100, 1), (50, 2, 10**6), (50, 3, 90)]
)
def test_what_loops_have_forgotten_is_read_from_the_history_in_the_same_order(
    migrated: str,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    rows_max: int,
    bytes_max: int,
    order: Order,
):
    monkeypatch.setattr("headwater.projections.workflows.queries._STEPS_MAX", rows_max)
    monkeypatch.setattr("headwater.projections.workflows.trimmed_entries.BYTES_MAX", bytes_max)
    log = Log()
    log.claim()
    for name, keep in (("x", 3), ("whole", ITERATIONS)):
        log.write(name, RunStarted("{}", "s"), step("first", 0))
        log.write(name, EntryOpened("pages", "pages", EntryKind.LOOP, 1))
        for number in range(ITERATIONS):
            log.write(name, step(f"pages/~{number}/fetch", number + 2, str(number)))
            log.write(name, LoopAdvanced("pages", number, "{}", max(0, number - keep)))
        log.write(name, step("last", ITERATIONS + 2))
    reported = [record for record in log.partitions[0] if record.instance_id == "x"]  # type: ignore[union-attr]

    async def read(partition: int, start: int, forgotten: TrimmedEntries) -> None:
        assert (partition, start) == (0, 1)
        for record in reported:
            assert isinstance(record, HistoryAppended)
            forgotten.apply(record)

    def shown(steps: list[answers.Step]) -> list[tuple[str, str, str]]:
        return [(s.id, s.status, msgspec.json.encode(s.result).decode()) for s in steps]

    async def scenario(workflows: Workflows) -> None:
        whole_run = RunKey("order", "whole", 0)
        of_rows = await pages(lambda c: workflows.steps(RUN, order=order, limit=7, after=c))
        whole = await pages(lambda c: workflows.steps(whole_run, order=order, limit=7, after=c))
        result = await pages(
            lambda c: workflows.steps_with_trimmed(RUN, read, order=order, limit=limit, after=c)
        )
        assert len(of_rows) < ITERATIONS < len(result)
        assert shown(result) == shown(whole)

    asking(migrated, log, scenario)


def test_instances_are_found_by_when_something_happened_to_them_last(migrated: str):
    log = Log()
    log.claim()
    for n in range(6):
        log.write(f"i{n}", RunStarted("{}", "s")).write(f"i{n}", RunCompleted("1"))

    def at(second: int) -> datetime:
        return datetime.fromtimestamp(START_MS / 1_000 + second, UTC)

    async def scenario(workflows: Workflows) -> None:
        for within, expected in (
            (TimeRange(), "543210"),
            (TimeRange(at(7), None), "5432"),
            (TimeRange(None, at(7)), "10"),
            (TimeRange(at(5), at(9)), "21"),
        ):
            for status in (None, RunStatus.COMPLETE):
                result = await workflows.instances("order", status=status, updated=within, limit=9)
                assert "".join(row.id[1:] for row in result.rows) == expected

    asking(migrated, log, scenario)
