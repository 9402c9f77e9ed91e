"""RFC 3339 dates."""

from datetime import UTC, datetime

import pytest

from headwater.processors.input_texts import read_date, read_moment, unix_ms


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-07-01T00:00:00.000000+01:00", "2026-07-01T00:00:00+01:00"),
        ("2026-07-01T00:00:00Z", "2026-07-01T00:00:00+00:00"),
        ("2026-07-01t00:00:00z", "2026-07-01T00:00:00+00:00"),
        ("2026-07-01 00:00:00-08:30", "2026-07-01T00:00:00-08:30"),
        ("2026-07-01T00:00:00", "2026-07-01T00:00:00+00:00"),
        ("2026-07-01T00:00:00.123456789Z", "2026-07-01T00:00:00.123456+00:00"),
        ("2024-02-29T23:59:59.9Z", "2024-02-29T23:59:59.900000+00:00"),
    ],
)
def test_a_date_is_read_with_its_own_offset(text: str, iso: str):
    moment = read_date(text)
    assert moment is not None
    assert moment.isoformat() == iso


@pytest.mark.parametrize(
    "text",
    [
        "", "2026-07-01", "20260701T000000Z", "2026-W27-3T00:00:00Z", "2026-13-01T00:00:00Z",
        "2025-02-29T00:00:00Z", "2026-07-01T24:00:00Z", "2026-07-01T00:60:00Z",
        "2026-06-30T23:59:60Z", "2026-07-01T00:00Z", "2026-07-01T00:00:00,5Z",
        "2026-07-01T00:00:00+0100", "2026-07-01T00:00:00+25:00", "2026-07-01T00:00:00 Z",
        "2026-07-01T00:00:00Z\n", "٢٠٢٦-07-01T00:00:00Z", "0000-01-01T00:00:00Z", "1782864000",
    ],
)  # fmt: skip
def test_what_rfc_3339_does_not_allow_is_no_date(text: str):
    assert read_date(text) is None
    assert read_moment(text) is None


def test_a_moment_of_a_caller_names_its_offset():
    assert read_moment("2026-07-01T00:00:00Z") == datetime(2026, 7, 1, tzinfo=UTC)
    assert read_moment("2026-07-01T00:00:00") is None


def test_unix_milliseconds_are_rounded_down():
    assert unix_ms(datetime(1970, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)) == 1
    assert unix_ms(datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)) == -1
