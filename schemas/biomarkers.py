"""Biomarkers for which Headwater has its own codes: every one is a column of biomarkers_wide.

A biomarker with any other code is stored as a row of biomarkers_raw as well.
"""

from types import MappingProxyType
from typing import Final

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
        "systolic_bp": "Systolic blood pressure, mmHg",
        "diastolic_bp": "Diastolic blood pressure, mmHg",
        "weight_kg": "Weight, kg",
        "body_fat_percent": "Body fat, percent",
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
