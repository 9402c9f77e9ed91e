"""When a request to Terra is sent again."""

import pytest

from headwater.gateway.builtin.terra.scheduler import backoff_s, is_retryable, retry_after_s

#: 2026-11-22 12:00:00 UTC.
NOON = 1_795_348_800.0


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
    assert is_retryable(status) is passing
