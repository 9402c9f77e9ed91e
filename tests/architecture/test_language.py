"""Product code and documentation are in plain English, with the words of Kafka and Temporal.

Some words once had a meaning of their own here. They are not used again, or seldom.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
#: A word in prose, or a part of an identifier.
WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

#: Never used, with what is written instead.
BANNED: Final = {
    "anew": "again",
    "anybody": "the client, another process, ...",
    "beneath": "under",
    "heard": "first seen, received",
    "house": "system; built-in",
    "mended": "fixed, repaired",
    "nobody": "no client, no process, ...",
    "shaken": "handshake response",
    "somebody": "another process, the caller, ...",
    "strays": "unmatched requests",
    "tell": "notify, report, publish",
    "told": "notified, reported, published",
    "whoever": "the process that",
}
#: Sections of docstrings that no tool renders.
SECTIONS: Final = re.compile(r"^\s*(Shape|Errors|Units):(\s|$)", re.MULTILINE)
#: Fine now and then, as "404 not found" or "each of them"; as names of variables they say nothing.
SELDOM: Final = frozenset(
    {"asked", "beside", "each", "fault", "found", "given", "gone", "lies", "place", "says"}
    | {"stands", "wanted", "whom", "whose"}
)
#: Uses of these in a thousand lines.
SELDOM_MAX: Final = 15

#: What has such a word and stays: names of tests that a page refers to, a method of Python's files,
#: the name of a step in recorded histories, and a user of Unix.
PUBLISHED: Final = re.compile(r"<!-- tests/.*?-->|\.tell\(|\"tell\"|[`\"]nobody[`\"]", re.DOTALL)


def _files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if not name.startswith("tests/")]


def _text(path: Path) -> str:
    """Return the text of a file with the same number of lines, without published names."""
    text = path.read_text("utf-8")
    return PUBLISHED.sub(lambda match: "\n" * match[0].count("\n"), text)


def test_words_with_a_private_meaning_do_not_come_back():
    uses = [
        f'{path.relative_to(ROOT)}:{number}: "{word}", write {BANNED[word.lower()]}'
        for path in _files()
        for number, line in enumerate(_text(path).splitlines(), 1)
        for word in WORD.findall(line)
        if word.lower() in BANNED
    ]
    assert not uses, "\n".join(uses)


def test_docstrings_have_the_sections_that_tools_know():
    texts = {path: path.read_text("utf-8") for path in _files() if path.suffix == ".py"}
    assert [path for path, text in texts.items() if SECTIONS.search(text)] == []


def test_vague_words_are_rare():
    uses, lines = Counter[str](), 0
    for path in _files():
        text = _text(path)
        lines += text.count("\n")
        uses.update(word for word in map(str.lower, WORD.findall(text)) if word in SELDOM)
    assert uses.total() / lines * 1_000 <= SELDOM_MAX, uses.most_common()
