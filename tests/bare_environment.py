"""Headwater as its users have it: a wheel, installed into an environment that has nothing else.

It is built from a copy, so that nothing is left in the tree, and installed without a network. What
it depends on comes from the environment that runs the tests, by a `.pth` file.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def built(folder: Path) -> Path:
    """A folder with the source archive and the wheel."""
    copy = folder / "headwater"
    copy.mkdir()
    for name in _BUILT_FROM:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy)
    program = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    run(sys.executable, "-W", "ignore", "-c", program, cwd=copy)
    return copy / "dist"


def installed(wheel: Path, environment: Path) -> Path:
    """The `bin` of an environment that has a wheel and its dependencies, and not this tree."""
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    add(environment / "bin", wheel)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A line of a .pth file is a path; those that lie there, editable installs, are not read.
    dependencies = environment / "dependencies"
    dependencies.mkdir()
    for path in Path(pytest.__file__).parents[1].iterdir():
        if not path.name.startswith(("headwater", "__editable__")):
            (dependencies / path.name).symlink_to(path)
    (packages / "dependencies.pth").write_text(f"{dependencies}\n", "utf-8")
    return environment / "bin"


def add(scripts: Path, what: Path) -> None:
    """Installs a wheel, or what lies in a folder, without a network."""
    pip = (sys.executable, "-m", "pip", "--python", scripts / "python", "--quiet", "install")
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall")
    run(*pip, *alone, what, cwd=scripts, PIP_NO_WARN_SCRIPT_LOCATION="1")
