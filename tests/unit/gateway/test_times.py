"""Times and spans in words: tables."""

from datetime import timedelta

import pytest

from headwater.gateway.client.texts import (
    absolute_and_relative,
    from_unix_ms,
    moment,
    relative,
    span,
)

NOW = from_unix_ms(1_795_269_600_000)


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        ({}, "now"),
        ({"milliseconds": 999}, "now"),
        ({"milliseconds": -999}, "now"),
        ({"seconds": -1}, "1 s ago"),
        ({"seconds": 59}, "in 59 s"),
        ({"seconds": 60}, "in 1 min"),
        ({"minutes": -3, "seconds": -59}, "3 min ago"),
        ({"minutes": 59, "seconds": 59}, "in 59 min"),
        ({"hours": 2, "minutes": 30}, "in 2 h"),
        ({"hours": -47}, "47 h ago"),
        ({"hours": 48}, "in 2 d"),
        ({"days": -400}, "400 d ago"),
    ],
)
def test_how_far_a_moment_lies_from_now(ahead: dict[str, int], words: str):
    assert relative(NOW + timedelta(**ahead), NOW) == words


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (850, "850 ms"),
        (1_000, "1 s"),
        (1_290, "1.2 s"),
        (9_999, "9.9 s"),
        (10_999, "10 s"),
        (60_000, "1 min"),
        (185_999, "3 min 5 s"),
        (7_500_000, "2 h 5 min"),
        (2 * 86_400_000 + 4 * 3_600_000, "2 d 4 h"),
        (86_400_000 + 59_000, "1 d"),
    ],
)
def test_how_long_a_span_is(milliseconds: int, words: str):
    assert span(milliseconds) == words


def test_a_moment_is_in_utc_and_said_both_ways():
    assert moment(NOW) == "2026-11-21 14:00:00 UTC"
    assert (
        absolute_and_relative(NOW + timedelta(hours=2), NOW) == "2026-11-21 16:00:00 UTC (in 2 h)"
    )
