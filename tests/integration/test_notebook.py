"""The notebook for analysts runs to its end over real tables, and draws what is in them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAMP = ROOT / ".venv-notebook" / "stamp"
PATHS = "<path"


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """docs/data/draw_month.py."""
    if not STAMP.exists():
        pytest.skip("expected .venv-notebook, found none: make .venv-notebook/stamp")
    spec = importlib.util.spec_from_file_location("draw_month", ROOT / "docs/data/draw_month.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_month_is_drawn_and_is_empty_for_an_unknown_user(
    drawing: ModuleType, migrated: str, tmp_path: Path
):
    drawing.write_month(migrated)
    month, nothing = tmp_path / "month.svg", tmp_path / "nothing.svg"
    drawing.draw(migrated, drawing.USER, month)
    drawing.draw(migrated, "user_nobody", nothing)
    bars = month.read_text("utf-8").count(PATHS) - nothing.read_text("utf-8").count(PATHS)
    assert bars > 4 * 31  # of each day steps and three kinds of sleep, and the two lines
    assert month.read_bytes() == (ROOT / "docs/data/month.svg").read_bytes(), "make picture"


def test_a_database_that_is_away_fails_the_notebook(drawing: ModuleType, tmp_path: Path):
    with pytest.raises(RuntimeError, match="connection failed"):
        drawing.draw("postgresql://nobody@127.0.0.1:1/none", "user_amara", tmp_path / "no.svg")
