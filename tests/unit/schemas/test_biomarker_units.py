"""Units of biomarkers: every code has one, and a lab's spellings of it are understood."""

import sqlite3
from contextlib import closing

import pytest

from headwater.projections.postgres import wide_view
from headwater.schemas.biomarkers import CANONICAL, CANONICAL_UNITS, conversions

TABLE = "create table biomarkers_raw (user_id, source, date, code, value real, unit)"


def wide(*results: tuple[str, float | None, str | None]) -> dict[str, float | None]:
    """A day with these results, as the view has it."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        database.execute(TABLE)
        database.executemany(
            "insert into biomarkers_raw values ('u', 'terra_lab', '2026-07-01', ?, ?, ?)", results
        )
        database.execute(wide_view.definition())
        (row,) = database.execute("select * from biomarkers_wide")
        return dict(row)


def test_every_code_has_one_unit():
    assert list(CANONICAL_UNITS) == list(CANONICAL)
    units = [(code, unit) for code, unit, _ in conversions()]
    assert len(set(units)) == len(units)


@pytest.mark.parametrize(
    ("code", "value", "unit", "expected"),
    [
        ("glucose", 92, "mg/dL", 92),
        ("glucose", 5.5, "mmol/L", 99.1),
        ("glucose", 92, "MG / DL", 92),
        ("hba1c", 48, "mmol/mol", 6.54),
        ("hba1c", 6.5, "%", 6.5),
        ("total_cholesterol", 5.2, "mmol/L", 201),
        ("triglycerides", 1.7, "mmol/L", 150.6),
        ("creatinine", 88.4, "\u00b5mol/L", 1.0),
        ("creatinine", 88.4, "\u03bcmol/L", 1.0),
        ("creatinine", 88.4, "umol/L", 1.0),
        ("hemoglobin", 142, "g/L", 14.2),
        ("hemoglobin", 8.7, "mmol/L", 14.0),
        ("vitamin_d", 75, "nmol/L", 30.0),
        ("vitamin_d", 30, "mcg/L", 30),
        ("tsh", 2.1, "\u00b5IU/mL", 2.1),
        ("tsh", 2.1, "mIU/L", 2.1),
        ("systolic_bp", 16, "kPa", 120.0),
        ("weight_kg", 154.3, "lbs", 70.0),
        ("insulin", 60, "pmol/L", 10),
        ("egfr", 90, "mL/min/1.73m\u00b2", 90),
        ("urea_nitrogen", 5, "mmol/L", 14.0),
        ("uric_acid", 357, "umol/L", 6.0),
        ("alt", 30, "IU/L", 30),
        ("alt", 0.5, "\u00b5kat/L", 30),
        ("bilirubin", 17.1, "umol/L", 1.0),
        ("calcium", 2.4, "mmol/L", 9.62),
        ("magnesium", 0.85, "mmol/L", 2.07),
        ("iron", 18, "umol/L", 100.5),
        ("vitamin_b12", 300, "pmol/L", 406.6),
        ("folate", 20, "nmol/L", 8.83),
        ("free_t3", 5, "pmol/L", 3.25),
        ("free_t4", 15, "pmol/L", 1.165),
        ("testosterone", 20, "nmol/L", 576.8),
        ("cortisol", 400, "nmol/L", 14.5),
        ("hematocrit", 0.45, "L/L", 45),
        ("red_blood_cells", 4.8, "x10^12/L", 4.8),
        ("red_blood_cells", 4.8, "10*6/uL", 4.8),
        ("white_blood_cells", 6.1, "K/uL", 6.1),
        ("white_blood_cells", 6100, "/uL", 6.1),
        ("platelets", 250, "10^9/L", 250),
        ("platelets", 250, "x10E3/uL", 250),
        # As large labs print them.
        ("ldl", 110, "mg/dL (calc)", 110),
        ("hba1c", 5.6, "% of total Hgb", 5.6),
        ("platelets", 250, "\u00d710^9/L", 250),
        ("white_blood_cells", 6.1, "K/mcL", 6.1),
        # The code names the unit.
        ("weight_kg", 70, None, 70),
        ("body_fat_percent", 21, None, 21),
    ],
)
def test_a_value_is_converted(code: str, value: float, unit: str | None, expected: float):
    row = wide((code, value, unit))
    assert row[code] == pytest.approx(expected, rel=0.003)
    assert row["unconverted"] == 0


@pytest.mark.parametrize(
    ("code", "unit"),
    [("glucose", "furlongs"), ("lipoprotein_a", "mg/dL"), ("sodium", "mg/dL")],
)
def test_a_value_of_another_unit_is_counted_and_not_mixed_in(code: str, unit: str | None):
    row = wide((code, 5.0, unit), ("ldl", 110.0, "mg/dL"), ("of_nobody", 1.0, None))
    assert (row[code], row["ldl"], row["unconverted"]) == (None, 110.0, 1)


@pytest.mark.parametrize("unit", [None, "", " "])
def test_a_value_without_a_unit_is_in_that_of_the_column_and_counted(unit: str | None):
    row = wide(("glucose", 92.0, unit), ("ldl", 110.0, "mg/dL"), ("hdl", None, None))
    assert (row["glucose"], row["unconverted"], row["without_unit"]) == (92.0, 0, 1)


def test_a_text_is_no_value_that_lacks():
    assert wide(("ldl", None, "mg/dL"), ("hdl", 50.0, "mg/dL"))["unconverted"] == 0
