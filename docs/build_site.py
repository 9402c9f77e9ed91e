"""Build the documentation site: `python docs/build_site.py [FOLDER]`; `make docs` runs it.

The site is made from the pages that readers of the repository have, so that nothing is written
twice. Its first page is the README. Links between pages, and their anchors, are checked.

Beside the pages it has `llms.txt`, a list of them for programs that read documentation, and
`llms-full.txt`, their text.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
#: Pages outside of `docs/`, and their paths in the site.
OUTSIDE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting-vulnerabilities.md",
}
#: A fence with the name of a file, or with words for tests, behind the language.
_FENCE: Final = re.compile(r"^(\s*)```(\w+) ([^\n`]+)$", re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)


class Page(NamedTuple):
    """A page of the site.

    Attributes:
        source: Its file.
        path: Its path in the site.
    """

    source: Path
    path: str


def pages() -> list[Page]:
    """Return all pages, in the order of their paths."""
    own = [Page(file, file.relative_to(DOCS).as_posix()) for file in sorted(DOCS.rglob("*.md"))]
    return [*(Page(ROOT / name, path) for name, path in OUTSIDE.items()), *own]


def site_text(page: Page) -> str:
    """Return the text of a page as the site has it."""
    text = _COMMENT.sub("", page.source.read_text("utf-8"))
    text = _FENCE.sub(_titled, text)
    return _LINK.sub(lambda link: f"]({_target(page, link[1])}{link[2] or ''})", text)


def _titled(fence: re.Match[str]) -> str:
    indent, language, words = fence.groups()
    file = words.split()[0]
    return f'{indent}```{language} title="{file}"' if "." in file else f"{indent}```{language}"


def _target(page: Page, link: str) -> str:
    """Return where a link leads in the site; files that are no pages are named only."""
    if ":" in link:
        return link
    file = (page.source.parent / link).resolve()
    if file.is_dir():
        file = file / "README.md"
    for name, path in OUTSIDE.items():
        if file == ROOT / name:
            return _relative(page, path)
    if file.is_relative_to(DOCS):
        return _relative(page, file.relative_to(DOCS).as_posix())
    return _relative(page, "contributing.md")


def _relative(page: Page, path: str) -> str:
    return "../" * page.path.count("/") + path


def summary_lines(all_pages: list[Page]) -> Iterator[str]:
    """Yield the lines of `llms.txt`: the title and the first sentence of every page."""
    yield "# Headwater\n"
    yield "> Event-sourced webhook pipelines and durable workflows on Kafka and Postgres.\n"
    yield "## Pages\n"
    for page in all_pages:
        if page.path.startswith("adr/"):
            continue
        text = _COMMENT.sub("", page.source.read_text("utf-8"))
        title = _TITLE.search(text)
        paragraphs = (part for part in text.split("\n\n") if part[:1].isalpha())
        sentence = " ".join(next(paragraphs, "").split()).partition(". ")[0].rstrip(".:")
        name = title[1] if title else page.path
        yield f"- [{name}]({page.path}): {sentence}."
    yield "\n## Optional\n"
    yield "- [Decisions](adr/README.md): why things are as they are."


def decision_list() -> str:
    """Return the page with the list of the decision records."""
    lines = ["# Decisions\n"]
    for file in sorted((DOCS / "adr").glob("*.md")):
        number, _, title = file.read_text("utf-8").partition("\n")[0].lstrip("# ").partition(" ")
        lines.append(f"- [{number}]({file.name}): {title}")
    return "\n".join(lines) + "\n"


def build(folder: Path) -> None:
    """Build the site into a folder, which is replaced."""
    all_pages = pages()
    with tempfile.TemporaryDirectory(prefix="headwater-docs-") as directory:
        staged = Path(directory)
        shutil.copytree(DOCS, staged / "docs", ignore=shutil.ignore_patterns("*.md", "*.py"))
        for page in all_pages:
            file = staged / "docs" / page.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(site_text(page), "utf-8")
        (staged / "docs" / "adr" / "README.md").write_text(decision_list(), "utf-8")
        (staged / "src").symlink_to(ROOT / "src")
        shutil.copy(DOCS / "zensical.toml", staged)
        program = Path(sys.executable).with_name("zensical")
        subprocess.run([program, "build", "--strict"], cwd=staged, check=True)  # noqa: S603, ours
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(staged / "site", folder)
    text = "\n".join(summary_lines(all_pages))
    (folder / "llms.txt").write_text(f"{text}\n", "utf-8")
    whole = "\n\n".join(site_text(page) for page in all_pages)
    (folder / "llms-full.txt").write_text(whole, "utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site"))
