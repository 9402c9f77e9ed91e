"""The wheel, installed into a bare environment, is all that a user needs."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from headwater.gateway.cli.main import EXTRAS
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

#: A graph with an expression.
GRAPH = """{"name": "g", "initialNodeRef": "a", "transitions": [],
 "nodes": [{"ref": "a", "task": "noop", "inputMapping": {"x": "input.y + 1"}}]}"""

CLIENT = """
import asyncio

from headwater import Client, ConnectionFailedError


async def main():
    async with Client("http://127.0.0.1:1/api/workflows", retries=0) as client:
        try:
            await client.workflow("order").create(id="order-1")
        except ConnectionFailedError as error:
            print(type(error).__name__)


asyncio.run(main())
"""

#: All that the parts import, which they do when they are started.
PARTS = f"""
import ast, sys
from importlib import import_module
import headwater.gateway.cli.main as cli

for node in ast.walk(ast.parse(open(cli.__file__).read())):
    if isinstance(node, ast.ImportFrom) and not node.module.endswith(".up"):
        import_module(node.module)
print([name for name in {EXTRAS["local"]!r} if name in sys.modules])
"""

#: A line of what mypy says: number, kind, and the rest.
FOUND_BY_MYPY = re.compile(r"^typed\.py:(\d+): (note|error): (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel."""
    return built(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (result,) = dist.glob("*.whl")
    return result


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel and its dependencies, and not this tree."""
    return installed(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def small(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that `pip install headwater` makes, without any extra."""
    return installed(wheel, tmp_path_factory.mktemp("small"), "")


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
    package = ROOT / "src/headwater"
    monitoring = {
        f"headwater/{path.relative_to(package)}" for path in (package / "monitoring").glob("*.py")
    }
    assert names == face | monitoring | rooms


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


def test_mypy_sees_the_types_of_all_that_authors_touch(bare: Path, tmp_path: Path):
    app = (ROOT / "tests/apps/typed.py").read_text("utf-8")
    (tmp_path / "typed.py").write_text(app, "utf-8")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", bare / "python")
    done = subprocess.run(
        [*mypy, "typed.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    result: dict[int, str] = {}
    for line, kind, said in FOUND_BY_MYPY.findall(done.stdout):
        code = said.rpartition("[")[2].rstrip("]")
        revealed = re.sub(r"\b(headwater|builtins|typed)\.([\w.]+\.)?", "", said.partition('"')[2])
        revealed = re.sub(r"TypedDict\((\w+), \{[^}]*\}\)", r"\1", revealed.rstrip('"'))
        result.setdefault(int(line), f"no {code}" if kind == "error" else f"is {revealed}")
    expected = {
        number: line.rpartition("  # ")[2]
        for number, line in enumerate(app.splitlines(), 1)
        if "  # is " in line or "  # no " in line
    }
    assert result == expected


def test_without_extras_there_is_no_java_postgres_or_faust_and_workflows_are_tested(
    small: Path, app: Path
):
    (packages,) = small.parent.glob("dependencies")
    there = {path.name for path in packages.iterdir()}
    assert {"httpx2", "click", "msgspec"} <= there
    assert there.isdisjoint(module for modules in EXTRAS.values() for module in modules)
    assert run(small / "python", "app.py", cwd=app) == "['boots', 125]\n"
    assert run(small / "python", "-c", CLIENT, cwd=app) == "ConnectionFailedError\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("workflows list", "http://127.0.0.1:1"),
        ("instances get order/o-1", "http://127.0.0.1:1"),
        ("trace X", "http://127.0.0.1:1"),
        ("graph validate graph.json", "pip install 'headwater[graphs]'"),
        ("serve", "pip install 'headwater[server]'"),
        ("worker --app app", "pip install 'headwater[server]'"),
        ("up", "pip install 'headwater[local]'"),
    ],
)
def test_without_extras_commands_ask_over_http_or_say_which_extra_is_missing(
    command: str, said: str, small: Path, tmp_path: Path
):
    (tmp_path / "graph.json").write_text(GRAPH, "utf-8")
    done = subprocess.run(
        [small / "headwater", *command.split()],
        cwd=tmp_path,
        env={"HEADWATER_PORT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_extra_server_has_all_that_the_parts_load_and_no_server_of_one_machine(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
):
    server = installed(wheel, tmp_path_factory.mktemp("server"), "server")
    assert run(server / "python", "-c", PARTS, cwd=server) == "[]\n"
