"""The wheel, installed into a bare environment, is all that a user needs."""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.bare_environment import ROOMS, ROOT, built, installed, run

FENCED = re.MULTILINE | re.DOTALL

#: An app whose own packages have the names of our rooms.
APP = {
    "schemas/__init__.py": "",
    "schemas/orders.py": "PRICE = 125\n",
    "streams/__init__.py": "from schemas.orders import PRICE\n",
    "gateway/__init__.py": "",
    "gateway/shop.py": """\
import streams
from headwater import Step, WorkflowEvent, workflow


@workflow("order")
async def order(event: WorkflowEvent[str], step: Step) -> object:
    return [event.payload, await step.do("quote", lambda: streams.PRICE)]
""",
    "app.py": """\
import asyncio

from gateway.shop import order
from headwater import WorkflowTest


async def main() -> None:
    async with WorkflowTest([order]) as test:
        instance = await test.create("order", id="order-1", params="boots")
        await test.run_until_idle()
        print((await instance.status()).output)


asyncio.run(main())
""",
}

#: A test of somebody who has Headwater installed, and tests something else.
UNRELATED = """\
import sys


def test_no_harness_was_loaded():
    assert "headwater.streams.harness.pytest_plugin" in sys.modules
    assert "headwater.streams.harness.workflow_test" not in sys.modules
"""

TYPED = """\
from headwater import WorkflowTest
reveal_type(WorkflowTest.advance)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel."""
    return built(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel and its dependencies, and not this tree."""
    return installed(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for name, text in APP.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def test_nothing_is_at_the_top_of_the_wheel_but_headwater(wheel: Path):
    tops = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist()}
    name, version, *_ = wheel.name.split("-")
    assert tops == {"headwater", f"{name}-{version}.dist-info"}


def test_every_file_of_the_rooms_is_in_the_wheel(wheel: Path):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("headwater/")}
    face = {
        f"headwater/{path.name}" for path in (ROOT / "src/headwater").iterdir() if path.is_file()
    }
    assert {"headwater/__init__.pyi", "headwater/py.typed"} <= face
    rooms = {
        f"headwater/{path.relative_to(ROOT)}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == face | rooms


def test_the_source_archive_holds_what_the_wheel_holds_as_plain_files(dist: Path, wheel: Path):
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isfile() for member in members)
    held = {member.name.partition("/src/")[2] for member in members}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("headwater/")}
    assert names <= held


def test_the_command_explains_itself(bare: Path, tmp_path: Path):
    assert "headwater up" in run(bare / "headwater", "--help", cwd=tmp_path)


def test_the_public_face_is_that_of_the_wheel(bare: Path, tmp_path: Path):
    program = "import headwater; print(headwater.__file__, headwater.WorkflowTest.__name__)"
    file, name = run(bare / "python", "-c", program, cwd=tmp_path).split()
    assert Path(file).is_relative_to(bare.parent)
    assert name == "WorkflowTest"


def test_importing_the_public_face_loads_nothing_behind_it(bare: Path, tmp_path: Path):
    program = "import sys, headwater; print([m for m in sys.modules if m.startswith('headwater.')])"
    assert run(bare / "python", "-c", program, cwd=tmp_path) == "[]\n"


def test_an_app_may_have_packages_of_the_same_names_as_our_rooms(bare: Path, app: Path):
    assert run(bare / "python", "app.py", cwd=app) == "['boots', 125]\n"


@pytest.mark.parametrize("name", ["README.md", "unrelated"])
def test_pytest_runs_the_example_as_printed_and_loads_no_harness_unless_asked(
    name: str, bare: Path, tmp_path: Path
):
    if name == "unrelated":
        block = UNRELATED
    else:
        (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text("utf-8"), FENCED)
    (tmp_path / "test_printed.py").write_text(block, "utf-8")
    assert "1 passed" in run(bare / "python", "-m", "pytest", "-q", cwd=tmp_path)


def test_mypy_sees_the_types(bare: Path, tmp_path: Path):
    (tmp_path / "typed.py").write_text(TYPED, "utf-8")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", bare / "python")
    revealed = run(*mypy, "typed.py", cwd=tmp_path)
    assert 'Revealed type is "def (self: headwater.' in revealed
