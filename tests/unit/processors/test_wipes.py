"""What wipes cover: the rows that are left do not depend on when anybody hears of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.columns import RowUpdate, merge
from headwater.processors.wipes import Fences, digest, is_before, remaining_row
from headwater.schemas.records import Stamp, UserForgotten
from headwater.schemas.tables import DAILY_SUMMARY, Row

USER = "user_1"
KEY = (USER, "garmin", "2026-07-01")
COLUMNS = ("steps", "strain", "sleep_score")


def wiped(fence: list[int], *names: str) -> UserForgotten:
    digests = [digest(name) for name in names or (USER,)]
    return UserForgotten(
        wipe_id="w", digests=digests, names=[], fence=fence, found=[], counts=[], ordered_at_ms=0
    )


def update(partition: int, offset: int, column: str, sent_at_ms: int) -> RowUpdate:
    stamp = Stamp(0, sent_at_ms, 0, f"{partition}@{offset}", partition, offset)
    return RowUpdate(DAILY_SUMMARY, KEY, {column: offset}, stamp)


@pytest.mark.parametrize(
    ("names", "partition", "offset", "covered"),
    [
        ((USER,), 0, 4, True),
        ((USER,), 0, 5, False),
        ((USER,), 1, 0, False),
        ((USER,), 2, 6, True),
        ((USER,), 3, 0, False),
        ((None, "t1"), 2, 6, True),
        (("user_10", ""), 0, 0, False),
    ],
)
def test_a_wipe_covers_who_it_names_before_its_fence(
    names: tuple[str | None, ...], partition: int, offset: int, covered: bool
):
    fences = Fences()
    fences.add(wiped([5, 0, 7], USER, "t1"))
    assert fences.cover(names, partition, offset) is covered


def test_a_later_wipe_covers_more_and_none_covers_less():
    fences = Fences()
    for fence in ([5, 9], [8, 2]):
        fences.add(wiped(fence))
    assert [fences.cover((USER,), 0, at) for at in (7, 8)] == [True, False]
    assert [fences.cover((USER,), 1, at) for at in (8, 9)] == [True, False]


updates = st.lists(
    st.builds(
        update,
        st.integers(0, 1),
        st.integers(0, 9),
        st.sampled_from(COLUMNS),
        # Who is delivered later was signed later: else a wiped value may have hidden a new one.
        st.just(0),
    ),
    max_size=6,
    unique_by=lambda one: one.stamp.event_id,
)


def folded(some: list[RowUpdate], at: int, fence: list[int]) -> Row | None:
    """The row of updates in an order, with the wipe at one place among them."""
    fences, row = Fences(), None
    for number, one in enumerate([*some[:at], None, *some[at:]]):
        if one is None:
            fences.add(wiped(fence))
            row = None if row is None else remaining_row(DAILY_SUMMARY, row, fence)
        elif not fences.cover((USER,), one.stamp.partition, one.stamp.offset):
            row = merge(row, one)
        assert number <= len(some)
    return row


def by_their_place(one: RowUpdate) -> RowUpdate:
    stamp = one.stamp
    return update(stamp.partition, stamp.offset, *one.values, 100 * stamp.offset)


@given(updates, st.integers(0, 9))
def test_wherever_a_wipe_is_met_the_row_is_that_of_the_deliveries_behind_it(
    some: list[RowUpdate], end: int
):
    fence = [end, end]
    signed = [by_their_place(one) for one in some]
    expected = None
    for one in signed:
        if not is_before(fence, one.stamp.partition, one.stamp.offset):
            expected = merge(expected, one)
    for at in range(len(signed) + 1):
        assert folded(signed, at, fence) == expected
    for order in itertools.islice(itertools.permutations(signed), 20):
        assert folded(list(order), 0, fence) == expected
