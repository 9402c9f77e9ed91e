"""docs/map.md is up to date: it has one line for every file, and nothing else."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("make_map", ROOT / "docs" / "make_map.py")
assert _SPEC is not None
assert _SPEC.loader is not None
make_map = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_map)


def test_the_map_is_what_make_map_writes():
    result = (ROOT / "docs" / "map.md").read_text("utf-8")
    assert result == make_map.render(), "docs/map.md is stale: run `make map`, and commit it"
    assert {path.parts[len(ROOT.parts)] for path in make_map.files()} == set(make_map.FOLDERS)
