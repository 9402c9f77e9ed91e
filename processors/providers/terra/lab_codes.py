"""Names that labs use for biomarkers with a canonical code, and for classifications of results."""

import re
from types import MappingProxyType
from typing import Final

from headwater.schemas.biomarkers import CANONICAL

_ALIASES_OF: Final = {
    "glucose": "glucose_fasting fasting_glucose glucose_serum blood_glucose glucose_plasma",
    "hba1c": "hba1c_percent hemoglobin_a1c haemoglobin_a1c a1c glycated_hemoglobin",
    "total_cholesterol": "cholesterol cholesterol_total total_chol",
    "ldl": "ldl_cholesterol ldl_c ldl_chol cholesterol_ldl ldl_calculated ldl_direct",
    "hdl": "hdl_cholesterol hdl_c hdl_chol cholesterol_hdl",
    "triglycerides": "triglyceride trigs",
    "creatinine": "creatinine_serum serum_creatinine creatinine_blood",
    "hemoglobin": "haemoglobin hgb hb",
    "vitamin_d": "vitamin_d_25_hydroxy vitamin_d_25_oh 25_hydroxy_vitamin_d 25_oh_vitamin_d "
    "vitamin_d_total vitamin_d_25oh",
    "ferritin": "ferritin_serum serum_ferritin",
    "tsh": "thyroid_stimulating_hormone thyrotropin",
    "crp": "c_reactive_protein",
    "systolic_bp": "systolic_blood_pressure blood_pressure_systolic",
    "diastolic_bp": "diastolic_blood_pressure blood_pressure_diastolic",
    "body_fat_percent": "body_fat_percentage bodyfat_percentage",
    "non_hdl_cholesterol": "non_hdl non_hdl_c cholesterol_non_hdl",
    "apolipoprotein_b": "apob apo_b",
    "lipoprotein_a": "lp_a lpa",
    "hs_crp": "hscrp crp_hs high_sensitivity_crp c_reactive_protein_high_sensitivity",
    "insulin": "insulin_fasting fasting_insulin",
    "egfr": "estimated_gfr gfr_estimated",
    "urea_nitrogen": "bun blood_urea_nitrogen",
    "uric_acid": "urate",
    "alt": "alanine_aminotransferase sgpt alat",
    "ast": "aspartate_aminotransferase sgot asat",
    "alp": "alkaline_phosphatase",
    "ggt": "gamma_glutamyl_transferase gamma_gt",
    "bilirubin": "bilirubin_total total_bilirubin",
    "albumin": "albumin_serum serum_albumin",
    "calcium": "calcium_total calcium_serum",
    "iron": "iron_serum serum_iron",
    "vitamin_b12": "b12 cobalamin",
    "folate": "folic_acid vitamin_b9",
    "free_t3": "ft3 t3_free triiodothyronine_free",
    "free_t4": "ft4 t4_free thyroxine_free",
    "testosterone": "testosterone_total total_testosterone",
    "hematocrit": "haematocrit hct",
    "red_blood_cells": "rbc red_blood_cell_count erythrocytes",
    "white_blood_cells": "wbc white_blood_cell_count leukocytes leucocytes",
    "platelets": "plt platelet_count thrombocytes",
}

#: Canonical codes by alias, including the codes themselves.
CODES: Final = MappingProxyType(
    {code: code for code in CANONICAL}
    | {alias: code for code, aliases in _ALIASES_OF.items() for alias in aliases.split()}
)

_CLASSIFICATIONS: Final = {
    "optimal": ("normal", "optimal", "in_range"),
    "borderline": ("borderline", "borderline_high", "borderline_low"),
    "out_of_range": (
        "high",
        "low",
        "abnormal",
        "critical",
        "critical_high",
        "critical_low",
        "out_of_range",
    ),
}
_STATUSES: Final = {word: status for status, all_of in _CLASSIFICATIONS.items() for word in all_of}

_PERCENT: Final = re.compile(r".*_percent(age)?")
_NO_WORD: Final = re.compile(r"[^\w]+")


def code_of(key: str | None, loinc: str | None, name: str | None) -> str | None:
    """Return the code of a result; None if nothing identifies it.

    With a key, it is the canonical code if the key is an alias, else the key as sent. Without one,
    it is loinc:<code>; without either, the name, which may be an alias, in lower case with
    underscores.
    """
    if key:
        return CODES.get(slug(key), key)
    if loinc:
        return f"loinc:{loinc}"
    named = slug(name or "")
    return CODES.get(named, named) or None


def unit_in(key: str | None) -> str | None:
    """Return the unit that a key names, as in hba1c_percent, whose code does not."""
    return "%" if _PERCENT.fullmatch(slug(key or "")) else None


def status_of(classification: str | None) -> str | None:
    """Return optimal, borderline or out_of_range; None for any other classification."""
    return None if classification is None else _STATUSES.get(slug(classification))


def slug(text: str) -> str:
    """Return a text in lower case, its words joined by underscores."""
    return _NO_WORD.sub("_", text.lower()).strip("_")
