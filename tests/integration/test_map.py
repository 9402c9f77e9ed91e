"""The map of the house is true: every file is in it, and nothing else."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("make_map", ROOT / "docs" / "make_map.py")
assert _SPEC is not None
assert _SPEC.loader is not None
make_map = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_map)

STALE = "docs/map.md is stale: run `make map`, and commit what it changes"


def _mapped() -> list[str]:
    """The paths that the page names, in its order."""
    paths = []
    for line in (ROOT / "docs" / "map.md").read_text("utf-8").splitlines():
        if heading := re.fullmatch(r"## (\S+)/", line):
            folder = heading[1]
        elif row := re.match(r"(?:\| )?`(\w[\w.-]*)`(?: \||:) ", line):
            paths.append(f"{folder}/{row[1]}")
    return paths


def test_every_file_of_the_house_is_in_the_map_and_nothing_else():
    files = {str(path.relative_to(ROOT)) for path in make_map.files()}
    mapped = _mapped()
    assert sorted(mapped) == sorted(files), STALE
    assert {path.partition("/")[0] for path in files} == set(make_map.ROOMS)
