"""Artifacts: an app's folder as a zip whose bytes are the same on every machine.

A deployment is named by the hash of its bytes. So files are ordered by name, without times, owners
and modes, and stored uncompressed: deflate's output differs between machines.
"""

import io
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Limit of the gateway.
ARTIFACT_BYTES_MAX: Final = 10 * 1024 * 1024
_MODE: Final = stat.S_IFREG | 0o644
_UNIX: Final = 3
#: File that marks a virtual environment.
_ENVIRONMENT: Final = "pyvenv.cfg"
#: What Python and its tools write next to code, and a deployment does not need.
_IGNORED_SUFFIXES: Final = ("__pycache__", ".pyc", ".pyo", ".egg-info")
_SHOWN: Final = 3


def artifact_of(source: str | os.PathLike[str]) -> bytes:
    """Return the artifact of a folder, which is zipped, or the content of a file.

    Raises:
        ValueError, OSError: The folder or file cannot be deployed, or not be read.
    """
    path = Path(source)
    return zipped(path) if path.is_dir() else path.read_bytes()


def zipped(folder: Path) -> bytes:
    """Zip a folder without hidden files, caches and virtual environments.

    Raises:
        ValueError, OSError: The folder cannot be deployed, or not be read.
    """
    files = sorted((path.relative_to(folder).as_posix(), path) for path in _files(folder))
    if not any(name.endswith((".py", ".so")) for name, _ in files):
        raise ValueError(f"expected modules of Python in {folder}, found none")
    sizes = {name: path.stat().st_size for name, path in files}
    if sum(sizes.values()) > ARTIFACT_BYTES_MAX:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
        raise ValueError(
            f"expected at most {ARTIFACT_BYTES_MAX // 1024**2} MiB in {folder}, found "
            f"{sum(sizes.values())} bytes; the largest are {', '.join(largest)}"
        )
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, path in files:
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = _UNIX, _MODE << 16
            archive.writestr(entry, path.read_bytes())
    return written.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of its subfolders.

    Raises:
        ValueError: A name is not UTF-8, or a file is a link or device.
    """
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name.endswith(_IGNORED_SUFFIXES):
            continue
        if not path.name.isprintable():  # Also what is not UTF-8.
            raise ValueError(f"expected names in UTF-8, found {os.fsencode(path)!r}")
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ValueError(f"expected files and folders, found {path}, a link or a device")
        if path.is_file():
            yield path
        elif not (path / _ENVIRONMENT).exists():
            yield from _files(path)
