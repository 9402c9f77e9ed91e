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
OTHER_FOLDERS = frozenset({"tests", "deploy", "docs", "benchmarks"})

Modules = list[tuple[str, str, ast.Module]]


def _modules() -> list[Path]:
    return sorted([*FACE.glob("*.py"), *FACE.glob("monitoring/*.py")]) + [
        path for package in sorted(PACKAGES) for path in sorted((ROOT / package).rglob("*.py"))
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Each module of the packages: its path below the root, its text, and what that parses to."""
    texts = [(_name(path), path.read_text(encoding="utf-8")) for path in _modules()]
    return [(name, text, ast.parse(text)) for name, text in texts]


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


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the name of each module that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)


def test_a_room_is_imported_by_its_full_name(modules: Modules):
    wrong = [
        f"{path}:{line}: {name}"
        for path, _, tree in modules
        for line, name in _imports(tree)
        if name.split(".")[0] in PACKAGES
        # The demo is written as its readers would write it.
        or (name == "headwater" and "demo" not in path.split("/"))
    ]
    assert not wrong, "expected full names, and no import of the public face"


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


def test_a_module_is_short(modules: Modules):
    lines = {path: len(text.splitlines()) for path, text, _ in modules}
    assert not {path: many for path, many in lines.items() if many > MAX_MODULE_LINES}


def test_a_function_is_short(modules: Modules):
    long = [
        f"{path}:{function.lineno}: {function.name} has {_lines(function)} lines"
        for path, _, tree in modules
        for function in _functions(tree)
        if _lines(function) > MAX_FUNCTION_LINES
    ]
    assert not long


def test_a_name_says_what_is_inside(modules: Modules):
    for path, *_ in modules:
        parts = {part.removeprefix("_") for part in Path(path).with_suffix("").parts}
        assert not parts & BANNED_NAMES, f"{path}: expected a noun that says what is inside"


def test_nothing_is_left_unfinished(modules: Modules):
    left = [
        f"{path}:{number}: {line.strip()}"
        for path, text, _ in modules
        for number, line in enumerate(text.splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not left


def test_every_module_opens_with_a_docstring(modules: Modules):
    assert not [path for path, _, tree in modules if tree.body and not ast.get_docstring(tree)]


def test_the_core_awaits_nothing(modules: Modules):
    awaiting = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    assert not [
        f"{path}:{node.lineno}"
        for path, _, tree in modules
        if path.startswith(("schemas/", "processors/"))
        for node in ast.walk(tree)
        if isinstance(node, awaiting)
    ]


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
