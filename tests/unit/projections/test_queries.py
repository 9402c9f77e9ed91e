"""The SQL files of the projections: every statement has a name of its own, and is used."""

import re
from pathlib import Path

from headwater.projections.postgres.statements import statement

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "projections" / "queries").glob("*.sql"))
NAMES = [
    name
    for file in FILES
    for name in re.findall(r"^-- name: (\w+)$", file.read_text(), re.MULTILINE)
]


def test_names_are_unique():
    assert len(NAMES) > 100
    assert [name for name in set(NAMES) if NAMES.count(name) > 1] == []


def test_a_statement_is_what_follows_its_name():
    assert statement("upsert_wipes").startswith(b"-- Records that could not be applied")
    assert b"-- name:" not in b"".join(map(statement, NAMES))


def test_every_statement_is_used():
    code = "\n".join(
        path.read_text("utf-8")
        for folder in ("projections", "gateway", "streams")
        for path in (ROOT / folder).rglob("*.py")
    )
    strings = set(re.findall(r'"(\w+)"', code))
    assert [name for name in NAMES if name not in strings] == []
