"""Timers: one time for each key, taken out in the order of the times."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.streams.engine.timer_queue import Timers


def test_a_time_that_was_moved_counts_only_where_it_is_now():
    timers = Timers([("a", 10), ("b", 20)])
    timers.put("a", 30)
    assert timers.next_ms() == 20
    assert list(timers.due(25)) == ["b"]
    assert list(timers.due(29)) == []
    assert list(timers.due(30)) == ["a"]
    assert timers.next_ms() is None


def test_a_dropped_key_is_never_due():
    timers = Timers([("a", 10)])
    timers.drop("a")
    timers.drop("never there")
    assert list(timers.due(100)) == []


def test_a_key_that_is_put_back_while_another_is_handled_is_due_again():
    timers = Timers([("a", 10), ("b", 20)])
    seen = []
    for key in timers.due(30):
        seen.append(key)
        if len(seen) == 1:
            timers.put("a", 15)
    assert seen == ["a", "a", "b"]


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 50)))))
def test_timers_agree_with_a_dict(moves: list[tuple[int, int | None]]):
    timers: Timers[int] = Timers()
    expected: dict[int, int] = {}
    for key, at_ms in moves:
        if at_ms is None:
            timers.drop(key)
            expected.pop(key, None)
        else:
            timers.put(key, at_ms)
            expected[key] = at_ms
        assert timers.next_ms() == min(expected.values(), default=None)
        assert len(timers) == len(expected)
    due = list(timers.due(25))
    assert sorted(due) == sorted(key for key, at_ms in expected.items() if at_ms <= 25)
    assert [expected[key] for key in due] == sorted(expected[key] for key in due)


def test_the_heap_does_not_grow_with_times_that_no_longer_hold():
    timers: Timers[str] = Timers()
    for at_ms in range(10_000):
        timers.put("a", at_ms)
    assert len(timers._heap) < 2_000
