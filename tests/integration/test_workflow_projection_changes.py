"""Following a run: what is told in pieces is, put together, what the tables hold."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.processors.rows.patches import trimmed
from headwater.projections.deliveries.queries import Reader
from headwater.projections.workflows.answers import Changed, Changes, RunKey
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.answers import Event, InstanceStatus, LogLine, StatusOfRun, Step
from headwater.schemas.history import (
    EntryCompleted,
    EntryOpened,
    EventReceived,
    LogWritten,
    LoopAdvanced,
    PostsSent,
    RunCompleted,
    RunStarted,
    RunSuspended,
    StepCompleted,
)
from headwater.schemas.statuses import EntryKind
from tests.integration.test_workflow_projection import (
    EVENTS,
    Projecting,
    empty,
    moves_of,
    project,
    written,
)
from tests.unit.projections.histories import START_MS, Log

ALL = 10_000


def step(key: str, ordinal: int = 0) -> StepCompleted:
    return StepCompleted(key, key, ordinal, START_MS, 1, 6, 600_000, '" \\u0000 \\ud800"')


def with_workflows(dsn: str, scenario: Callable[[Workflows], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Reader(dsn) as reader:
            await scenario(Workflows(reader))

    asyncio.run(run())


class Follower:
    """Keeps a picture of a run by what it is told, as a page that stays open does."""

    def __init__(self, workflows: Workflows, instance_id: str) -> None:
        self.workflows = workflows
        self.instance_id = instance_id
        self.offset = -1
        self.run_number, self.run_offset = -1, -1
        self.status: StatusOfRun | None = None
        self.steps: dict[str, Step] = {}
        self.events: dict[str, Event] = {}
        self.lines: dict[str, LogLine] = {}
        self.told: set[tuple[int, type, object]] = set()

    async def look(self, limit: int) -> bool:
        """Asks once; tells whether there is more."""
        result = await self.workflows.changes("order", self.instance_id, self.offset, limit=limit)
        if result is None:
            self.forget()
            return False
        self.check(result, limit)
        if result.run_offset != self.run_offset:
            self.forget()
            self.run_number, self.run_offset = result.run_number, result.run_offset
        for changed in result.rows:
            self.take(changed)
        self.offset = result.offset
        return result.more

    def forget(self) -> None:
        """The instance was deleted, or another run has begun."""
        self.status = None
        self.steps, self.events, self.lines = {}, {}, {}

    def check(self, found: Changes, limit: int) -> None:
        offsets = [row.offset for row in found.rows]
        assert offsets == sorted(offsets)
        assert all(self.offset < offset <= found.offset for offset in offsets)
        assert found.offset >= self.offset
        assert found.offset > self.offset or not found.more
        history = [e.offset for e in found.rows if not isinstance(e.row, StatusOfRun)]
        assert len(history) <= limit or len(set(history)) == 1

    def take(self, changed: Changed) -> None:
        match changed.row:
            case Step() as row:
                key: object = row.step_key
                self.trim(row)
                self.steps[row.step_key] = row
            case Event() as row:
                key = row.id
                self.events[row.id] = row
            case LogLine() as row:
                key = row.id
                self.lines[row.id] = row
            case StatusOfRun() as row:
                key = ""
                self.status = row
        reported = (changed.offset, type(changed.row), key)
        assert reported not in self.told
        self.told.add(reported)

    def trim(self, row: Step) -> None:
        if row.trimmed_before is not None:
            for key in trimmed(self.steps, row.step_key, row.trimmed_before):
                del self.steps[key]

    async def check_whole(self) -> None:
        """The picture is what the tables hold."""
        result = await self.workflows.instance("order", self.instance_id)
        if result is None:
            assert self.status is None
            return
        meta, details = result.instance.meta, result.instance.details
        assert self.run_number == meta.run_number
        assert self.offset == result.offset
        assert self.status is not None
        assert self.status.run_number == meta.run_number
        for name in InstanceStatus.__struct_fields__:
            assert getattr(self.status, name) == getattr(details, name)
        run = RunKey("order", self.instance_id, self.run_number)
        for kept, ask in (
            (self.steps, self.workflows.steps),
            (self.events, self.workflows.events),
            (self.lines, self.workflows.logs),
        ):
            page = await ask(run, limit=ALL)
            assert sorted(kept.values(), key=repr) == sorted(page.rows, key=repr)


def untrimmed(move: tuple[str, str, Any]) -> tuple[str, str, Any]:
    """Steps may come back to forgotten iterations in random histories, but in no other."""
    kind, instance_id, events = move
    reported = [
        msgspec.structs.replace(e, trim_before=0) if isinstance(e, LoopAdvanced) else e
        for e in events
    ]
    return kind, instance_id, tuple(reported)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    moves=moves_of(EVENTS).map(lambda moves: [untrimmed(move) for move in moves]),
    looks=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(1, 5)), max_size=12),
    limit=st.integers(1, 9),
)
def test_who_follows_a_run_has_what_the_tables_hold_whenever_it_looks(
    migrated: str, moves: list[Any], looks: list[tuple[int, int, int]], limit: int
):
    log = written(moves)

    async def scenario(workflows: Workflows) -> None:
        projecting = Projecting(migrated, log)
        await projecting.seek()
        followers = [Follower(workflows, instance_id) for instance_id in ("x", "z")]
        for size, times, at_most in looks:
            await projecting.step(size, size)
            for follower in followers * times:
                await follower.look(at_most)
        await projecting.finish(100, 100)
        for follower in followers:
            while await follower.look(limit):
                pass
            await follower.check_whole()

    empty(migrated)
    with_workflows(migrated, scenario)


def test_changes_come_in_the_order_of_the_log_each_row_as_it_is_now(migrated: str):
    log = Log()
    log.claim()
    line = LogWritten("info", "c", "m", '" \\u0000"')
    log.write("x", RunStarted("{}", "s"), EventReceived("e1", "paid", " 1", START_MS))
    log.write("x", EntryOpened("w", "w", EntryKind.WAIT, 1, None, ("paid",)), line, line)
    log.write("x", step("a", 2), step("b", 0), line)
    log.write("x", EntryCompleted("w", "1", ("e1",)))
    log.write("x", PostsSent(1))

    async def scenario(workflows: Workflows) -> None:
        assert await workflows.changes("order", "x", -1) is None
        project_all = Projecting(migrated, log)
        await project_all.finish(100)
        whole = await workflows.changes("order", "x", -1)
        assert whole is not None
        assert (whole.run_number, whole.offset, whole.more) == (0, 5, False)
        reported = [
            (row.offset, getattr(row.row, "step_key", None) or row.row.__class__.__name__)
            for row in whole.rows
        ]
        assert reported == [
            *((2, "LogLine"), (2, "LogLine")),
            *((3, "b"), (3, "a"), (3, "LogLine")),
            *((4, "w"), (4, "Event")),
            (5, "StatusOfRun"),
        ]
        tail = await workflows.changes("order", "x", 3)
        assert tail is not None
        assert tail.rows == whole.rows[5:]
        for after in (5, 9, 2**80):
            nothing = await workflows.changes("order", "x", after)
            assert nothing is not None
            assert (nothing.rows, nothing.more) == ((), False)
        assert await workflows.changes("order", "\x00", -1) is None

    with_workflows(migrated, scenario)


def test_a_page_ends_with_a_record_however_much_that_changed(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"), step("a"), step("b"))
    log.write("x", *[step(f"s{n}", n) for n in range(20)])
    log.write("x", step("c"))
    log.write("x", RunSuspended())
    project(migrated, log)

    async def scenario(workflows: Workflows) -> None:
        after, reported = -1, []
        while True:
            result = await workflows.changes("order", "x", after, limit=3)
            assert result is not None
            reported.append((len(result.rows), result.offset, result.more))
            after = result.offset
            if not result.more:
                break
        assert reported == [(2, 1, True), (20, 2, True), (2, 4, False)]

    with_workflows(migrated, scenario)


def test_who_follows_sees_a_loop_forget_and_a_retry_begin(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"), EntryOpened("pages", "pages", EntryKind.LOOP, 0))

    async def scenario(workflows: Workflows) -> None:
        follower, projecting = Follower(workflows, "x"), Projecting(migrated, log)
        for number in range(30):
            log.write("x", step(f"pages/~{number}/fetch", number + 1))
            log.write("x", LoopAdvanced("pages", number + 1, "null", max(0, number - 3)))
            if number % 4 == 0:
                await projecting.finish(5)
                await follower.look(7)
        await projecting.finish(5)
        while await follower.look(7):
            pass
        assert set(follower.steps) == {"pages"} | {f"pages/~{n}/fetch" for n in range(26, 30)}
        await follower.check_whole()
        log.write("x", RunStarted("{}", "s", None, ("pages", "pages/~29/fetch")), run_number=1)
        log.write("x", RunCompleted("1"), run_number=1)
        await projecting.finish(5)
        while await follower.look(1):
            pass
        assert (follower.run_number, set(follower.steps)) == (1, {"pages", "pages/~29/fetch"})
        await follower.check_whole()

    with_workflows(migrated, scenario)
