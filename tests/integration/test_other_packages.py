"""Headwater beside current packages of others, and on Alpine. Needs uv and an index of packages."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.bare_environment import ROOT

UV = shutil.which("uv")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(UV is None, reason="uv is not installed: pip install uv"),
]


def uv(*arguments: str | Path) -> None:
    subprocess.run([str(UV), *arguments], check=True)


@pytest.mark.parametrize("package", ["instructor", "crewai", "semgrep"])
def test_the_package_can_be_installed_beside_a_current(package: str, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    uv("venv", "--quiet", tmp_path / "venv")
    uv("pip", "install", "--quiet", "--python", python, ROOT, package)
    uv("pip", "check", "--quiet", "--python", python)
    program = f"import {package}, headwater; print(headwater.Client.__name__)"
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "Client\n"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_package_can_be_resolved_for_alpine(machine: str, tmp_path: Path) -> None:
    platform = ("--python-platform", f"{machine}-unknown-linux-musl", "--python-version", "3.11")
    locked = tmp_path / "requirements.txt"
    uv("pip", "compile", "--quiet", *platform, ROOT / "pyproject.toml", "--output-file", locked)
    assert "httpx2==" in locked.read_text()
