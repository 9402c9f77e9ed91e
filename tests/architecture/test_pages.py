"""The pages name what there is: links lead somewhere, and nothing that exists is left out."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from headwater.gateway.cli.main import cli
from headwater.gateway.settings.environment import describe
from headwater.gateway.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
ADR = ROOT / "docs" / "adr"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")
IMPORT_RULES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]


@cache
def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Where a page leads to within the repository: files, and anchors in them."""
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if not link.startswith("https://"):
            file, _, anchor = link.partition("#")
            yield (page.parent / file).resolve() if file else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path):
    for file, anchor in links(page):
        assert file.exists(), file
        assert not anchor or anchor in anchors(file), f"{file}#{anchor}"


def test_every_page_is_found_from_the_readme():
    result, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in result and page.suffix == ".md":
            result.add(page)
            ahead += [file for file, _ in links(page)]
    assert {page for page in PAGES if page.parent != ADR} <= result
    assert ADR in {file for page in result for file, _ in links(page)}


def test_every_setting_is_named_by_a_page():
    texts = "\n".join(page.read_text("utf-8") for page in PAGES if page.parent != ADR)
    named = set(re.findall(r"HEADWATER_[A-Z0-9_]+", texts))
    ends = tuple(re.findall(r"…(_[A-Z0-9_]+)", texts))  # as in `HEADWATER_KAFKA_USER`, `…_PASSWORD`
    settings = [item.variable for item in describe(Settings())]
    assert [
        setting for setting in settings if setting not in named and not setting.endswith(ends)
    ] == []


def test_the_readme_has_a_line_for_every_command():
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme.partition("\n## Commands\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`headwater ([a-z-]+)", table))
    assert named == set(cli.commands)


def packages_in(folder: str) -> list[set[str]]:
    """The rows of a table in architecture.md: the packages and modules of each row."""
    table = ARCHITECTURE.read_text("utf-8").partition(f"| in `{folder}/` |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [{name.rstrip("/") for name in re.findall(r"`([\w/]+)`", cell)} for cell in cells]


@pytest.mark.parametrize("folder", ["gateway", "streams", "projections", "processors", "schemas"])
def test_the_packages_of_the_architecture_are_those_of_the_import_rules(folder: str):
    (layers,) = [
        contract["layers"]
        for contract in IMPORT_RULES["contracts"]
        if contract["type"] == "layers" and contract["containers"] == [f"headwater.{folder}"]
    ]
    assert packages_in(folder) == [set(re.split(r" [|:] ", layer)) for layer in layers]
