"""Which idempotency keys of events an instance remembers."""

import pytest

from headwater.processors.runs.state import REMEMBERED_MAX, Run, remember
from headwater.schemas.history import EventReceived, Once
from tests.unit.processors.replay.states import a_run

DAY_MS = 24 * 60 * 60 * 1_000


def receive(run: Run, number: int, at_ms: int) -> None:
    once = Once(f"k-{number}", "digest")
    remember(run, EventReceived(f"evt-{number}", "line", "1", at_ms, once), at_ms)


@pytest.mark.parametrize(("later_ms", "known"), [(DAY_MS - 1, True), (DAY_MS, False)])
def test_a_key_is_known_for_a_day(later_ms: int, known: bool):
    run = a_run()
    receive(run, 0, 0)
    receive(run, 1, later_ms)
    assert ("k-0" in run.keys, "k-1" in run.keys) == (known, True)


def test_of_many_within_a_day_the_latest_are_known():
    run = a_run()
    for number in range(REMEMBERED_MAX + 2):
        receive(run, number, number)
    assert REMEMBERED_MAX == 10_000
    assert list(run.keys) == [f"k-{number}" for number in range(2, REMEMBERED_MAX + 2)]


def test_an_event_without_a_key_leaves_the_keys_alone():
    run = a_run()
    receive(run, 0, 0)
    remember(run, EventReceived("evt-1", "line", "1", DAY_MS), DAY_MS)
    assert list(run.keys) == ["k-0"]
