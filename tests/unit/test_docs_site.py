"""The documentation site is made from the pages of the repository."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(site: ModuleType, path: str) -> str:
    (text,) = (site.site_text(item) for item in site.pages() if item.path == path)
    return str(text)


def test_links_lead_to_pages_of_the_site_and_fences_name_their_files(site: ModuleType):
    assert "](workflows/README.md)" in page(site, "index.md")
    assert "](../index.md#commands)" in page(site, "workflows/cli.md")
    assert '```python title="charging.py"' in page(site, "graphs/jobs.md")
    assert "<!--" not in page(site, "graphs/jobs.md")


def test_the_list_for_programs_has_every_page_once(site: ModuleType):
    lines = [line for line in site.summary_lines(site.pages()) if line.startswith("- [")]
    named = [line.partition("](")[2].partition(")")[0] for line in lines]
    assert len(named) == len({*named})
    expected = {item.path for item in site.pages() if not item.path.startswith("adr/")}
    assert {*named} == {*expected, "adr/README.md"}


def test_the_site_is_built_and_no_link_or_anchor_in_it_is_broken(site: ModuleType, tmp_path: Path):
    site.build(tmp_path / "site")
    api = (tmp_path / "site" / "api" / "python.html").read_text("utf-8")
    assert 'id="headwater.WorkflowTest.advance"' in api
    assert (tmp_path / "site" / "llms.txt").read_text("utf-8").startswith("# Headwater\n")
    assert "order-1" in (tmp_path / "site" / "llms-full.txt").read_text("utf-8")
