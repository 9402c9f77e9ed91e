"""Durations as authors write them."""

from datetime import timedelta
from math import inf, nan

import pytest

from headwater.processors.runs.durations import Duration, milliseconds

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
    [(0, 0), (250, 250), (2.6, 3), (timedelta(seconds=90), 90_000), (timedelta(), 0)],
)
def test_a_number_is_milliseconds_and_a_timedelta_itself(duration: Duration, expected: int):
    assert milliseconds(duration) == expected


@pytest.mark.parametrize(
    "duration",
    [
        *("", " ", "second", "-1 second", "1 2 seconds", "1e3 seconds", "1,5 hours", "1 fortnight"),
        *("1 mss", "1 mins s", ".5 s", "٣ years", -1, -0.1, inf, nan, True, False, None, b"1 s"),
        *([1], timedelta(seconds=-1)),
    ],
    ids=repr,
)
def test_what_is_no_duration_is_refused(duration: Duration):
    with pytest.raises(ValueError, match="expected a"):
        milliseconds(duration)
