"""Temporary folders of processes: which are removed, and when."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headwater.gateway.local.temporary_folder import temporary_folder

PREFIX = "headwater-test-"
PROGRAM = f"""
import signal
from headwater.gateway.local.temporary_folder import temporary_folder
with temporary_folder({PREFIX!r}) as folder:
    (folder / "content").touch()
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_no_other(tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        left = Path(running.stdout.readline().strip())
        with temporary_folder(PREFIX) as own:
            assert left.parent == own.parent == tmp_path
            assert (left / "content").exists(), "it is used"
        assert not own.exists()
        running.send_signal(signal.SIGKILL)
    assert (left / "content").exists()
    with temporary_folder(PREFIX) as own:
        assert sorted(tmp_path.iterdir()) == sorted([other, own])


def test_what_is_no_folder_of_ours_stays(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{PREFIX}file").touch()
    with temporary_folder(PREFIX):
        pass
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_another_process_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make, made = tempfile.mkdtemp, []

    def mkdtemp(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with temporary_folder(PREFIX) as folder:
        assert str(folder) == made[1]
        assert folder.exists()
    assert not list(tmp_path.iterdir())
