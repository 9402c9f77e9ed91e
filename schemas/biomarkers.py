"""Biomarkers for which Headwater has its own codes: every one is a column of biomarkers_wide.

A biomarker with any other code is stored as a row of biomarkers_raw as well.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

#: Meaning of every code, in the order of the columns.
CANONICAL: Final = MappingProxyType(
    {
        "glucose": "Glucose in the blood, fasting",
        "hba1c": "Glycated hemoglobin",
        "total_cholesterol": "Cholesterol, all of it",
        "ldl": "LDL cholesterol",
        "hdl": "HDL cholesterol",
        "triglycerides": "Triglycerides",
        "creatinine": "Creatinine in the blood",
        "hemoglobin": "Hemoglobin",
        "vitamin_d": "Vitamin D, 25-hydroxy",
        "ferritin": "Ferritin",
        "tsh": "Thyroid-stimulating hormone",
        "crp": "C-reactive protein",
        "systolic_bp": "Systolic blood pressure",
        "diastolic_bp": "Diastolic blood pressure",
        "weight_kg": "Weight",
        "body_fat_percent": "Body fat",
        "non_hdl_cholesterol": "Cholesterol that is not HDL",
        "apolipoprotein_b": "Apolipoprotein B",
        "lipoprotein_a": "Lipoprotein(a)",
        "hs_crp": "C-reactive protein, high sensitivity",
        "homocysteine": "Homocysteine",
        "insulin": "Insulin, fasting",
        "egfr": "Estimated glomerular filtration rate",
        "urea_nitrogen": "Urea nitrogen in the blood",
        "uric_acid": "Uric acid",
        "alt": "Alanine aminotransferase",
        "ast": "Aspartate aminotransferase",
        "alp": "Alkaline phosphatase",
        "ggt": "Gamma-glutamyl transferase",
        "bilirubin": "Bilirubin, all of it",
        "albumin": "Albumin in the blood",
        "sodium": "Sodium",
        "potassium": "Potassium",
        "calcium": "Calcium",
        "magnesium": "Magnesium",
        "iron": "Iron",
        "vitamin_b12": "Vitamin B12",
        "folate": "Folate",
        "free_t3": "Free triiodothyronine",
        "free_t4": "Free thyroxine",
        "testosterone": "Testosterone, all of it",
        "cortisol": "Cortisol",
        "hematocrit": "Hematocrit",
        "red_blood_cells": "Red blood cells",
        "white_blood_cells": "White blood cells",
        "platelets": "Platelets",
    }
)

# -- units


class Conversion(NamedTuple):
    """How a number in a unit becomes one in the canonical unit: `number * factor + offset`."""

    factor: float
    offset: float = 0.0


_SAME: Final = Conversion(1.0)
_ENZYME: Final = "U/L", {"ukat/l": Conversion(60.0)}
_CHOLESTEROL: Final = "mg/dL", {"mmol/l": Conversion(38.665)}
_PROTEIN_MG: Final = "mg/L", {"mg/dl": Conversion(10.0), "ug/ml": _SAME}
_PRESSURE: Final = "mmHg", {"mm[hg]": _SAME, "kpa": Conversion(7.50062)}
_SALT: Final = "mmol/L", {"meq/l": _SAME}
#: Names of a thousand in a microliter.
_THOUSANDS: Final = ("10^3/ul", "10e3/ul", "10^3/mm3", "k/ul", "thou/ul", "thousand/ul", "10e9/l")
_MILLIONS: Final = ("10^6/ul", "10e6/ul", "10^6/mm3", "m/ul", "mill/ul", "million/ul", "10e12/l")
_CELLS: Final = (
    "10^9/L",
    {
        **dict.fromkeys((*_THOUSANDS, "g/l"), _SAME),
        **dict.fromkeys(("/ul", "cells/ul"), Conversion(0.001)),
    },
)

#: By code: the canonical unit, and conversions from other units as `UNIT_SPELLINGS` leaves them.
#: Factors between moles and grams follow from the molar mass; that of hemoglobin is of a quarter
#: of the molecule, as labs count it. The line of hba1c is the NGSP's, insulin's factor the WHO's.
_UNITS: Final[Mapping[str, tuple[str, Mapping[str, Conversion]]]] = MappingProxyType(
    {
        "glucose": ("mg/dL", {"mmol/l": Conversion(18.0156), "g/l": Conversion(100.0)}),
        "hba1c": (
            "%",
            {"percent": _SAME, "%oftotalhgb": _SAME, "mmol/mol": Conversion(0.09148, 2.152)},
        ),
        "total_cholesterol": _CHOLESTEROL,
        "ldl": _CHOLESTEROL,
        "hdl": _CHOLESTEROL,
        "triglycerides": ("mg/dL", {"mmol/l": Conversion(88.57)}),
        "creatinine": ("mg/dL", {"umol/l": Conversion(0.011312), "mg/l": Conversion(0.1)}),
        "hemoglobin": ("g/dL", {"g/l": Conversion(0.1), "mmol/l": Conversion(1.6114)}),
        "vitamin_d": ("ng/mL", {"ug/l": _SAME, "nmol/l": Conversion(0.40064)}),
        "ferritin": ("ng/mL", {"ug/l": _SAME}),
        "tsh": ("mU/L", {"uu/ml": _SAME}),
        "crp": _PROTEIN_MG,
        "systolic_bp": _PRESSURE,
        "diastolic_bp": _PRESSURE,
        "weight_kg": (
            "kg",
            dict.fromkeys(("lb", "lbs", "[lb_av]"), Conversion(0.45359237))
            | {"g": Conversion(0.001)},
        ),
        "body_fat_percent": ("%", {"percent": _SAME}),
        "non_hdl_cholesterol": _CHOLESTEROL,
        "apolipoprotein_b": ("mg/dL", {"g/l": Conversion(100.0)}),
        # Its particles differ in mass, so mg/dL cannot be converted.
        "lipoprotein_a": ("nmol/L", {}),
        "hs_crp": _PROTEIN_MG,
        "homocysteine": ("umol/L", {"mg/l": Conversion(7.397)}),
        "insulin": ("uU/mL", {"mu/l": _SAME, "pmol/l": Conversion(1 / 6)}),
        "egfr": (
            "mL/min/1.73m2",
            dict.fromkeys(("ml/min/1.73", "ml/min/1.73m^2", "ml/min/{1.73_m2}"), _SAME),
        ),
        "urea_nitrogen": ("mg/dL", {"mmol/l": Conversion(2.8014)}),
        "uric_acid": ("mg/dL", {"umol/l": Conversion(0.016811), "mmol/l": Conversion(16.811)}),
        "alt": _ENZYME,
        "ast": _ENZYME,
        "alp": _ENZYME,
        "ggt": _ENZYME,
        "bilirubin": ("mg/dL", {"umol/l": Conversion(0.058466)}),
        "albumin": ("g/dL", {"g/l": Conversion(0.1)}),
        "sodium": _SALT,
        "potassium": _SALT,
        "calcium": ("mg/dL", {"mmol/l": Conversion(4.0078), "meq/l": Conversion(2.0039)}),
        "magnesium": ("mg/dL", {"mmol/l": Conversion(2.4305), "meq/l": Conversion(1.21525)}),
        "iron": ("ug/dL", {"umol/l": Conversion(5.5845)}),
        "vitamin_b12": ("pg/mL", {"ng/l": _SAME, "pmol/l": Conversion(1.35537)}),
        "folate": ("ng/mL", {"ug/l": _SAME, "nmol/l": Conversion(0.4414)}),
        "free_t3": (
            "pg/mL",
            {"ng/l": _SAME, "ng/dl": Conversion(10.0), "pmol/l": Conversion(0.65097)},
        ),
        "free_t4": (
            "ng/dL",
            {"ng/l": Conversion(0.1), "pg/ml": Conversion(0.1), "pmol/l": Conversion(0.077687)},
        ),
        "testosterone": (
            "ng/dL",
            {
                "nmol/l": Conversion(28.842),
                "ng/ml": Conversion(100.0),
                "ug/l": Conversion(100.0),
            },
        ),
        "cortisol": (
            "ug/dL",
            {"nmol/l": Conversion(0.036246), "ng/ml": Conversion(0.1), "ug/l": Conversion(0.1)},
        ),
        "hematocrit": ("%", {"percent": _SAME, "l/l": Conversion(100.0)}),
        "red_blood_cells": ("10^12/L", dict.fromkeys((*_MILLIONS, "t/l"), _SAME)),
        "white_blood_cells": _CELLS,
        "platelets": _CELLS,
    }
)

#: Canonical unit by code.
CANONICAL_UNITS: Final = MappingProxyType({code: unit for code, (unit, _) in _UNITS.items()})

#: Replacements, in this order, by which spellings of a unit in lower case become one.
UNIT_SPELLINGS: Final = (
    (" ", ""),
    ("\u00b5", "u"),  # the micro sign
    ("\u03bc", "u"),  # the letter mu
    ("mcg", "ug"),
    ("mcl", "ul"),
    ("(calc)", ""),
    ("iu/", "u/"),
    ("\u00d7", "x"),  # the multiplication sign
    ("x10", "10"),
    ("10*", "10^"),
    ("²", "2"),
    ("³", "3"),
)


def conversions() -> Iterator[tuple[str, str, Conversion]]:
    """Yield every code, with a unit as `UNIT_SPELLINGS` leaves it, and its conversion."""
    for code, (unit, others) in _UNITS.items():
        yield code, unit.lower(), _SAME
        for other, conversion in others.items():
            yield code, other, conversion
