"""Any order and division of Terra's deliveries comes to the rows that the oracle says."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.columns import RowDeleted, RowUpdate, merge
from headwater.schemas.codec import decode_row, encode_row
from headwater.schemas.records import Stamp, WebhookReceived
from headwater.schemas.tables import (
    ACTIVITIES,
    BIOMARKERS,
    DAILY_SUMMARY,
    SLEEP_SESSIONS,
    Row,
    Table,
)
from tests.fakes.terra_intake import TerraIntake, delivery, taken
from tests.oracle import fold

TABLES = (DAILY_SUMMARY, SLEEP_SESSIONS, ACTIVITIES, BIOMARKERS)
MIDNIGHT = datetime(2026, 7, 1, tzinfo=UTC)
#: Few of each, so that deliveries meet.
IDS = (None, "a", "b")
#: Those of a day on which clocks change, and of somebody who travels.
OFFSETS = (60, 120, -480)
KEY = ("user_1", "garmin", "2026-07-01")


def moment(hours: float, offset: int) -> str:
    zone = timezone(timedelta(minutes=offset))
    return (MIDNIGHT + timedelta(hours=hours)).astimezone(zone).isoformat()


@st.composite
def periods(draw: st.DrawFn, lengths: Sequence[float]) -> dict[str, Any]:
    start = draw(st.sampled_from((-200, -26, -25.5, -3, -2, -1, 0, 3, 13, 22)))
    begun, ended = (draw(st.sampled_from(OFFSETS)) for _ in range(2))
    return {
        "start_time": moment(start, begun),
        "end_time": moment(start + draw(st.sampled_from(lengths)), ended),
        "summary_id": draw(st.sampled_from(IDS)),
    }


@st.composite
def sleeps(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "metadata": draw(periods((0, 0.25, 2, 8, 9, 30)))
        | {"is_nap": draw(st.sampled_from((None, False, True)))},
        "sleep_durations_data": {
            "asleep": {
                "duration_asleep_state_seconds": draw(st.sampled_from((None, 0, 600, 20_000)))
            }
        },
        "heart_rate_data": {
            "summary": {"resting_hr_bpm": draw(st.sampled_from((None, 0, 48, 92)))}
        },
        "scores": draw(st.sampled_from((None, [], {"sleep": 80}, {"recovery": 40}))),
    }


@st.composite
def days(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "metadata": {"start_time": moment(draw(st.sampled_from((-24, 0))), 60)},
        "distance_data": {"steps": draw(st.sampled_from((None, -1, 5)))},
        "heart_rate_data": {"summary": {"resting_hr_bpm": draw(st.sampled_from((None, 61)))}},
        "scores": draw(st.sampled_from((None, {"sleep": 70, "recovery": 50}))),
    }


@st.composite
def workouts(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "metadata": draw(periods((0.5, 1))),
        "strain_data": {"strain_level": draw(st.sampled_from((None, 5, 18)))},
    }


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    at = st.none() | st.sampled_from((-20, 1, 2)).map(lambda hours: moment(hours, 60))
    sample = st.fixed_dictionaries(
        {"timestamp": at, "systolic_bp": st.sampled_from((None, 0, 120, 130))}
    )
    measured = st.fixed_dictionaries(
        {"measurement_time": at, "weight_kg": st.sampled_from((None, 0, 70, 71.5))}
    )
    return {
        "metadata": {"start_time": moment(0, 60)},
        "blood_pressure_data": {
            "blood_pressure_samples": draw(st.lists(sample, max_size=3)),
            "day_avg_systolic_bp": draw(st.sampled_from((None, 118))),
        },
        "measurements_data": {"measurements": draw(st.lists(measured, max_size=2))},
    }


@st.composite
def deliveries(draw: st.DrawFn) -> list[WebhookReceived]:
    kinds = {"sleep": sleeps(), "daily": days(), "activity": workouts(), "body": bodies()}
    result = {}
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(("sleep", "sleep", *kinds)))
        records = draw(st.lists(kinds[kind], min_size=1, max_size=2))
        item = delivery(kind, records, draw(st.integers(0, 4)))
        result[item.event_id] = item
    return list(result.values())


def rows(intake: TerraIntake) -> dict[str, dict[tuple[str, ...], Row]]:
    return {table.name: intake.rows(table) for table in TABLES if intake.rows(table)}


def said(found: dict[str, dict[tuple[str, ...], Row]]) -> object:
    """What rows say, apart from where in the log the deliveries are."""
    return {
        (table, key): (row.values, [stamp and stamp.order for stamp in row.stamps])
        for table, of_table in found.items()
        for key, row in of_table.items()
        if any(row.stamps)
    }


@given(data=st.data(), received=deliveries())
@settings(max_examples=150, deadline=None)
def test_any_order_and_division_comes_to_what_the_oracle_says(
    data: st.DataObject, received: list[WebhookReceived]
):
    expected = fold(((0, n, item) for n, item in enumerate(received)), user_prefix="user_").rows
    shuffled = data.draw(st.permutations(received))
    units = data.draw(st.sets(st.integers(1, 8)))
    intake = taken(shuffled, units=sorted(units))
    tables = {table.name: expected[table.name] for table in TABLES}
    assert said(rows(intake)) == said(tables)


@given(data=st.data(), received=deliveries())
@settings(max_examples=75, deadline=None)
def test_another_owner_goes_on_from_the_topics(
    data: st.DataObject, received: list[WebhookReceived]
):
    cut = data.draw(st.integers(0, len(received)))
    whole = taken(received, units=range(len(received)))
    intake = taken(received[:cut], units=range(cut)).restored()
    for item in received[cut:]:
        intake.take(item)
    assert said(rows(intake)) == said(rows(whole))


def updates_of(table: Table) -> st.SearchStrategy[list[RowUpdate | RowDeleted]]:
    stamps = st.builds(
        Stamp, st.just(0), st.integers(0, 3), st.just(0), st.sampled_from("ab"), st.just(0),
        st.just(0),
    )  # fmt: skip
    value = st.dictionaries(st.sampled_from(("steps", "strain")), st.integers(0, 3), max_size=2)
    night = st.dictionaries(
        st.sampled_from(("0/9/", "3/20/a")),
        st.dictionaries(st.sampled_from(("steps", "sleep_minutes")), st.integers(0, 3)),
        max_size=2,
    )
    update = st.builds(RowUpdate, st.just(table), st.just(KEY), value, stamps, night)
    return st.lists(
        update | st.builds(RowDeleted, st.just(table), st.just(KEY), stamps), max_size=6
    )


@given(data=st.data(), updates=updates_of(DAILY_SUMMARY))
@settings(max_examples=150, deadline=None)
def test_deletions_updates_and_parts_commute(
    data: st.DataObject, updates: list[RowUpdate | RowDeleted]
):
    # One delivery says one thing of a row.
    distinct = list({(type(item), item.stamp.order): item for item in updates}.values())
    again = data.draw(st.lists(st.sampled_from(distinct))) if distinct else []
    merged = [_merged(order) for order in (distinct, data.draw(st.permutations(distinct + again)))]
    assert merged[0] == merged[1]
    if merged[0] is not None:
        encoded = [encode_row(DAILY_SUMMARY, row) for row in merged if row is not None]
        assert decode_row(DAILY_SUMMARY, encoded[0]) == merged[0]


def _merged(updates: Sequence[RowUpdate | RowDeleted]) -> Row | None:
    row: Row | None = None
    for update in updates:
        row = merge(row, update)
    return row
