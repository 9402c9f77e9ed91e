"""Lab reports of both shapes become biomarkers, and end an upload."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from headwater.processors.providers.results import (
    DroppedField,
    Failed,
    Normalized,
    NormalizeResult,
    Skipped,
)
from headwater.processors.providers.terra.lab_codes import CODES, code_of, status_of
from headwater.processors.providers.terra.provider import TERRA
from headwater.processors.uploads import REPORT_RANK
from headwater.schemas.biomarkers import CANONICAL
from headwater.schemas.tables import BIOMARKERS, LAB_UPLOADS
from tests.unit.processors.deliveries import admitted

OLD: dict[str, Any] = {
    "biomarker": "glucose_fasting",
    "name": "Glucose (fasting)",
    "value": 88,
    "unit": "mg/dL",
    "reference_range": {"lower": 65, "upper": 98.5},
    "classification": "in_range",
}
NEW: dict[str, Any] = {
    "source": {
        "name": "Haemoglobin (Hb)",
        "value": "13,9",
        "units": "g/dl",
        "collection_date": "2026-06-12",
    },
    "biomarker": {"key": "hemoglobin", "display_name": "Hemoglobin", "loinc_code": "718-7"},
    "measurement": {"type": "numeric", "numeric": 13.9, "units": "g/dL"},
    "interpretation": {
        "flag": "borderline_low",
        "source": "report",
        "applied_range": {"lower": 12.0},
    },
}


def report(*results: object, our_id: str | None = "u1", **more: object) -> NormalizeResult:
    """The older shape."""
    body = {
        "upload_id": "upl_1",
        "data": [{"report_date": "2026-06-20", "results": results} | more],
    }
    return _normalized("lab_report", body, our_id)


def completed(*results: object, our_id: str | None = "u1", **more: object) -> NormalizeResult:
    """Today's shape."""
    data = {"session_id": "s", "report_date": "2026-06-20", "results": results} | more
    body = {"type": "lab_report.completed", "upload_id": "upl_1", "data": data}
    return _normalized("lab_report.completed", body, our_id)


def _normalized(type_: str, body: object, our_id: str | None) -> NormalizeResult:
    event = admitted(type_, msgspec.json.encode(body))
    return TERRA.normalize(msgspec.structs.replace(event, our_id=our_id))


def rows(result: NormalizeResult) -> dict[tuple[str, str], dict[str, Any]]:
    assert isinstance(result, Normalized)
    actual = {}
    for update in result.updates:
        if update.table is BIOMARKERS:
            assert update.key[:2] == ("user_1", "terra_lab")
            actual[update.key[2], update.key[3]] = dict(update.values)
    return actual


def test_the_older_shape_sets_every_column():
    assert rows(report(OLD)) == {
        ("2026-06-20", "glucose"): {
            "value": 88.0,
            "value_text": None,
            "unit": "mg/dL",
            "status": "optimal",
            "classification": "in_range",
            "reference_low": 65.0,
            "reference_high": 98.5,
            "name": "Glucose (fasting)",
            "upload_id": "u1",
        }
    }


def test_todays_shape_sets_every_column():
    assert rows(completed(NEW)) == {
        ("2026-06-12", "hemoglobin"): {
            "value": 13.9,
            "value_text": None,
            "unit": "g/dL",
            "status": "borderline",
            "classification": "borderline_low",
            "reference_low": 12.0,
            "reference_high": None,
            "name": "Haemoglobin (Hb)",
            "upload_id": "u1",
        }
    }


def test_a_report_ends_its_upload_and_outranks_what_was_said_of_it_before():
    result = report(OLD)
    assert isinstance(result, Normalized)
    (upload,) = [update for update in result.updates if update.table is LAB_UPLOADS]
    assert (upload.key, upload.values) == (("u1",), {"terra_status": "parsed"})
    assert upload.stamp.rank == REPORT_RANK
    without = report(OLD, our_id=None)
    assert isinstance(without, Normalized)
    assert [update.table for update in without.updates] == [BIOMARKERS]
    assert rows(without)["2026-06-20", "glucose"]["upload_id"] is None


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        ("13.9", 13.9, None),
        (" -2e3 ", -2000.0, None),
        (7, 7.0, None),
        ("<0.5", None, "<0.5"),
        ("13,9", 13.9, None),
        ("negative", None, "negative"),
        ("nan", None, "nan"),
        ("1e999", None, "1e999"),
        ("\u0661", None, "\u0661"),
        ("a\x00b", None, "a\ufffdb"),
    ],
)
def test_a_text_that_is_a_number_is_one_and_any_other_is_kept_as_sent(
    value: object, number: float | None, text: str | None
):
    (result,) = rows(report(OLD | {"value": value})).values()
    assert (result["value"], result["value_text"]) == (number, text)


@pytest.mark.parametrize(
    ("key", "loinc", "name", "code"),
    [
        ("glucose_fasting", None, None, "glucose"),
        ("LDL_Cholesterol", None, None, "ldl"),
        ("hba1c_percent", None, "x", "hba1c"),
        ("ferritin", None, None, "ferritin"),
        ("Some-Unmapped.Code", "1-2", "x", "Some-Unmapped.Code"),
        (None, "718-7", "Hemoglobin", "loinc:718-7"),
        (None, None, "Obscure Marker", "obscure_marker"),
        ("", "", "LDL Cholesterol", "ldl"),
        (None, None, None, None),
        (None, None, " - ", None),
    ],
)
def test_a_code_is_canonical_where_an_alias_is_known(
    key: str | None, loinc: str | None, name: str | None, code: str | None
):
    assert code_of(key, loinc, name) == code


def test_every_alias_leads_to_a_canonical_code_and_those_to_themselves():
    assert set(CODES.values()) == set(CANONICAL)
    assert all(CODES[code] == code for code in CANONICAL)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        *((value, "optimal") for value in ("normal", "Optimal", "in_range", "In Range")),
        *((value, "borderline") for value in ("borderline", "borderline_high", "borderline_low")),
        *(
            (value, "out_of_range")
            for value in ("high", "low", "abnormal", "critical", "critical_high", "CRITICAL_LOW")
        ),
        ("out_of_range", "out_of_range"),
        ("pending", None),
        (None, None),
    ],
)
def test_what_labs_say_is_one_of_three_statuses_or_none(said: str | None, status: str | None):
    assert status_of(said) == status
    (result,) = rows(report(OLD | {"classification": said})).values()
    assert (result["status"], result["classification"]) == (status, said)


def test_a_results_own_date_comes_before_the_reports_and_a_moment_is_the_day_of_its_offset():
    moment = OLD | {"collection_date": "2026-06-10T23:30:00-05:00"}
    assert list(rows(report(moment))) == [("2026-06-10", "glucose")]
    assert list(rows(report(OLD, collection_date="2026-06-15"))) == [("2026-06-15", "glucose")]
    old = OLD | {"collection_date": "1961-02-03"}
    assert list(rows(report(old))) == [("1961-02-03", "glucose")]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"value": None}, "missing_value"),
        ({"value": " "}, "missing_value"),
        ({"value": [1]}, "missing_value"),
        ({"value": True}, "missing_value"),
        ({"biomarker": None, "name": None}, "missing_code"),
        ({"biomarker": "a\nb"}, "malformed_text"),
        ({"biomarker": "x" * 300}, "malformed_text"),
    ],
)
def test_results_are_rejected_one_by_one(change: dict[str, object], code: str):
    result = report(OLD | change, NEW)
    assert isinstance(result, Normalized)
    assert [item.code for item in result.rejected] == [code]
    assert result.rejected[0].detail.startswith("data.results[0]")
    assert list(rows(result)) == [("2026-06-12", "hemoglobin")]
    alone = report(OLD | change)
    assert isinstance(alone, Failed)
    assert (alone.code, alone.rejected) == ("no_usable_record", 1)


def test_a_report_without_any_date_has_no_day():
    result = report(OLD, report_date=None)
    assert isinstance(result, Failed)
    assert "expected a date" in result.detail


def test_of_two_results_of_a_day_the_last_counts_and_the_other_is_rejected_unless_it_is_the_same():
    again, other = OLD | {}, OLD | {"value": 91}
    assert isinstance(same := report(OLD, again), Normalized)
    assert same.rejected == ()
    result = report(OLD, other)
    assert isinstance(result, Normalized)
    assert [item.code for item in result.rejected] == ["repeated_result"]
    assert rows(result)["2026-06-20", "glucose"]["value"] == 91


def test_of_results_in_different_units_the_same_unit_counts_in_every_order():
    share, count, text = (
        OLD | {"biomarker": "neutrophils", "value": value, "unit": unit}
        for value, unit in ((56, "%"), (3.2, "10^9/L"), ("normal", None))
    )
    for results in permutations((count, share, text)):
        result = report(*results)
        assert isinstance(result, Normalized)
        kept = rows(result)["2026-06-20", "neutrophils"]
        assert (kept["value"], kept["unit"]) == (56, "%")
        assert [item.code for item in result.rejected] == ["repeated_result"] * 2


def test_a_key_that_names_the_unit_is_the_unit_if_none_was_sent():
    def unit(**more: object) -> object:
        result = report({"biomarker": "hba1c_percent", "value": 5.6} | more)
        assert isinstance(result, Normalized)
        return rows(result)["2026-06-20", "hba1c"]["unit"]

    assert (unit(), unit(unit=" ")) == ("%", "%")
    assert unit(unit="mmol/mol") == "mmol/mol"
    assert unit(biomarker="hba1c") is None


def test_ten_thousand_results_are_ten_thousand_rows():
    many = [OLD | {"biomarker": f"marker_{number}", "value": number} for number in range(10_000)]
    assert len(rows(report(*many))) == 10_000


def test_several_reports_in_one_delivery_are_told_apart():
    reports = [
        {"report_date": "2026-06-20", "results": [OLD]},
        {"report_date": "2026-06-21", "results": [OLD, OLD | {"value": None}]},
        {"report_date": 5},
    ]
    result = _normalized("lab_report", {"upload_id": "upl_1", "data": reports}, "u1")
    assert isinstance(result, Normalized)
    assert list(rows(result)) == [("2026-06-20", "glucose"), ("2026-06-21", "glucose")]
    assert [item.detail.partition(":")[0] for item in result.rejected] == ["data[1].results[1]"]
    assert result.dropped == (DroppedField("data[2].report_date", "wrong_type"),)


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"collection_date": "20260-06-12"}, "collection_date", "wrong_type"),
        ({"collection_date": "12.06.2026"}, "collection_date", "wrong_type"),
        ({"collection_date": "2096-06-12"}, "collection_date", "out_of_range"),
        ({"unit": "x" * 5000}, "unit", "out_of_range"),
        ({"reference_range": "70-99"}, "reference_range", "wrong_type"),
    ],
)
def test_a_field_that_cannot_be_read_costs_its_column(
    change: dict[str, object], field: str, reason: str
):
    result = report(OLD | change)
    assert isinstance(result, Normalized)
    assert list(rows(result)) == [("2026-06-20", "glucose")]
    assert result.dropped == (DroppedField(f"data[0].results[0].{field}", reason),)


def test_a_report_without_results_is_parsed_all_the_same():
    result = report()
    assert isinstance(result, Normalized)
    assert [update.table for update in result.updates] == [LAB_UPLOADS]
    assert report(our_id=None) == Skipped("empty_data")


def failed(our_id: str | None, **body: object) -> NormalizeResult:
    error = {"code": "too_blurred", "message": "Nobody can read this.", "retriable": True}
    made = {"type": "lab_report.failed", "data": {"session_id": "s", "error": error}} | body
    return _normalized("lab_report.failed", made, our_id)


def test_a_failed_report_fails_its_upload_and_needs_one():
    result = failed("u1", upload_id="upl_1")
    assert isinstance(result, Normalized)
    (upload,) = result.updates
    assert (upload.key, upload.values) == (("u1",), {"terra_status": "failed:too_blurred"})
    assert failed(None) == Skipped("no_upload_named")
