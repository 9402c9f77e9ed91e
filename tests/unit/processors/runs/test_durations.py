"""Durations as authors write them."""

from datetime import timedelta
from decimal import Decimal
from math import inf, nan

import pytest

from headwater.processors.runs.durations import Duration, milliseconds, timeout_of

_UNITS = {
    1: ["", "ms"],
    1_000: ["s", "sec", "second"],
    60_000: ["m", "min", "minute"],
    3_600_000: ["h", "hr", "hour"],
    86_400_000: ["d", "day"],
}


@pytest.mark.parametrize(
    ("unit", "factor"), [(unit, factor) for factor, units in _UNITS.items() for unit in units]
)
def test_every_unit_has_its_length(unit: str, factor: int):
    assert milliseconds(f"3 {unit}") == 3 * factor
    assert milliseconds(f"  3{unit.upper()} ") == 3 * factor
    assert milliseconds(f"1.5 {unit}") == round(1.5 * factor)
    if unit not in ("", "ms", "m"):
        assert milliseconds(f"3 {unit}s") == 3 * factor


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        *((0, 0), (250, 250), (2.6, 3), (timedelta(seconds=90), 90_000), (timedelta(), 0)),
        *((0.4, 1), (0.5, 1), (1.5, 2), ("0.1 ms", 1), (timedelta(microseconds=1), 1)),
    ],
)
def test_a_number_is_milliseconds_and_a_timedelta_itself(duration: Duration, expected: int):
    assert milliseconds(duration) == expected


@pytest.mark.parametrize(
    "duration",
    [
        *("", " ", "second", "-1 second", "1 2 seconds", "1e3 seconds", "1,5 hours", "1 fortnight"),
        *(
            "1 mss",
            "1 mins s",
            ".5 s",
            "٣ s",
            "1_000 s",
            Decimal(1),
            -1,
            -0.1,
            inf,
            nan,
            True,
            False,
            None,
            b"1 s",
        ),
        *([1], timedelta(seconds=-1)),
    ],
    ids=repr,
)
def test_what_is_no_duration_is_refused(duration: Duration):
    with pytest.raises(ValueError, match="expected a"):
        milliseconds(duration)


@pytest.mark.parametrize("timeout", [0, 0.0, 0.4, 0.99, "0 s", "0", timedelta(), -1, "soon"])
def test_a_timeout_of_less_than_a_millisecond_is_refused_by_what_it_is_of(timeout: Duration):
    with pytest.raises(ValueError, match=r"expected .*the timeout of it"):
        timeout_of("the timeout of it", timeout)


@pytest.mark.parametrize(
    ("timeout", "expected"), [(1, 1), (1.4, 1), ("1 ms", 1), (timedelta(microseconds=9), 1)]
)
def test_a_timeout_is_a_duration_that_is_not_over(timeout: Duration, expected: int):
    assert timeout_of("the timeout of it", timeout) == expected
