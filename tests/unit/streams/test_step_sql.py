"""What becomes of a step whose SQL meets what nobody expected."""

import asyncio
from collections.abc import Collection
from typing import Any, Final, cast

import pytest
from typing_extensions import override

from headwater.processors.runs.decisions import Reached, RetryPolicy, StepRaised, StepReturned
from headwater.processors.runs.step_commits import EffectUnknown, StepCommit, StepId
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.history import Failure
from headwater.streams.engine.steps_with_sql import StepDatabase
from headwater.streams.engine.turns import Partition, StepOutcome, StepTransaction
from headwater.streams.workflows.step_sql import StepSql

POLICY: Final = RetryPolicy(2, 1_000, "constant")
RETURNED: Final = StepReturned(
    Reached("pay", "pay", 0, 0, 3, 600), 1, POLICY, "5", statements=(("insert", "[]"),)
)


class Faulty(StepDatabase):
    """A database with a fault of its own in it."""

    @override
    async def claim(self, partition: int, epoch: int) -> list[StepCommit]:
        return []

    @override
    async def commit(
        self, partition: int, epoch: int, commit: StepCommit
    ) -> StepReturned | Failure:
        raise AssertionError("expected what cannot be")

    @override
    async def forget(self, partition: int, steps: Collection[StepId]) -> None:
        pass


class Wants:
    """A partition whose owner wants every result."""

    number = 0
    epoch = 7
    owner: Any = property(lambda self: self)
    sql: Any = property(lambda self: self)

    def mark_sent(self, _: StepCommit) -> bool:
        return True


async def at_once(_: Partition) -> bool:
    return True


def test_a_fault_in_the_sql_of_a_step_fails_that_attempt_and_is_logged(
    caplog: pytest.LogCaptureFixture,
):
    settled: list[StepOutcome] = []
    sql = StepSql(
        Faulty(),
        settled=lambda _, outcome: settled.append(outcome),
        waits=lambda _: pytest.fail("expected no waiting"),
        superseded=lambda *_: pytest.fail("expected the partition to stay"),
        confirmed=at_once,
    )
    commit = StepCommit("order/o-1", 0, RETURNED)
    asyncio.run(sql.run(StepTransaction(cast("Any", Wants()), 1, commit)))
    (raised,) = settled
    assert isinstance(raised, StepRaised)
    assert raised.retryable
    assert raised.failure == Failure(
        "AssertionError",
        'expected to run the SQL of step "pay" of order/o-1, found: '
        "AssertionError('expected what cannot be')",
    )
    assert 'the SQL of step "pay" of order/o-1 could not be run' in caplog.text
    assert "Traceback" in caplog.text


class Breaks(Faulty):
    """A database whose connections break, before a transaction ends or amid that."""

    def __init__(self, *faults: StoreUnavailable) -> None:
        self._faults = list(faults)

    @override
    async def commit(
        self, partition: int, epoch: int, commit: StepCommit
    ) -> StepReturned | Failure:
        if self._faults:
            raise self._faults.pop(0)
        return commit.returned


AWAY: Final = StoreUnavailable("expected Postgres, found none")
UNKNOWN: Final = EffectUnknown("expected an answer to COMMIT, found none")


@pytest.mark.parametrize(
    ("faults", "waits"),
    [([AWAY], 1), ([AWAY, UNKNOWN], 1), ([UNKNOWN], 0), ([UNKNOWN, AWAY], 0)],
)
def test_what_would_undo_a_step_waits_until_it_is_known_whether_its_sql_took_effect(
    faults: list[StoreUnavailable], waits: int
):
    settled: list[StepOutcome] = []
    waited: list[StepTransaction] = []
    sql = StepSql(
        Breaks(*faults),
        settled=lambda _, outcome: settled.append(outcome),
        waits=waited.append,
        superseded=lambda *_: pytest.fail("expected the partition to stay"),
        confirmed=at_once,
    )
    commit = StepCommit("order/o-1", 0, RETURNED)
    asyncio.run(sql.run(StepTransaction(cast("Any", Wants()), 1, commit)))
    assert settled == [RETURNED]
    assert len(waited) == waits


def test_a_step_waits_where_there_is_no_database_and_the_log_names_it(
    caplog: pytest.LogCaptureFixture,
):
    expected = iter([True, False])

    class WantsForAWhile(Wants):
        def mark_sent(self, _: StepCommit) -> bool:
            return next(expected)

    settled: list[StepOutcome] = []
    waited: list[StepTransaction] = []
    sql = StepSql(
        None,
        settled=lambda _, outcome: settled.append(outcome),
        waits=waited.append,
        superseded=lambda *_: pytest.fail("expected the partition to stay"),
        confirmed=at_once,
    )
    commit = StepCommit("order/o-1", 0, RETURNED)
    asyncio.run(sql.run(StepTransaction(cast("Any", WantsForAWhile()), 1, commit)))
    assert settled == [None]
    assert len(waited) == 1
    assert 'the SQL of step "pay" of order/o-1 has to wait' in caplog.text
    assert "start the worker with HEADWATER_POSTGRES set" in caplog.text


def test_the_sql_of_a_step_waits_until_its_partition_is_confirmed_and_never_runs_of_one_given_up():
    settled: list[StepOutcome] = []
    confirmed: asyncio.Queue[bool] = asyncio.Queue()

    async def confirm(_: Partition) -> bool:
        return await confirmed.get()

    async def scenario() -> None:
        sql = StepSql(
            Breaks(),
            settled=lambda _, outcome: settled.append(outcome),
            waits=lambda _: pytest.fail("expected no waiting for Postgres"),
            superseded=lambda *_: pytest.fail("expected the partition to stay"),
            confirmed=confirm,
        )
        step = StepTransaction(cast("Any", Wants()), 1, StepCommit("order/o-1", 0, RETURNED))
        running = asyncio.create_task(sql.run(step))
        await asyncio.sleep(0)
        assert not settled
        confirmed.put_nowait(True)
        await running
        confirmed.put_nowait(False)
        await sql.run(step)

    asyncio.run(scenario())
    assert settled == [RETURNED]
