"""Generate `docs/map.md`, one line for every file. Run by `make map`; standard library only.

The line of a module is the first line of its docstring, that of a schema its `doc`, and that of SQL
its first comment or its first line. To change a line, change the file itself.
"""

import ast
import itertools
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "docs" / "map.md"
#: Top-level folders, from the public API down to the records, in the order of the import rules.
FOLDERS = ("src", "gateway", "streams", "projections", "processors", "schemas")
#: Files and folders that tools generate.
GENERATED = re.compile(r"__pycache__|\.egg-info|(^|/)\.")

HEAD = """\
# Map of the code

One line for every file, taken from the file. `make map` generates this page, and a test fails if it
is stale. [Architecture](architecture.md) explains how the packages work together.
"""

#: Lines of files that cannot contain their own description.
DESCRIPTIONS = {
    "__init__.pyi": "Names of the public API, for type checkers and for `__init__.py`.",
    "py.typed": "Marks the package as typed.",
    "ids.json": "Schema ids of all versions, as used in records.",
}


def files() -> list[Path]:
    """Return every file of the code, sorted by top-level folder, folder and name."""
    paths = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()]
    listed = [path for path in paths if not GENERATED.search(str(path.relative_to(ROOT)))]
    return sorted(
        listed, key=lambda path: (FOLDERS.index(top_folder(path)), path.parent, path.name)
    )


def top_folder(path: Path) -> str:
    """Return the name of the top-level folder of a file."""
    return path.relative_to(ROOT).parts[0]


def describe(path: Path) -> str:
    """Return the line of a file.

    Raises:
        SystemExit: The file contains no description.
    """
    text = path.read_text("utf-8")
    comment = list(itertools.takewhile(lambda line: line.startswith(("--", "#")), text.split("\n")))
    line = DESCRIPTIONS.get(path.name)
    if line is None and path.suffix == ".py":
        line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    elif line is None and path.suffix == ".avsc":
        line = json.loads(text).get("doc")
    elif line is None and path.suffix == ".json":
        line = f"A delivery of type `{json.loads(text).get('type')}`."
    elif line is None and path.suffix in {".html", ".css"}:
        line = text.partition("\n")[0].strip("{#}/* ")
    elif line is None:
        line = " ".join(part.lstrip("-# ") for part in comment).partition(". ")[0]
    if not line:
        raise SystemExit(f"{path.relative_to(ROOT)}: expected a docstring or a leading comment")
    return line.replace("|", "\\|").removesuffix(".")


def render() -> str:
    """Return the text of the page."""
    page = [HEAD]
    for folder, group in itertools.groupby(files(), lambda path: path.parent):
        page.append(f"## {folder.relative_to(ROOT)}/\n")
        rows = list(group)
        if (about := folder / "__init__.py") in rows and folder != ROOT / "src" / "headwater":
            rows.remove(about)
            page.append(f"`__init__.py`: {describe(about)}\n")
        if rows:
            page.append("| file | |\n| --- | --- |")
            page.append("\n".join(f"| `{path.name}` | {describe(path)} |" for path in rows) + "\n")
    return "\n".join(page)


if __name__ == "__main__":
    MAP.write_text(render(), "utf-8")
