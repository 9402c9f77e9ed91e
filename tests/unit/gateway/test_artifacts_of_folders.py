"""Folders become artifacts: the same files are the same bytes, and only what is code's goes."""

import io
import os
import socket
import zipfile
from pathlib import Path

import pytest

from headwater.gateway.client import deployments
from headwater.gateway.client.deployments import artifact_of, zipped

FILES = {
    "orders.py": b"A = 1",
    "shop/__init__.py": b"",
    "shop/prices.json": b"{}",
    "shop/größe.sql": b"select 1",
    "a b/c.txt": b"\0\xff",
}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        position = folder / name
        position.parent.mkdir(parents=True, exist_ok=True)
        position.write_bytes(content)
    return folder


def held(artifact: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(artifact)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_same_files_are_the_same_bytes(tmp_path: Path):
    one = written(tmp_path / "one", FILES)
    two = written(tmp_path / "two", dict(reversed(FILES.items())))
    for number, path in enumerate(sorted(two.rglob("*"))):
        os.utime(path, (number * 1e8, number * 1e8))
        path.chmod(0o700)
    assert zipped(one) == zipped(two) == artifact_of(str(one))
    assert held(zipped(one)) == FILES
    (two / "orders.py").write_bytes(b"A = 2")
    assert zipped(one) != zipped(two)


def test_what_is_no_part_of_an_app_stays_where_it_is(tmp_path: Path):
    others = [
        *(".env", ".git/config", "shop/.secret/key.py", ".headwater/data", "orders.pyc"),
        *("__pycache__/orders.cpython-311.pyc", "shop/__pycache__/x.py", "shop.egg-info/PKG-INFO"),
        *("venv/pyvenv.cfg", "venv/lib/python3.11/site-packages/click.py"),
    ]
    written(tmp_path, FILES | dict.fromkeys(others, b"not sent"))
    assert held(zipped(tmp_path)) == FILES


def test_a_file_is_an_artifact_already(tmp_path: Path):
    file = tmp_path / "shop.whl"
    file.write_bytes(b"whatever it is")
    assert artifact_of(file) == b"whatever it is"
    with pytest.raises(FileNotFoundError):
        artifact_of(tmp_path / "nothing")


def test_a_folder_without_modules_is_none(tmp_path: Path):
    written(tmp_path, {"readme.txt": b"", ".hidden.py": b""})
    with pytest.raises(ValueError, match="expected modules of Python in"):
        zipped(tmp_path)


def test_what_would_lie_elsewhere_is_refused(tmp_path: Path):
    written(tmp_path, {"orders.py": b""})
    for position, target in (("link.py", "orders.py"), ("linked", "."), ("broken", "nowhere")):
        (tmp_path / position).symlink_to(tmp_path / target)
        with pytest.raises(ValueError, match=f"{position}, a link or a device"):
            zipped(tmp_path)
        (tmp_path / position).unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(ValueError, match="s, a link or a device"):
            zipped(tmp_path)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path):
    written(tmp_path, {"orders.py": b""})
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_bytes(b"")
    with pytest.raises(ValueError, match="expected names in UTF-8"):
        zipped(tmp_path)


def test_what_is_too_large_is_told_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deployments, "ARTIFACT_BYTES_MAX", 1024 * 1024)
    written(tmp_path, FILES | {"model.bin": b"\0" * 1024 * 1024, "b.bin": b"\0" * 9})
    with pytest.raises(ValueError, match=r"expected at most 1 MiB .* model.bin, b.bin"):
        zipped(tmp_path)


def test_requirements_are_added_to_a_wheel_in_the_same_way_everywhere(tmp_path: Path):
    file = tmp_path / "requirements.txt"
    file.write_bytes(b"a==1 --hash=sha256:0")
    wheel = zipped(written(tmp_path / "code", FILES | {".python-version": b"3.13"}))
    made = artifact_of(wheel, file)
    assert held(made) == FILES | {".python-version": b"3.13", "requirements.txt": file.read_bytes()}
    assert made == artifact_of(wheel, file)
    with pytest.raises(ValueError, match=r"without requirements\.txt"):
        artifact_of(made, file)
    with pytest.raises(ValueError, match="expected a zip or wheel"):
        artifact_of(b"not a zip", file)
