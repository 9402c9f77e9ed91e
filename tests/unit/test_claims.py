"""What the documents promise is tested: a claim has the name of its test beside it.

The names stand in comments of the page's source, `<!-- tests/workflows/test_steps.py::test_… -->`,
at the end of the paragraph, item or row that makes the claim.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"\btests/[\w/]+\.py::\w+")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"\n(?=\n|[ ]*[-*] |[ ]*\d+\. |\||#)")
#: What raises, is kept or happens once, and what does not happen.
CLAIM = re.compile(
    r"\b(raises?|raised|once|twice|never|kept|keeps|stays?|dropped|lost|loses|refused|refuses|fails)\b"
)
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "adr" not in path.parts
)
#: Pages whose every claim has a test, with the headings below which that holds; none for all.
CLAIMS: dict[str, tuple[str, ...]] = {
    "README.md": ("What is guaranteed",),
    "docs/architecture.md": (
        "Delivery pipeline: from a webhook to a row",
        "Rows that do not depend on order",
        "What can go wrong with a delivery",
        "Workflow engine: how a workflow runs",
    ),
    "docs/graphs/cel.md": (),
    "docs/graphs/definitions.md": (),
    "docs/graphs/events.md": (),
    "docs/graphs/jobs.md": (),
    "docs/graphs/joins.md": (),
    "docs/graphs/migrating.md": (),
    "docs/graphs/routing.md": (),
    "docs/graphs/waiting.md": (),
    "docs/workflows/authoring.md": (),
    "docs/workflows/concepts.md": (),
    "docs/workflows/deployments.md": (),
    "docs/workflows/routes.md": (
        "Reading what you wrote",
        "Sending again",
        "Tick",
        "Authorization",
    ),
    "docs/workflows/triggers.md": (),
}


@cache
def defined(file: str) -> set[str]:
    """The tests of a file."""
    path = ROOT / file
    text = path.read_text("utf-8") if path.exists() else ""
    return set(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))


def claims(page: str) -> Iterator[str]:
    """The paragraphs, items and rows of a page that claim something."""
    heading = ""
    for block in BLOCK.split(FENCE.sub("", (ROOT / page).read_text("utf-8"))):
        if block.lstrip().startswith("#"):
            heading = block.strip().lstrip("# ")
        elif (not CLAIMS[page] or heading in CLAIMS[page]) and CLAIM.search(COMMENT.sub("", block)):
            yield block.strip()


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str):
    named = NAMED.findall((ROOT / page).read_text("utf-8"))
    missing = [
        item for item in named if item.rpartition("::")[2] not in defined(item.partition("::")[0])
    ]
    assert not missing


@pytest.mark.parametrize("page", CLAIMS)
def test_every_claim_of_a_page_names_its_test(page: str):
    result = list(claims(page))
    assert result, "expected claims, found none; was a heading renamed?"
    without = [block for block in result if not NAMED.search(block)]
    assert not without, "\n\n".join(without)


def test_each_heading_whose_claims_are_looked_at_is_there():
    for page, headings in CLAIMS.items():
        text = (ROOT / page).read_text("utf-8")
        for heading in headings:
            assert re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE), heading
