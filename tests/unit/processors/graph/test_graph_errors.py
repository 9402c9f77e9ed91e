"""The names of the errors with which graphs fail are documented."""

import re
from pathlib import Path

from headwater.schemas import failures

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "graphs" / "errors.md"
#: Where failures of graphs and their tasks are made.
SOURCES = [*(ROOT / "processors" / "graph").glob("*.py"), ROOT / "streams/code_host/host.py"]
#: Failures of code workflows alone.
OF_CODE = {
    *(failures.DATA, failures.JOIN, failures.RACE, failures.ROLLBACK, failures.STATEMENT_REFUSED),
    *(failures.UNIQUE_CONSTRAINT, failures.MAX_STEPS_EXCEEDED, failures.SLOT_QUEUE_FULL),
}


def names_of_failures() -> set[str]:
    """The names that Headwater assigns, from the first part of `schemas.failures`."""
    text = (ROOT / "schemas" / "failures.py").read_text("utf-8")
    first, _, _ = text.partition("# --- codes of rejected commands")
    return set(re.findall(r'^[A-Z_]+: Final = "(\w+)"', first, re.MULTILINE))


def test_every_name_of_an_error_is_in_the_table():
    literals = {
        name
        for source in SOURCES
        for name in re.findall(r'"([A-Z][A-Za-z]+Error)"', source.read_text("utf-8"))
    }
    used = names_of_failures() - OF_CODE | literals
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert used - documented == set()
    assert len(literals) >= 6
