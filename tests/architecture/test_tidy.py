"""The system is tidy: which packages there are, how large things may be, what they are not called.

import-linter checks who imports whom; these are the rules that it cannot say.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = frozenset({"schemas", "processors", "streams", "projections", "gateway"})
FACE = ROOT / "src" / "headwater"

#: Beyond these a module has two ideas, and a function two jobs. Docstrings do not count.
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60

#: Names that say nothing of what is inside, so that anything ends up there.
BANNED_NAMES = frozenset(
    {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")

#: Beside the packages: folders that hold Python and are no part of what is installed.
OTHER_FOLDERS = frozenset({"tests", "docs", "benchmarks"})


def _modules() -> list[Path]:
    return sorted(FACE.glob("*.py")) + [
        path for package in sorted(PACKAGES) for path in sorted((ROOT / package).rglob("*.py"))
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


MODULES = pytest.mark.parametrize("path", _modules(), ids=_name)


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its decorators and its docstring."""
    first = function.body[0]
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def test_there_are_five_packages_and_one_face():
    # import-linter's layers pass over a package that they do not name.
    folders = {
        path.parent.name
        for path in ROOT.glob("*/*.py")
        if not path.parent.name.startswith(".") and path.parent.name not in OTHER_FOLDERS
    }
    assert folders == PACKAGES


def test_what_is_installed_is_one_package_whose_rooms_are_links():
    assert [path.name for path in FACE.parent.iterdir() if not path.name.endswith(".egg-info")] == [
        FACE.name
    ]
    links = {path.name: path.resolve() for path in FACE.iterdir() if path.is_symlink()}
    assert links == {package: ROOT / package for package in PACKAGES}


@MODULES
def test_a_room_is_imported_by_its_full_name(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        else:
            continue
        for name in names:
            assert name.split(".")[0] not in PACKAGES, f"{_name(path)}:{node.lineno}: {name}"
            # The demo is written as its readers would write it.
            assert name != "headwater" or "demo" in path.parts, (
                f"{_name(path)}:{node.lineno}: expected no import of the public face"
            )


def test_every_folder_with_modules_is_a_package():
    for path in _modules():
        if path.parent != FACE:
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_the_face_lists_each_name_once():
    stub = ast.parse((FACE / "__init__.pyi").read_text(encoding="utf-8"))
    imported = [
        name.name for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names
    ]
    assert sorted(imported) == sorted(headwater.__all__)
    for name in imported:
        assert getattr(headwater, name) is not None


@MODULES
def test_a_module_is_short(path: Path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_MODULE_LINES, f"{_name(path)} has {lines} lines"


@MODULES
def test_a_function_is_short(path: Path):
    for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
        lines = _lines(function)
        assert lines <= MAX_FUNCTION_LINES, (
            f"{_name(path)}:{function.lineno}: {function.name} has {lines} lines"
        )


@MODULES
def test_a_name_says_what_is_inside(path: Path):
    parts = {part.removeprefix("_") for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & BANNED_NAMES, f"{_name(path)}: expected a noun that says what is inside"


@MODULES
def test_nothing_is_left_unfinished(path: Path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        assert not UNFINISHED.search(line), f"{_name(path)}:{number}: {line.strip()}"


@MODULES
def test_every_module_opens_with_a_docstring(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), f"{_name(path)}: expected a docstring"


@pytest.mark.parametrize(
    "path",
    [path for path in _modules() if path.relative_to(ROOT).parts[0] in ("schemas", "processors")],
    ids=_name,
)
def test_the_core_awaits_nothing(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not isinstance(
            node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
        ), f"{_name(path)}: expected no await in the core"


def test_every_client_of_kafka_is_made_of_one_setting():
    """What gives a client the addresses gives it TLS and SASL, too."""
    who = {_name(path) for path in _modules() if "bootstrap_servers" in path.read_text("utf-8")}
    assert who == {"streams/kafka/cluster.py"}


def test_the_rules_catch_what_they_are_for():
    long = "def f():\n    '''Doc\n    string.'''\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    (function,) = _functions(ast.parse(long))
    assert _lines(function) == MAX_FUNCTION_LINES + 1
    assert UNFINISHED.search("# TODO: later")
    assert not UNFINISHED.search("# methodology")
