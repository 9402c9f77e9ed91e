"""The record of a row has room for everything that is kept in it."""

import pytest

from headwater.processors import row_parts
from headwater.processors.columns import RowUpdate, merge
from headwater.processors.input_texts import rfc3339
from headwater.processors.row_parts import PARTS_MAX, room_problem
from headwater.processors.uploads import failure_part
from headwater.schemas.codec import encode_row
from headwater.schemas.records import Stamp, WebhookReceived
from headwater.schemas.row_states import Part
from headwater.schemas.tables import BIOMARKERS, USERS, Row
from headwater.schemas.topics import MAX_RECORD_BYTES
from tests.fakes.terra_intake import TerraIntake, delivery

MIDNIGHT_MS = 1_782_864_000_000
KEY = ("user_" + "x" * 120, "samsung_body", "2026-07-01", "systolic_bp")


def stamp(number: int) -> Stamp:
    return Stamp(3, MIDNIGHT_MS + number, MIDNIGHT_MS, f"{number:032x}", 123, 10**12 + number, 12)


def test_as_many_samples_as_are_kept_fit_into_a_record():
    most = row_parts._DELIVERIES_MAX
    parts = {
        rfc3339(MIDNIGHT_MS + 1_000 * number): Part(
            {"value": 100 + number / 7, "unit": "mmHg"}, stamp(number % most)
        )
        for number in range(PARTS_MAX[BIOMARKERS])
    }
    row = row_parts.join(BIOMARKERS, Row(KEY, *((None,) * len(BIOMARKERS.columns),) * 2), parts)
    assert len(encode_row(BIOMARKERS, row)) < MAX_RECORD_BYTES // 2
    assert room_problem(parts, stamp(7)) is None, "its delivery is one of them"
    assert room_problem(parts, stamp(most)) is not None


def test_a_delivery_for_which_a_row_has_no_room_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.processors.row_parts._DELIVERIES_MAX", 3)

    def pressure(minute: int) -> WebhookReceived:
        sample = {"timestamp": f"2026-07-01T10:{minute:02}:00+01:00", "systolic_bp": 120 + minute}
        start = {"start_time": "2026-07-01T00:00:00+01:00"}
        return delivery(
            "body",
            [{"metadata": start, "blood_pressure_data": {"blood_pressure_samples": [sample]}}],
            minute,
        )

    deliveries = [pressure(minute) for minute in range(5)]
    intake = TerraIntake().take(*deliveries)
    outcomes = [intake.outcome(item) for item in deliveries]
    assert outcomes == [("processed", "")] * 3 + [("dead", "row_too_large")] * 2
    (row,) = intake.values(BIOMARKERS).values()
    assert (row["value"], row["samples"]) == (121.0, 3)
    assert len(intake.letters) == 2
    # It is as before after a restart, and the partition goes on.
    again = delivery("daily", [{"metadata": {"start_time": "2026-07-01T00:00:00+01:00"},
                                "distance_data": {"steps": 5}}], 60)  # fmt: skip
    assert intake.restored().take(again).outcome(again) == ("processed", "")


@pytest.mark.parametrize("reverse", [False, True])
def test_of_many_failed_reports_the_earliest_are_kept(reverse: bool):
    row: Row | None = None
    numbers = [*range(PARTS_MAX[USERS] + 9)]
    for number in reversed(numbers) if reverse else numbers:
        part = failure_part("failed:file_unreadable", f"{number:032x}")
        row = merge(row, RowUpdate(USERS, ("user_1",), {}, stamp(number), {part: {}}))
    assert row is not None
    assert row.state is not None
    kept = sorted(part.stamp.offset - 10**12 for part in row.state.parts.values())
    assert kept == numbers[: PARTS_MAX[USERS]]
    assert len(encode_row(USERS, row)) < 64 * 1024
