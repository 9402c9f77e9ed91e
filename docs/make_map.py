"""Writes `docs/map.md`, a line for each file; what `make map` runs. Standard library only.

A module is described by the first line of its docstring, a schema by its `doc`, SQL by its first
comment or its first line. So whoever moves or adds a file writes its line there, and nowhere else.
"""

import ast
import itertools
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "docs" / "map.md"
#: From the edge down to the records, as the walls are.
ROOMS = ("src", "gateway", "streams", "projections", "processors", "schemas")
#: What tools leave behind.
LEFT_BEHIND = re.compile(r"__pycache__|\.egg-info|(^|/)\.")

HEAD = """\
# A map of the house

One line for each file, taken from the file. `make map` writes this page, and a test fails when it
is stale. [Architecture](architecture.md) says how the rooms work together.
"""

#: Files that cannot say what they are.
DESCRIBED = {
    "__init__.pyi": "The names of the public face, for type checkers and for `__init__.py` alike.",
    "py.typed": "Says to type checkers that the package has types.",
    "ids.json": "The id of each version of a schema, as records carry it.",
}


def files() -> list[Path]:
    """Every file of the rooms, by room and folder."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]
    kept = [path for path in found if not LEFT_BEHIND.search(str(path.relative_to(ROOT)))]
    return sorted(kept, key=lambda path: (ROOMS.index(room_of(path)), path.parent, path.name))


def room_of(path: Path) -> str:
    """The folder at the top of the repository that a file lies in."""
    return path.relative_to(ROOT).parts[0]


def describe(path: Path) -> str:
    """One line about a file, taken from it.

    Errors: SystemExit when the file has no such line.
    """
    text = path.read_text("utf-8")
    comment = list(itertools.takewhile(lambda line: line.startswith(("--", "#")), text.split("\n")))
    line = DESCRIBED.get(path.name)
    if line is None and path.suffix == ".py":
        line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    elif line is None and path.suffix == ".avsc":
        line = json.loads(text).get("doc")
    elif line is None and path.suffix == ".json":
        line = f"A delivery of type `{json.loads(text).get('type')}`."
    elif line is None and path.suffix in {".html", ".css"}:
        line = text.partition("\n")[0].strip("{#}/* ")
    elif line is None and path.parent.name == "queries":
        line = f"`{text.splitlines()[len(comment)].strip()}`"
    elif line is None:
        line = " ".join(each.lstrip("-# ") for each in comment).partition(". ")[0]
    if not line:
        raise SystemExit(f"{path.relative_to(ROOT)}: expected a docstring or a comment in front")
    return line.replace("|", "\\|").removesuffix(".")


def made() -> str:
    """The page."""
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
    MAP.write_text(made(), "utf-8")
