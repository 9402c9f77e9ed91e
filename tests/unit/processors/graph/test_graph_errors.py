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


def documented_in(section: str) -> set[str]:
    """What the tables of a section of the page name in their first columns."""
    text = PAGE.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_every_code_of_a_rejection_by_graphs_is_in_the_table():
    """A code of the registry that a module of graphs names, unless clients take it for success."""
    names = {value: name for name, value in vars(failures).items() if isinstance(value, str)}
    sources = [*SOURCES[:-1], ROOT / "gateway/api/workflows/migrations.py"]
    texts = [source.read_text("utf-8") for source in sources]
    used = {
        refusal.code
        for refusal in failures.REFUSALS.values()
        if not refusal.settled
        and any(re.search(rf"\b{names[refusal.code]}\b", text) for text in texts)
    }
    # A command that came too late is not one that a user has sent.
    assert used - documented_in("Commands") - {failures.STALE} == set()
    assert {"BRANCH_NOT_FOUND", "MIGRATION_REFUSED", "JOB_LEASE_LOST"} <= used


def test_every_name_of_an_error_is_in_the_table():
    literals = {
        name
        for source in SOURCES
        for name in re.findall(r'"([A-Z][A-Za-z]+Error)"', source.read_text("utf-8"))
    }
    used = names_of_failures() - OF_CODE | literals
    assert used - documented_in("Runs") == set()
    assert len(literals) >= 6
