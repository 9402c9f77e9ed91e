"""When a run moves next by itself, and when a failed attempt is tried again."""

import pytest

from headwater.processors.code.state import CodeRun
from headwater.processors.code.waits import handlers_due, next_wake_ms
from headwater.processors.runs.decisions import ANY_NUMBER, RetryPolicy, delay_ms, retry_at_ms
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from tests.unit.processors.replay.states import FAILURE, a_run, an_entry

_YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("constant", [10, 10, 10, 10]),
        ("linear", [10, 20, 30, 40]),
        ("exponential", [10, 20, 40, 80]),
    ],
)
def test_delays_grow_as_the_backoff_says(backoff: str, delays: list[int]):
    policy = RetryPolicy(ANY_NUMBER, 10, backoff)
    assert [delay_ms(policy, retry) for retry in range(1, 5)] == delays
    assert [retry_at_ms(policy, retry, 1_000) for retry in range(1, 5)] == [
        1_000 + delay for delay in delays
    ]


@pytest.mark.parametrize("backoff", ["linear", "exponential"])
def test_no_delay_is_longer_than_a_year(backoff: str):
    assert delay_ms(RetryPolicy(ANY_NUMBER, 1_000, backoff), 10**12) == _YEAR_MS


@pytest.mark.parametrize(
    ("limit", "attempt", "again"),
    [(0, 1, False), (1, 1, True), (1, 2, False), (5, 5, True), (5, 6, False), (-1, 10**6, True)],
)
def test_a_limit_counts_retries_not_attempts(limit: int, attempt: int, *, again: bool):
    retry = retry_at_ms(RetryPolicy(limit, 0, "constant"), attempt, 7)
    assert retry == (7 if again else None)


_SLEEP = an_entry(EntryKind.SLEEP, wake_at_ms=50)
_RETRY = an_entry(EntryKind.DO, attempts=2, wake_at_ms=60)
_WAIT = an_entry(EntryKind.WAIT, wake_at_ms=55)
_BILL = an_entry(EntryKind.CHILD, wake_at_ms=57)
_JOIN = an_entry(EntryKind.JOIN, EntryStatus.PENDING)
_PAID = an_entry(
    EntryKind.DO, EntryStatus.COMPLETED, rollback=True, rollback_attempts=1, rollback_at_ms=40
)


@pytest.mark.parametrize(
    ("run", "after_ms", "expected"),
    [
        (a_run(), 0, None),
        (a_run(entries={"both": _JOIN}), 0, None),
        (a_run(entries={"nap": _SLEEP, "quote": _RETRY}), 0, 50),
        (a_run(entries={"nap": _SLEEP, "quote": _RETRY}), 50, 60),
        (a_run(entries={"nap": _SLEEP, "approval": _WAIT, "bill": _BILL}), 50, 56),
        (a_run(entries={"nap": _SLEEP, "approval": _WAIT, "bill": _BILL}), 56, 58),
        (a_run(entries={"nap": _SLEEP, "quote": _RETRY}), 60, None),
        (a_run(entries={"nap": _SLEEP}, back_at_ms=30), 0, 30),
        (a_run(entries={"nap": _SLEEP, "pay": _PAID}), 0, 50),
        (a_run(entries={"nap": _SLEEP, "pay": _PAID}, rollback=FAILURE), 0, 40),
        (a_run(RunStatus.COMPLETE, entries={"nap": _SLEEP}), 0, None),
    ],
)
def test_a_run_wakes_by_the_earliest_of_what_waits(
    run: CodeRun, after_ms: int, expected: int | None
):
    assert next_wake_ms(run, after_ms) == expected


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (a_run(entries={"nap": _SLEEP}), []),
        (a_run(entries={"quote": _RETRY}), []),
        (a_run(entries={"pay": _PAID}), []),
        (
            a_run(entries={"pay": _PAID, "quote": _RETRY}, rollback=FAILURE),
            ["pay"],
        ),
        (
            a_run(
                entries={"pay": an_entry(rollback_at_ms=1, rolled_back=True, wake_at_ms=99)},
                rollback=FAILURE,
            ),
            [],
        ),
    ],
)
def test_rollback_handlers_are_due_at_their_time(run: CodeRun, expected: list[str]):
    assert handlers_due(run, 60) == expected
