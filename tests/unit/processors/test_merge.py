"""Merging one update into one row."""

import pytest

from headwater.processors.columns import RowUpdate, merge
from headwater.schemas.records import Stamp
from headwater.schemas.tables import DAILY_SUMMARY, Row, Value

KEY = ("user_1", "garmin", "2026-07-01")


def stamp(rank: int = 0, sent: int = 10, updated: int = 0, event_id: str = "b"):
    return Stamp(rank, sent, updated, event_id, 0, 0)


def update(at: Stamp | None = None, **values: Value):
    return RowUpdate(DAILY_SUMMARY, KEY, values, at or stamp())


def steps(row: Row):
    at = DAILY_SUMMARY.index["steps"]
    return row.values[at], row.stamps[at]


@pytest.mark.parametrize(
    ("new", "wins"),
    [
        (stamp(sent=11), True),
        (stamp(sent=9), False),
        (stamp(rank=1, sent=1), True),
        (stamp(rank=-1, sent=99), False),
        (stamp(updated=1), True),
        (stamp(event_id="c"), True),
        (stamp(event_id="a"), False),
        (stamp(), False),
    ],
)
def test_of_two_values_the_greater_stamp_stays(new: Stamp, wins: bool):
    held = merge(None, update(steps=1))
    result = merge(held, update(new, steps=2))
    assert steps(result) == ((2, new) if wins else (1, stamp()))
    assert (result is held) is not wins


def test_a_null_says_nothing_and_an_older_delivery_fills_the_gap():
    held = merge(None, update(stamp(sent=20), steps=1, strain=None))
    result = merge(held, update(stamp(sent=5), steps=9, strain=3.0))
    assert steps(result) == (1, stamp(sent=20))
    assert result.values[DAILY_SUMMARY.index["strain"]] == 3.0
    assert result.stamps[DAILY_SUMMARY.index["strain"]] == stamp(sent=5)


def test_an_update_of_nothing_makes_a_row_of_nulls():
    row = merge(None, update(steps=None))
    assert row.key == KEY
    assert set(row.values) == set(row.stamps) == {None}
