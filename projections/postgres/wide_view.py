"""The view biomarkers_wide: one row per day of biomarkers_raw, one column per canonical code.

Its migration contains the output of `python -m headwater.projections.postgres.wide_view`.
"""

import sys
from typing import Final

from headwater.schemas.biomarkers import CANONICAL
from headwater.schemas.tables import BIOMARKERS

NAME: Final = "biomarkers_wide"
_KEY: Final = BIOMARKERS.key_names[:-1]


def definition() -> str:
    """Return the statement that creates the view, for Postgres and SQLite."""
    key = ", ".join(_KEY)
    columns = ",\n    ".join(
        f"max(value) filter (where code = '{code}') as {code}" for code in CANONICAL
    )
    return (
        f"create view {NAME} as\nselect {key},\n    {columns}\n"
        f"from {BIOMARKERS.name}\ngroup by {key};\n"
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
                code: description
                if description.endswith(("kg", "mmHg", "percent"))
                else f"{description}; as sent"
                for code, description in CANONICAL.items()
            },
        }.items()
    )
    return (
        f"{definition()}\n"
        f"comment on view {NAME} is 'The biomarkers of a day side by side: those with a canonical "
        "code, as numbers. Units and all else are in biomarkers_raw.';\n"
        f"{comments}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(wide_view_ddl())
