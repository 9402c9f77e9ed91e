"""The view biomarkers_wide: a row a day of biomarkers_raw, a column each canonical code.

Its migration holds what `python -m headwater.projections.postgres.wide_view` prints.
"""

import sys
from typing import Final

from headwater.schemas.biomarkers import CANONICAL
from headwater.schemas.tables import BIOMARKERS

NAME: Final = "biomarkers_wide"
_KEY: Final = BIOMARKERS.key_names[:-1]


def definition() -> str:
    """The statement that makes the view, in Postgres and in SQLite."""
    key = ", ".join(_KEY)
    columns = ",\n    ".join(
        f"max(value) filter (where code = '{code}') as {code}" for code in CANONICAL
    )
    return (
        f"create view {NAME} as\nselect {key},\n    {columns}\n"
        f"from {BIOMARKERS.name}\ngroup by {key};\n"
    )


def wide_view_ddl() -> str:
    """The statements that make the view and explain its columns."""
    comments = "\n".join(
        f"comment on column {NAME}.{name} is '{words}.';"
        for name, words in {
            "user_id": "Our user",
            "source": "Where it was measured, as in biomarkers_raw",
            "date": "The day, as in biomarkers_raw",
            **{
                code: words if words.endswith(("kg", "mmHg", "percent")) else f"{words}; as sent"
                for code, words in CANONICAL.items()
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
