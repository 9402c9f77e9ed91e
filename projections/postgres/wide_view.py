"""The view biomarkers_wide: one row per day of biomarkers_raw, one column per canonical code.

A column has one unit, into which values are converted. Its migration contains the output of
`python -m headwater.projections.postgres.wide_view`.
"""

import sys
from typing import Final

from headwater.schemas.biomarkers import (
    CANONICAL,
    CANONICAL_UNITS,
    UNIT_SPELLINGS,
    conversions,
)
from headwater.schemas.tables import BIOMARKERS

NAME: Final = "biomarkers_wide"
_KEY: Final = BIOMARKERS.key_names[:-1]
_UNCONVERTED: Final = "unconverted"
_WITHOUT_UNIT: Final = "without_unit"
#: Whether a value has no unit; weight_kg and body_fat_percent name theirs.
_IS_MISSING: Final = "coalesce(trim(unit), '') = ''"


def definition() -> str:
    """Return the statement that creates the view, for Postgres and SQLite."""
    key = ", ".join(_KEY)
    units = ",\n    ".join(
        f"('{code}', '{unit}', {conversion.factor!r}, {conversion.offset!r})"
        for code, unit, conversion in conversions()
    )
    columns = ",\n    ".join(
        f"max(canonical) filter (where code = '{code}') as {code}" for code in CANONICAL
    )
    unit = "lower(unit)"
    for spelling, replacement in UNIT_SPELLINGS:
        unit = f"replace({unit}, '{spelling}', '{replacement}')"
    codes = ", ".join(f"'{code}'" for code in CANONICAL)
    return (
        f"create view {NAME} as\n"  # noqa: S608 (declared names)
        f"with units (of_code, of_unit, factor, term) as (values\n    {units}\n),\n"
        f"converted as (\n    select {key}, code, value, {_IS_MISSING} as has_no_unit,\n"
        f"        case when {_IS_MISSING} then value else value * factor + term end as canonical\n"
        f"    from {BIOMARKERS.name}\n"
        f"    left join units on of_code = code and of_unit = {unit}\n"
        f"    where code in ({codes})\n)\n"
        f"select {key},\n    {columns},\n"
        "    count(*) filter (where value is not null and canonical is null)"
        f" as {_UNCONVERTED},\n"
        f"    count(*) filter (where value is not null and has_no_unit) as {_WITHOUT_UNIT}\n"
        f"from converted\ngroup by {key};\n"
    )


def wide_view_ddl() -> str:
    """Return the statements that create the view and comment on its columns."""
    comments = "\n".join(
        f"comment on column {NAME}.{name} is '{description}.';"
        for name, description in {
            "user_id": "Our user",
            "source": "Where it was measured, as in biomarkers_raw",
            "date": "The day, as in biomarkers_raw",
            **{
                code: f"{description}, in {CANONICAL_UNITS[code]}"
                for code, description in CANONICAL.items()
            },
            _UNCONVERTED: "Number of values of these codes that are only in biomarkers_raw, because"
            " their unit is unknown or not convertible",
            _WITHOUT_UNIT: "Number of values that were sent without a unit, and are taken to be in"
            " the column''s",
        }.items()
    )
    return (
        f"{definition()}\n"
        f"comment on view {NAME} is 'The biomarkers of a day side by side: those with a canonical "
        "code, as numbers in one unit for each column. Everything else is in biomarkers_raw.';\n"
        f"{comments}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(wide_view_ddl())
