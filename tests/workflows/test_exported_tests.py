"""Tests that are written from recorded runs: they fail as the run failed, until it is fixed."""

import asyncio
import shutil
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from headwater import InstanceFailedError, NonRetryableError, WorkflowTest
from headwater.gateway.cli.export_tests import files_of_test
from headwater.processors.runs.history_files import lines_of
from headwater.streams.code_host.apps import load_app
from tests.workflows.drawn_changes import history_of
from tests.workflows.graphing import edge, graph, node

ORDERS = """
from headwater import NonRetryableError, workflow

@workflow("order")
async def order(event, step):
    quote = await step.do("quote", lambda: {"price": 3})
    return quote["prize"]

@workflow("charge")
async def charge(event, step):
    def pay():
        raise NonRetryableError("card declined")
    return await step.do("pay", pay)

@workflow("rest")
async def rest(event, step):
    await step.sleep("night", "1 hour")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of an app, `exported_app`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "exported_app.py"
    file.write_text(ORDERS)
    yield file
    sys.modules.pop("exported_app", None)
    sys.path.remove(str(tmp_path))


def write_test(folder: Path, name: str, *definitions: Any, app: str | None) -> Path:  # noqa: ANN401
    """Write the files of a test from a run of a workflow, and return its module's file."""

    async def scenario() -> str:
        async with WorkflowTest(list(definitions)) as test:
            await test.create(name, id="o-1")
            await test.run_until_idle()
            return "\n".join(lines_of(history_of(test, name, "o-1")))

    files = files_of_test(f"{name}/o-1", asyncio.run(scenario()), app)
    for file, content in files.items():
        (folder / file).write_text(content)
    return folder / f"test_{name}_o_1.py"


def run_test(file: Path) -> None:
    """Run the test in a file, as pytest does."""
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, file.stem)()


def fix(app: Path, old: str, new: str) -> None:
    # Compiled code counts as current if the size and the second of the change are the same.
    shutil.rmtree(app.parent / "__pycache__", ignore_errors=True)
    app.write_text(app.read_text().replace(old, new))
    sys.modules.pop("exported_app", None)


def test_an_error_of_the_code_is_a_test_until_it_is_fixed(app: Path, tmp_path: Path):
    order = load_app("exported_app").workflows["order"]
    file = write_test(tmp_path, "order", order, app="exported_app")
    source = file.read_text()
    assert source.startswith('"""Run 0 of order/o-1 failed: KeyError: \'prize\'\n')
    assert "# Fails as the run did, until the code is fixed." in source
    with pytest.raises(KeyError, match="prize"):
        run_test(file)
    fix(app, "prize", "price")
    run_test(file)


def test_the_code_of_a_failed_step_is_called(app: Path, tmp_path: Path):
    charge = load_app("exported_app").workflows["charge"]
    file = write_test(tmp_path, "charge", charge, app="exported_app")
    assert "calls=['pay']" in file.read_text()
    with pytest.raises(NonRetryableError, match="card declined"):
        run_test(file)
    fix(app, 'raise NonRetryableError("card declined")', "return True")
    run_test(file)


def test_a_run_that_has_not_failed_has_to_fit(app: Path, tmp_path: Path):
    file = write_test(
        tmp_path, "rest", load_app("exported_app").workflows["rest"], app="exported_app"
    )
    assert "The run has not failed: it has to fit." in file.read_text()
    run_test(file)
    fix(app, "night", "day")
    with pytest.raises(AssertionError, match="does not reach night"):
        run_test(file)


def test_a_graph_has_its_definition_beside_it(tmp_path: Path):
    definition = graph(
        [node("start", outputMapping={"state.n": "1"}), node("end")],
        [edge("start", "end", condition="state.n.missing == 1")],
    )
    file = write_test(tmp_path, "g", definition, app=None)
    beside = tmp_path / "g_o_1.graph.json"
    with pytest.raises(InstanceFailedError):
        run_test(file)
    beside.write_text(beside.read_text().replace("state.n.missing == 1", "state.n == 1"))
    run_test(file)
