"""How fast Terra is asked, and when again."""

import pytest

from headwater.gateway.terra.pace import Pace, backoff_s, is_passing, retry_after_s

#: 2026-11-22 12:00:00 UTC.
NOON = 1_795_348_800.0


def test_requests_of_a_moment_go_at_once_up_to_a_second_s_worth_and_then_at_the_rate():
    pace = Pace(4.0)
    waits = [pace.turn_s(100.0) for _ in range(7)]
    assert waits == pytest.approx([0, 0, 0, 0, 0.25, 0.5, 0.75])
    assert pace.turn_s(200.0) == 0


def test_a_rate_below_one_a_second_is_kept_too():
    pace = Pace(0.5)
    assert [pace.turn_s(100.0) for _ in range(3)] == pytest.approx([0, 2, 4])


def test_nothing_is_sent_before_a_hold_has_passed():
    pace = Pace(10.0)
    pace.hold(130.0)
    assert pace.turn_s(100.0) == pytest.approx(30)
    assert pace.turn_s(100.0) == pytest.approx(30.1)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        (" 0 ", 0),
        ("Sun, 22 Nov 2026 12:00:30 GMT", 30),
        ("Sun, 22 Nov 2026 11:00:00 GMT", 0),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, seconds: float | None):
    assert retry_after_s(header, NOON) == seconds


def test_pauses_grow_to_twenty_seconds_and_half_of_each_is_drawn():
    assert [backoff_s(repeats, 0.0) for repeats in range(8)] == [
        0.25,
        0.5,
        1,
        2,
        4,
        8,
        10,
        10,
    ]
    assert backoff_s(3, 0.5) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("status", "passing"),
    [
        (408, True),
        (429, True),
        (500, True),
        (503, True),
        (520, True),
        (400, False),
        (404, False),
        (401, False),
        (501, False),
    ],
)
def test_what_may_be_answered_otherwise_later_is_asked_again(status: int, passing: bool):
    assert is_passing(status) is passing
