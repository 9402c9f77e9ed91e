"""Histories of workflows in a real Postgres: the rows are those of the fold, however they came.

The reference is `tests.unit.projections.workflow_fold`, which knows nothing of batches.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.rows import dict_row

from headwater.processors.runs.decisions import Facts
from headwater.processors.runs.slots import Concurrency
from headwater.processors.runs.state import TRANSITIONS
from headwater.processors.slots.engine import SlotsEngine
from headwater.projections.projector.store import Store
from headwater.projections.workflows.plan import workflows_kept
from headwater.schemas.history import (
    Artifact,
    AskSlot,
    Child,
    CommandRejected,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    Failure,
    FanInActivated,
    HistoryAppended,
    HostLost,
    InstanceDeleted,
    JobActivated,
    JobExtended,
    LeaseExpired,
    LogEvent,
    LogWritten,
    LoopAdvanced,
    OutcomeHeld,
    Parent,
    PostsSent,
    Reopened,
    ReturnSlot,
    RunCompleted,
    RunErrored,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
    SubworkflowStarted,
    TaskDispatch,
    TasksDispatched,
    TaskUnderWay,
    TimesTaken,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
    WaitStarted,
)
from headwater.schemas.statuses import EntryKind, RunStatus
from headwater.schemas.topics import WORKFLOW_HISTORY
from tests.fakes.engines import fold
from tests.unit.projections.histories import START_MS, Cutter, Log
from tests.unit.projections.workflow_fold import RETENTION, Fold, Row

NOW_MS = START_MS + 86_400_000
TABLES = {
    "workflow_instance": ("workflow_name", "instance_id"),
    "workflow_run": ("workflow_name", "instance_id", "run_number"),
    "workflow_step": ("workflow_name", "instance_id", "run_number", "step_key"),
    "workflow_token": ("workflow_name", "instance_id", "run_number", "id"),
    "workflow_event": ("workflow_name", "instance_id", "run_number", "id"),
    "workflow_log": ("workflow_name", "instance_id", "run_number", "id"),
    "workflow_graph_event": (
        "workflow_name",
        "instance_id",
        "run_number",
        "sequence",
        "position",
    ),
    "workflow_slot": ("workflow_name", "instance_id", "number"),
    "workflow_owner": ("partition",),
}
SHOWN_AS = {"json": "{0}::text", "timestamptz": "(extract(epoch from {0}) * 1000)::bigint"}


def rows_of(dsn: str) -> dict[str, list[Row]]:
    """All rows as the fold gives them: moments in milliseconds, JSON as the text that it is."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return {table: list(_rows(connection, table)) for table in TABLES}


def _rows(connection: "psycopg.Connection[dict[str, Any]]", table: str) -> Iterator[Row]:
    columns = connection.execute(
        "select column_name, udt_name from information_schema.columns where table_name = %s",
        [table],
    ).fetchall()
    shown = [
        sql.SQL(SHOWN_AS.get(column["udt_name"], "{0}") + " as {0}").format(
            sql.Identifier(column["column_name"])
        )
        for column in columns
    ]
    query = sql.SQL("select {} from {}").format(sql.SQL(", ").join(shown), sql.Identifier(table))
    result = connection.execute(query).fetchall()
    return iter(sorted(result, key=lambda row: [row[name] for name in TABLES[table]]))


class Projecting:
    """A projector without Kafka: reads on where Postgres is, applies batches of any size."""

    def __init__(self, dsn: str, log: Log) -> None:
        self.log = log
        self.places = [(WORKFLOW_HISTORY, number) for number in range(len(log.partitions))]
        self.cutter = Cutter(log)
        self.store = Store(dsn, projection=workflows_kept(RETENTION), clock=lambda: NOW_MS)
        self.refused = 0

    async def seek(self) -> None:
        """Reads on where Postgres is."""
        for (_, number), position in (await self.store.positions(self.places)).items():
            self.cutter.seek(number, position.next_offset, position.claims)

    async def step(self, *sizes: int, twice: bool = False) -> bool:
        """Applies the next batch; False when there is none."""
        batch = self.cutter.batch(*sizes)
        if not batch.spans:
            return False
        for _ in range(2 if twice else 1):
            admitted, refused = await self.store.apply(batch)
            self.refused += refused
            if admitted.behind:
                await self.seek()
        return True

    async def finish(self, *sizes: int) -> None:
        """Applies all that is left."""
        await self.seek()
        while await self.step(*sizes):
            pass
        await self.store.close()


def project(dsn: str, log: Log, *sizes: int) -> None:
    asyncio.run(Projecting(dsn, log).finish(*(sizes or [1_000] * len(log.partitions))))


# --- random histories, in random cuts ---------------------------------------------------------

KEYS = st.sampled_from(
    [
        *["a"] * 12,  # so often that much happens to one row
        *("a", "b", "loop", "loop/~0/a", "loop/~1/a", "loop/~2/in/~0/a", "loop/~2/in/~3/b"),
        *("loop/~9/a", "loop/~10/a", "loop/~x/a", "loop/~", "looped/~0/a", "loop/~2/in", "ä/~0/ö"),
    ]
)
VALUES = st.sampled_from(
    ["null", '{"a":  1, "a": 2}', '"\\u0000"', "1e400", '" \\ud800 "', '"é\\\\u0000"', " [1.0] "]
)
TEXTS = st.sampled_from(["", "name", "it's", "\\u0000", "line\nline", "é"])
FAILURES = st.builds(Failure, TEXTS, TEXTS, st.none() | VALUES)
NUMBERS = st.integers(0, 3)
MOMENTS = st.integers(START_MS - 10**9, START_MS + 10**12)
KINDS = st.sampled_from([kind for kind in EntryKind if kind is not EntryKind.NOW])
EVENT_IDS = st.sampled_from(["e1", "e2", "e3"])
TYPES = st.lists(st.sampled_from(["paid", "line"]), max_size=2).map(tuple)
CHILDREN = st.none() | st.builds(Child, TEXTS, TEXTS)

TOKENS = st.integers(0, 3)
SOME_TOKENS = st.lists(TOKENS, max_size=3, unique=True).map(tuple)
CREATED = st.builds(
    TokensCreated,
    *(st.just(0), st.integers(1, 3), TEXTS, st.none() | TOKENS, TEXTS, TEXTS, TEXTS),
    *(st.none() | TEXTS, NUMBERS, NUMBERS),
    st.lists(st.builds(TimesTaken, TEXTS, NUMBERS), max_size=2).map(tuple),
    task=st.none() | TEXTS,
    subworkflow=st.none() | TEXTS,
)
EVENTS = st.one_of(
    st.builds(StepCompleted, KEYS, TEXTS, NUMBERS, MOMENTS, NUMBERS, NUMBERS, NUMBERS, VALUES),
    st.builds(StepStarted, KEYS, TEXTS, NUMBERS, MOMENTS, st.just(1), NUMBERS, NUMBERS),
    st.builds(
        StepFailed,
        *(KEYS, TEXTS, NUMBERS, MOMENTS, NUMBERS, NUMBERS, NUMBERS, FAILURES),
        st.none() | MOMENTS,
    ),
    st.builds(
        EntryOpened,
        *(KEYS, TEXTS, KINDS, NUMBERS, st.none() | MOMENTS, st.none() | TYPES),
        *(st.none() | NUMBERS, CHILDREN),
    ),
    st.builds(EntryCompleted, KEYS, VALUES, st.lists(EVENT_IDS, max_size=2).map(tuple)),
    st.builds(EntryErrored, KEYS, FAILURES),
    st.builds(EntriesCancelled, st.lists(KEYS, max_size=3).map(tuple)),
    st.builds(StepsRetried, st.lists(KEYS, max_size=3).map(tuple)),
    st.builds(EntryRolledBack, KEYS),
    st.builds(
        LoopAdvanced,
        st.sampled_from(["loop", "loop/~2/in", "ä"]),
        NUMBERS,
        VALUES,
        st.integers(0, 11),
    ),
    st.builds(EventReceived, EVENT_IDS, TEXTS, VALUES, MOMENTS),
    st.builds(
        LogWritten,
        *(st.sampled_from(["debug", "error"]), TEXTS, TEXTS, st.none() | VALUES),
        *(st.none() | KEYS, st.none() | NUMBERS, st.booleans()),
    ),
    st.just(EntryOpened("~now", "", EntryKind.NOW, 0)),
    st.just(EntryCompleted("~now", "17")),
    st.just(RunSuspended()),
    st.just(SlotAsked("~")),
    st.just(SlotGranted()),
    st.just(RunPaused()),
    st.just(RunResumed()),
    st.just(RunTerminated("enough")),
    st.builds(RunCompleted, VALUES),
    st.builds(RunErrored, FAILURES),
    st.just(PostsSent(0)),
    st.just(HostLost("killed", 1)),
    st.just(CommandRejected("STALE", "over")),
)
TOKEN_EVENTS = st.one_of(
    CREATED,
    st.builds(
        TasksDispatched,
        st.lists(
            st.builds(TaskDispatch, TOKENS, NUMBERS, st.none() | VALUES, st.none() | TEXTS),
            unique_by=lambda task: task.token,
            max_size=3,
        ).map(tuple),
    ),
    st.builds(TaskUnderWay, TOKENS, NUMBERS),
    st.builds(JobActivated, TOKENS, NUMBERS, TEXTS, MOMENTS),
    st.builds(JobExtended, TOKENS, NUMBERS, TEXTS, MOMENTS),
    st.builds(LeaseExpired, TOKENS, NUMBERS, FAILURES),
    st.builds(TokenCompleted, TOKENS, NUMBERS, VALUES, st.none() | TEXTS),
    st.builds(
        TokenFailed,
        *(TOKENS, NUMBERS, FAILURES, st.none() | MOMENTS, st.booleans(), st.none() | VALUES),
        *(st.booleans(), st.none() | TEXTS),
    ),
    st.builds(WaitStarted, TOKENS, MOMENTS, st.none() | TEXTS),
    st.builds(OutcomeHeld, TOKENS, MOMENTS, st.none() | VALUES),
    st.builds(TokenArrived, TOKENS, st.none() | MOMENTS),
    st.builds(FanInActivated, TEXTS, TEXTS, SOME_TOKENS),
    st.builds(TokensCancelled, SOME_TOKENS, TEXTS, st.booleans()),
    st.builds(TokensTimedOut, SOME_TOKENS),
    st.builds(SubworkflowStarted, TOKENS, st.builds(Child, TEXTS, TEXTS), st.none() | MOMENTS),
    st.just(RunSuspended()),
    st.builds(RunErrored, FAILURES),
    st.just(CommandRejected("STALE", "over")),
)
PARTITION_OF = {"x": 0, "z": 1}
INSTANCES = st.sampled_from(sorted(PARTITION_OF))
STARTS = st.builds(
    RunStarted,
    VALUES,
    st.just("seed"),
    st.none() | st.builds(Parent, TEXTS, TEXTS, NUMBERS, TEXTS),
    deployment=st.none() | st.builds(Artifact, TEXTS, TEXTS, TEXTS),
)
#: What a retry takes over, and what of that goes on.
RETRIES = st.builds(
    lambda params, keys, reopened: RunStarted(
        params, "seed", None, tuple(keys[reopened:]), tuple(map(Reopened, keys[:reopened]))
    ),
    *(VALUES, st.lists(KEYS, unique=True, max_size=8), st.integers(0, 2)),
)


def moves_of(events: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Runs begin, go on, get records late; owners change, and old ones write after their time."""
    batches = st.lists(events, min_size=1, max_size=4).map(tuple)
    return st.lists(
        st.one_of(
            st.tuples(st.just("start"), INSTANCES, st.tuples(STARTS)),
            st.tuples(st.just("start"), INSTANCES, st.tuples(RETRIES)),
            st.tuples(st.just("start"), INSTANCES, st.tuples(RETRIES, events)),
            *[st.tuples(st.just("write"), INSTANCES, batches)] * 3,
            st.tuples(st.just("late"), INSTANCES, batches),
            st.tuples(st.just("void"), INSTANCES, batches),
            st.tuples(st.just("delete"), INSTANCES, st.just((InstanceDeleted(),))),
            st.tuples(st.just("claim"), INSTANCES, st.lists(TEXTS, max_size=2).map(tuple)),
        ),
        max_size=40,
    )


def numbered(event: LogEvent, created: Counter[tuple[str, int]], run: tuple[str, int]) -> LogEvent:
    """The event; tokens that it creates have the next numbers of the run."""
    if isinstance(event, RunStarted) and event.kept is not None:
        created[run] = max(created[run], created[run[0], run[1] - 1])
    if not isinstance(event, TokensCreated):
        return event
    first = created[run]
    created[run] += event.count
    return msgspec.structs.replace(event, first=first)


def is_after_creation(event: LogEvent, created: int) -> bool:
    """Whether all tokens of an event are among the first ones, which were created."""
    tasks = event.tasks if isinstance(event, TasksDispatched) else ()
    one = getattr(event, "token", None)
    tokens = [*getattr(event, "tokens", ()), *(task.token for task in tasks)]
    return all(token < created for token in ([*tokens, one] if one is not None else tokens))


def retried(event: LogEvent, failed: set[str]) -> LogEvent:
    """The event, without retries of steps that have not failed; takes note of those that have."""
    match event:
        case StepFailed(key) if event.retry_at_ms is not None:
            failed.add(key)
        case StepsRetried(keys):
            again = tuple(key for key in keys if key in failed)
            failed.difference_update(again)
            return StepsRetried(again)
        case StepStarted(key) | StepCompleted(key) | StepFailed(key) | EntryOpened(key):
            failed.discard(key)
        case LoopAdvanced() | EntriesCancelled():
            failed.clear()
        case _:
            pass
    return event


def possible(
    events: tuple[LogEvent, ...], status: RunStatus, failed: set[str]
) -> tuple[tuple[LogEvent, ...], RunStatus]:
    """Those of the events that a run in this status can write, and its status after them.

    `failed` are its steps that wait to be tried again.
    """
    kept: list[LogEvent] = []
    for event in (retried(event, failed) for event in events):
        resolves = not isinstance(event, StepFailed) or event.retry_at_ms is None
        moves = TRANSITIONS.get(type(event)) if resolves else None
        if moves is None or status in moves:
            kept.append(event)
            status = status if moves is None else moves[status]
    return tuple(kept), status


def written(moves: list[Any]) -> Log:  # noqa: C901, PLR0915, one case for each move
    log = Log([[], []])
    created: Counter[tuple[str, int]] = Counter()
    epochs = {number: [log.claim(number)] for number in range(2)}
    runs = dict.fromkeys(PARTITION_OF, -1)
    statuses: dict[tuple[str, int], RunStatus] = {}
    failed: dict[tuple[str, int], set[str]] = defaultdict(set)

    def write(instance: str, events: tuple[LogEvent, ...], run: int) -> None:
        before = statuses.get((instance, run), RunStatus.ACTIVE)
        events = tuple(
            numbered(event, created, (instance, run))
            for event in events
            if is_after_creation(event, created[instance, run])
        )
        kept, statuses[instance, run] = possible(events, before, failed[instance, run])
        if kept:
            log.write(instance, *kept, run_number=run, partition=PARTITION_OF[instance])

    for move, instance, events in moves:
        number = PARTITION_OF[instance]
        run = max(runs[instance], 0)
        match move:
            case "claim":
                epochs[number].append(log.claim(number, workflows=events))
            case "start":
                runs[instance] += 1
                write(instance, events, runs[instance])
            case "delete" if runs[instance] >= 0:
                log.write(instance, *events, run_number=run, partition=number)
                for item in range(run + 1):
                    for kept in (statuses, failed, log.sequences):
                        kept.pop((instance, item), None)
                runs[instance] = -1
            case "late":
                write(instance, events, max(run - 1, 0))
            case "void" if len(epochs[number]) > 1:
                old = epochs[number][-2]
                log.write(instance, *events, run_number=run, partition=number, epoch=old)
            case _:
                write(instance, events, run)
    return log


def empty(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        names = sql.SQL(", ").join(map(sql.Identifier, [*TABLES, "projection_offsets"]))
        connection.execute(sql.SQL("truncate {}").format(names))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    moves=moves_of(EVENTS) | moves_of(TOKEN_EVENTS),
    cuts=st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 9), st.integers(0, 9), st.booleans()),
        max_size=12,
    ),
    rest=st.integers(1, 40),
)
def test_the_rows_are_those_of_the_fold_however_the_log_is_cut(
    migrated: str, moves: list[Any], cuts: list[tuple[int, int, int, bool]], rest: int
):
    log = written(moves)

    async def scenario() -> None:
        # Two projectors that both believe the partitions are theirs, and now and then try again.
        both = [Projecting(migrated, log) for _ in range(2)]
        for projecting in both:
            await projecting.seek()
        for which, first, second, twice in cuts:
            await both[which].step(first, second, twice=twice)
        await both[1].store.close()
        await both[0].finish(rest, rest)
        assert [item.refused for item in both] == [0, 0]

    empty(migrated)
    asyncio.run(scenario())
    assert rows_of(migrated) == log.fold().rows()


def _counted(log: Log, ends: list[int]) -> None:
    """Eight runs ask two limits for slots, and give them back in an order."""
    engine = SlotsEngine({"order": Concurrency(2)})
    runs: dict[str, Any] = {}
    asks = [AskSlot(f"o-{n}#{n % 3}#seed", str(n % 2)) for n in range(8)]
    commands = [*enumerate(asks), *((n, ReturnSlot(asks[n].ticket)) for n in ends)]
    for number, command in commands:
        slots, partition = f"~{number % 2}", number % 2
        run = runs.get(slots)
        events = engine.decide_command(run, command, Facts("order", slots, 0, 0))
        assert isinstance(events, list)
        log.write(slots, *events, partition=partition)
        record = log.partitions[partition][-1]
        assert isinstance(record, HistoryAppended)
        runs[slots] = fold(run, record)


@pytest.mark.parametrize("ends", [[], [0, 1, 5, 2, 3], [6, 4, 0, 7, 1, 2, 3, 5]])
def test_rows_of_slots_are_those_of_the_fold_however_the_log_is_cut(migrated: str, ends: list[int]):
    log = Log(partitions=[[], []])
    log.claim(0)
    log.claim(1)
    _counted(log, ends)
    expected = log.fold().rows()
    assert len(expected["workflow_slot"]) == 8 - len(ends)

    async def scenario(size: int) -> None:
        projecting = Projecting(migrated, log)
        await projecting.seek()
        await projecting.finish(size, size)
        assert projecting.refused == 0

    for size in (1, 2, 3, 100):
        empty(migrated)
        asyncio.run(scenario(size))
        assert rows_of(migrated) == expected


# --- what a projector meets --------------------------------------------------------------------


def claims_of(dsn: str) -> list[tuple[int, int, int]]:
    with psycopg.connect(dsn) as connection:
        query = "select next_offset, epoch, cause from projection_offsets order by partition"
        return connection.execute(query).fetchall()


def step(key: str, ordinal: int = 0, result: str = "1") -> StepCompleted:
    return StepCompleted(key, key, ordinal, START_MS, 1, 6, 600_000, result)


def test_a_restart_knows_the_epoch_and_the_cause(migrated: str):
    log = Log()
    old = log.claim()
    log.write("x", RunStarted("{}", "s"), cause=7)
    project(migrated, log)
    assert claims_of(migrated) == [(2, 0, 7)]
    log.write("x", step("counts"), cause=6)
    log.claim(owner="you")
    log.write("x", step("void"), epoch=old, cause=8).write("x", step("too"))
    project(migrated, log)
    assert claims_of(migrated) == [(6, 3, 7)]
    log.write("x", step("late"), epoch=old)
    project(migrated, log)
    result = rows_of(migrated)
    assert [row["step_key"] for row in result["workflow_step"]] == ["counts", "too"]
    assert result == log.fold().rows()


def test_older_runs_stay_visible(migrated: str):
    log = Log()
    log.claim()
    first, second = (Artifact(f"dep_{number}", "app", "digest") for number in (1, 2))
    begun = RunStarted('"first"', "s", deployment=first)
    log.write("x", begun, step("a"), RunErrored(Failure("E", "no")))
    project(migrated, log)
    log.write("x", RunStarted('"second"', "s", deployment=second), step("a"), run_number=1)
    log.write("x", RunStarted('"third"', "s"), run_number=2)
    log.write("x", RunCompleted('"done"'), run_number=2)
    project(migrated, log)
    result = rows_of(migrated)
    runs = [(row["run_number"], row["status"], row["params"]) for row in result["workflow_run"]]
    assert runs == [(0, "errored", '"first"'), (1, "active", '"second"')]
    assert [row["deployment_id"] for row in result["workflow_run"]] == ["dep_1", "dep_2"]
    [instance] = result["workflow_instance"]
    assert instance["deployment_id"] is None
    assert (instance["run_number"], instance["output"]) == (2, '"done"')
    assert instance["created_at"] < instance["started_at"] < instance["completed_at"]
    assert [row["run_number"] for row in result["workflow_step"]] == [0, 1]


RETRIED = RunStarted("{}", "s", None, ("a", "wait", "~now"), (Reopened("all"), Reopened("loop")))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_retry_goes_on_with_what_the_run_before_had_done(migrated: str, size: int):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"), *(LogWritten("info", "c", "m"), step("a")))
    for number in range(4):
        log.write("x", EventReceived(f"e{9 - number}", "paid", f" {number}", START_MS))
    log.write("x", EntryOpened("all", "all", EntryKind.JOIN, 3), step("all/left", 3))
    log.write("x", EntryOpened("loop", "loop", EntryKind.LOOP, 3))
    log.write("x", EntryOpened("wait", "wait", EntryKind.WAIT, 2, START_MS, ("paid",)))
    log.write("x", EntryCompleted("wait", "1", ("e8",)), LoopAdvanced("loop", 3, "1", 2))
    failed = StepFailed("b", "b", 4, START_MS, 1, 1, 1, Failure("E", "m"))
    log.write("x", failed, EntryErrored("all", Failure("E", "m")), RunErrored(Failure("E", "m")))
    log.write("x", RETRIED, step("a2", 3), run_number=1)
    log.write("x", EntryCompleted("all", "2", ("e7",)), run_number=1)
    project(migrated, log, size)
    result = rows_of(migrated)
    new = [row for row in result["workflow_step"] if row["run_number"] == 1]
    assert {row["step_key"]: (row["status"], row["sequence"]) for row in new} == {
        "a": ("completed", -4),
        "wait": ("completed", -3),
        "all": ("completed", -2),
        "loop": ("pending", -1),
        "a2": ("completed", 1),
    }
    assert {row["step_key"]: row["offset"] for row in new} == {
        **dict.fromkeys(("a", "wait", "loop", "a2"), 11),
        "all": 12,
    }
    assert [row["trimmed_before"] for row in new if row["step_key"] == "loop"] == [2]
    events = [row for row in result["workflow_event"] if row["run_number"] == 1]
    assert {row["id"]: (row["sequence"], row["delivered_at"] is None) for row in events} == {
        "e9": (-3, True),
        "e7": (-2, False),
        "e6": (-1, True),
    }
    [run] = result["workflow_run"]
    [instance] = result["workflow_instance"]
    assert (run["status"], instance["status"]) == ("errored", "active")
    assert instance["started_at"] == run["started_at"] == instance["created_at"]
    assert {row["run_number"] for row in result["workflow_log"]} == {0}
    assert result == log.fold().rows()


def a_token(log: Log) -> None:
    created = TokensCreated(0, 1, "n", None, "", "", "", None, 0, 1, ())
    log.write("x", RunStarted("{}", "s"), created)


@pytest.mark.parametrize("size", [1, 100])
def test_a_retry_keeps_who_has_the_job_of_a_token(migrated: str, size: int):
    log = Log()
    log.claim()
    a_token(log)
    log.write("x", JobActivated(0, 1, "me", START_MS + 60_000))
    log.write("x", RunStarted("{}", "s", None, ()), run_number=1)
    project(migrated, log, size)
    assert rows_of(migrated) == log.fold().rows()


@pytest.mark.parametrize("size", [1, 100])
def test_a_token_keeps_the_job_that_a_later_dispatch_does_not_name(migrated: str, size: int):
    log = Log()
    log.claim()
    a_token(log)
    for attempt, job in enumerate(("job", None)):
        log.write("x", TasksDispatched((TaskDispatch(0, attempt, None, job),)))
    project(migrated, log, size)
    assert rows_of(migrated) == log.fold().rows()


def test_a_retry_of_a_retry_keeps_the_order_and_a_restart_keeps_nothing(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"), step("b"), step("a"))
    log.write("x", RunStarted("{}", "s", None, ("a", "b")), step("c"), run_number=1)
    project(migrated, log, 2)
    kept = RunStarted("{}", "s", None, ("a", "b", "c", "gone"))
    log.write("x", kept, step("d"), run_number=2)
    log.write("x", RunStarted("{}", "s"), run_number=3)
    project(migrated, log)
    result = rows_of(migrated)
    order = {row["sequence"]: row["step_key"] for row in result["workflow_step"][5:]}
    assert order == {-3: "b", -2: "a", -1: "c", 1: "d"}
    assert [row["started_at"] for row in result["workflow_run"]] == [START_MS + 2_000] * 3
    [instance] = result["workflow_instance"]
    assert instance["started_at"] == START_MS + 5_000
    assert result == log.fold().rows()


def test_what_comes_late_of_an_older_run_leaves_the_instance_alone(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s")).write("x", RunStarted("{}", "s"), run_number=1)
    project(migrated, log)
    log.write("x", step("late"), RunErrored(Failure("E", "late")), PostsSent(1))
    project(migrated, log)
    result = rows_of(migrated)
    assert [row["step_key"] for row in result["workflow_step"]] == ["late"]
    assert [row["status"] for row in result["workflow_instance"]] == ["active"]
    assert result == log.fold().rows()


def test_an_event_is_that_of_its_run(migrated: str):
    log = Log()
    log.claim()
    for number in range(2):
        received = EventReceived("e1", "paid", "1", START_MS)
        log.write("x", RunStarted("{}", "s"), received, run_number=number)
    project(migrated, log)
    log.write("x", EntryCompleted("a", "1", ("e1",)), run_number=1)
    project(migrated, log)
    result = rows_of(migrated)
    assert [row["consumed_by_step_key"] for row in result["workflow_event"]] == [None, "a"]
    assert result == log.fold().rows()


@pytest.mark.parametrize("size", [1, 100])
def test_what_happens_to_a_step_keeps_what_it_does_not_speak_of(migrated: str, size: int):
    log = Log()
    log.claim()
    again = StepFailed("b", "B", 1, START_MS, 1, 6, 1, Failure("E", "m", "[]"), START_MS + 9)
    for event in (
        *(RunStarted("{}", "s"), step("a"), EntryRolledBack("a"), again, EntriesCancelled(("b",))),
        *(EntryOpened("c", "C", EntryKind.SLEEP, 2, START_MS + 60_000), EntryRolledBack("c")),
        *(EntryCompleted("c", "1"), EntryRolledBack("c"), RunErrored(Failure("E", "m", "[]"))),
        HostLost("killed", 1),
    ):
        log.write("x", event)
    project(migrated, log, size)
    result = rows_of(migrated)
    a, b, c = result["workflow_step"]
    assert (a["status"], a["result"]) == ("completed", "1")
    assert (b["status"], b["error_detail"], b["next_retry_at"]) == ("cancelled", "[]", None)
    assert (c["status"], c["result"], c["wake_at"]) == ("completed", "1", START_MS + 60_000)
    assert result == log.fold().rows()


def test_what_postgres_refuses_is_kept_and_the_rest_goes_on(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"))
    bad = ['{"no json', '"\x00"', "[" * 100_000]
    for number, value in enumerate(bad):
        log.write("x", step(f"good {number}"), RunSuspended())
        log.write("x", step(f"bad {number}", result=value))
    log.write("x", LogWritten("loud", "c", "m"))
    log.partitions[0].append(b"nothing of ours")
    log.write("x", StepFailed("never", "n", 1, 2**62, 1, 1, 1, Failure("E", "")))
    log.write("x", RunCompleted('"\\u0000"'))
    projecting = Projecting(migrated, log)
    asyncio.run(projecting.finish(1_000))
    assert projecting.refused == 6
    result = rows_of(migrated)
    assert [row["step_key"] for row in result["workflow_step"]] == ["good 0", "good 1", "good 2"]
    [instance] = result["workflow_instance"]
    assert (instance["status"], instance["output"]) == ("complete", '"\\u0000"')
    with psycopg.connect(migrated) as connection:
        query = 'select "offset", error from projection_errors order by "offset"'
        said = dict(connection.execute(query).fetchall())
    assert [
        part in said[at]
        for at, part in zip(
            sorted(said),
            (
                "invalid input syntax for type json",
                "unsupported Unicode escape sequence",
                "stack depth limit exceeded",
                "violates check constraint",
                "Confluent wire format",
                "timestamp out of range",
            ),
            strict=True,
        )
    ] == [True] * 6


def test_a_nul_in_a_text_becomes_a_replacement_character(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"), RunErrored(Failure("E", "bad \x00 byte", '"\\u0000"')))
    project(migrated, log)
    [instance] = rows_of(migrated)["workflow_instance"]
    assert instance["error_message"] == "bad \ufffd byte"
    assert instance["error_detail"] == '"\\u0000"'


def test_a_long_loop_stays_short(migrated: str):
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"), EntryOpened("pages", "pages", EntryKind.LOOP, 0))
    for number in range(300):
        log.write("x", step(f"pages/~{number}/fetch", number + 1))
        if number % 20 == 19:
            log.write("x", LoopAdvanced("pages", number + 1, "null", max(0, number - 19)))
    project(migrated, log, 17)
    result = rows_of(migrated)
    assert len(result["workflow_step"]) == 1 + 20
    assert result == log.fold().rows()


def test_rows_of_others_are_left_alone_when_a_loop_forgets(migrated: str):
    log = Log()
    log.claim()
    for instance in ("x", "xx"):
        log.write(instance, RunStarted("{}", "s"), step("p/~0/a"), step("p%/~0/a"), step("P/~0/a"))
    project(migrated, log)
    log.write("x", LoopAdvanced("p", 5, json.dumps({}), 5))
    project(migrated, log)
    kept = [(row["instance_id"], row["step_key"]) for row in rows_of(migrated)["workflow_step"]]
    assert kept == [("x", "P/~0/a"), ("x", "p%/~0/a")] + [
        ("xx", key) for key in ("P/~0/a", "p%/~0/a", "p/~0/a")
    ]


def test_an_empty_log_is_an_empty_fold(migrated: str):
    assert rows_of(migrated) == Fold().rows()
