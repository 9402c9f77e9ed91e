"""Headwater as its users have it: a wheel, installed into an environment that has nothing else.

It is built from a copy, so that nothing is left in the tree, and installed without a network. What
it depends on comes from the environment that runs the tests, by a `.pth` file.
"""

import email
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("schemas", "processors", "streams", "projections", "gateway")
_BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src", *ROOMS)


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """The output of a command that must succeed, in an environment that knows no other Python."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command, cwd=cwd, env=environment | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def built(folder: Path, kinds: Sequence[str] = ("sdist", "wheel")) -> Path:
    """A folder with the source archive and the wheel, or with one of them."""
    copy = folder / "headwater"
    copy.mkdir()
    for name in _BUILT_FROM:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy)
    builds = "; ".join(f"b.build_{kind}('dist')" for kind in kinds)
    program = f"from setuptools import build_meta as b; {builds}"
    run(sys.executable, "-W", "ignore", "-c", program, cwd=copy)
    return copy / "dist"


def installed(wheel: Path, environment: Path, *extras: str) -> Path:
    """The `bin` of an environment that has a wheel and its dependencies, and not this tree.

    Of the dependencies it has all that are here; where extras are named, only those that come with
    them, "" standing for none.
    """
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    add(environment / "bin", wheel)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A line of a .pth file is a path; those that lie there, editable installs, are not read.
    dependencies = environment / "dependencies"
    dependencies.mkdir()
    here = Path(pytest.__file__).parents[1]
    names = {path.name for path in here.iterdir()} if not extras else _of_extras(wheel, extras)
    for name in names:
        if not name.startswith(("headwater", "__editable__")):
            (dependencies / name).symlink_to(here / name)
    (packages / "dependencies.pth").write_text(f"{dependencies}\n", "utf-8")
    return environment / "bin"


def _of_extras(wheel: Path, extras: Sequence[str]) -> set[str]:
    """The files and folders of all packages that a wheel needs with extras."""
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    needs = email.message_from_string(text).get_all("requires-dist", [])
    result: dict[str, set[str]] = {}
    left = [(need, extra) for need in needs for extra in extras]
    while left:
        requirement, extra = Requirement(left[-1][0]), left.pop()[1]
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "headwater":
            left += [(need, inner) for need in needs for inner in requirement.extras]
            continue
        had = result.setdefault(requirement.name, set())
        for inner in {"", *requirement.extras} - had:
            had.add(inner)
            left += [(item, inner) for item in distribution(requirement.name).requires or ()]
    files = (file for name in result for file in distribution(name).files or ())
    return {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}


def add(scripts: Path, what: Path) -> None:
    """Installs a wheel, or what lies in a folder, without a network."""
    pip = (sys.executable, "-m", "pip", "--python", scripts / "python", "--quiet", "install")
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall")
    run(*pip, *alone, what, cwd=scripts, PIP_NO_WARN_SCRIPT_LOCATION="1")
