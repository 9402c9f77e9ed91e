"""Merging is commutative, associative and idempotent."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.columns import RowUpdate, merge
from headwater.schemas.records import Stamp
from headwater.schemas.tables import DailySummary, Row, table_of

KEY = ("user_1", "garmin", "2026-07-01")
#: A few columns and few stamps, so that updates meet.
NAMES = ("steps", "strain", "sleep_score")
DAYS = table_of(DailySummary, name="days", topic="days", first=("strain",), hourly=("sleep_score",))
HOUR_MS = 3_600_000


def merge_all(row: Row | None, updates: Iterable[RowUpdate]) -> Row | None:
    for update in updates:
        row = merge(row, update)
    return row


@st.composite
def updates(draw: st.DrawFn) -> list[RowUpdate]:
    """Updates of one row; one stamp says one thing of a column, as one delivery does."""
    reported: dict[tuple[Stamp, str], int | None] = {}
    result = []
    for _ in range(draw(st.integers(0, 6))):
        stamp = Stamp(
            draw(st.integers(0, 1)),
            draw(st.sampled_from((0, 1, HOUR_MS, HOUR_MS + 1))),
            draw(st.integers(0, 1)),
            draw(st.sampled_from("ab")),
            0,
            0,
        )
        names = draw(st.lists(st.sampled_from(NAMES), unique=True))
        values = {
            name: reported.setdefault((stamp, name), draw(st.none() | st.integers(0, 9)))
            for name in names
        }
        result.append(RowUpdate(DAYS, KEY, values, stamp))
    return result


@given(data=st.data(), several=updates())
@settings(max_examples=100, deadline=None)
def test_any_order_and_repetition_of_updates_gives_one_row(
    data: st.DataObject, several: list[RowUpdate]
):
    again = data.draw(st.lists(st.sampled_from(several))) if several else []
    shuffled = data.draw(st.permutations(several + again))
    assert merge_all(None, shuffled) == merge_all(None, several)


@given(several=updates(), more=updates())
@settings(max_examples=50, deadline=None)
def test_updates_may_be_merged_in_any_grouping(several: list[RowUpdate], more: list[RowUpdate]):
    # Values of the two lists may differ under one stamp; a delivery's never do.
    known = {(item.stamp, name) for item in several for name in item.values}
    more = [item for item in more if all((item.stamp, name) not in known for name in item.values)]
    first, second = merge_all(None, several), merge_all(None, more)
    together = merge_all(None, several + more)
    assert joined(first, second) == joined(second, first) == together


def joined(row: Row | None, other: Row | None) -> Row | None:
    """Two rows of one key, merged as if the second were updates."""
    if other is None:
        return row
    stamped = [
        RowUpdate(DAYS, KEY, {column.name: value}, stamp)
        for column, value, stamp in zip(DAYS.columns, other.values, other.stamps, strict=True)
        if stamp is not None
    ]
    nothing = RowUpdate(DAYS, KEY, {}, Stamp(0, 0, 0, "", 0, 0))
    return merge_all(row, [nothing, *stamped])


@given(several=updates())
@settings(max_examples=50, deadline=None)
def test_a_row_meets_its_own_updates_unchanged(several: list[RowUpdate]):
    row = merge_all(None, several)
    if row is not None:
        assert all(merge(row, item) is row for item in several)


@given(several=updates())
@settings(max_examples=50, deadline=None)
def test_a_column_holds_the_value_of_the_stamp_that_counts_for_it(several: list[RowUpdate]):
    row = merge_all(None, several)
    for name in NAMES:
        reported = [item for item in several if item.values.get(name) is not None]
        if reported and row is not None:
            best = counting(name, reported)
            assert row.values[DAYS.index[name]] == best.values[name]
            assert row.stamps[DAYS.index[name]] == best.stamp


def counting(name: str, told: list[RowUpdate]) -> RowUpdate:
    if name == "strain":
        return min(told, key=order)
    if name == "sleep_score":
        latest = max(map(rank_and_hour, told))
        return min((item for item in told if rank_and_hour(item) == latest), key=order)
    return max(told, key=order)


def order(update: RowUpdate) -> tuple[int, int, int, str]:
    stamp = update.stamp
    return stamp.rank, stamp.sent_at_ms, stamp.updated_at_ms, stamp.event_id


def rank_and_hour(update: RowUpdate) -> tuple[int, int]:
    return update.stamp.rank, update.stamp.sent_at_ms // HOUR_MS
