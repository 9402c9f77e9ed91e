"""Artifacts, made of the folder that an app lies in: the same folder is the same bytes anywhere.

A deployment is named by its bytes. So files lie in the order of their names, without times, owners
and modes, and stored as they are: what deflates differs from one machine to another.
"""

import io
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: As the gateway takes them.
ARTIFACT_BYTES_MAX: Final = 10 * 1024 * 1024
_MODE: Final = stat.S_IFREG | 0o644
_UNIX: Final = 3
#: What marks the folder of a virtual environment.
_ENVIRONMENT: Final = "pyvenv.cfg"
#: What Python and its tools leave beside code, and nobody runs.
_LEFT: Final = ("__pycache__", ".pyc", ".pyo", ".egg-info")
_SHOWN: Final = 3


def artifact_of(place: str | os.PathLike[str]) -> bytes:
    """The artifact of a folder, which is zipped, or of a file, which is one.

    Errors: ValueError, OSError.
    """
    path = Path(place)
    return zipped(path) if path.is_dir() else path.read_bytes()


def zipped(folder: Path) -> bytes:
    """A folder as an artifact; without what is hidden, caches and virtual environments.

    Errors: ValueError, OSError.
    """
    found = sorted((path.relative_to(folder).as_posix(), path) for path in _files(folder))
    if not any(name.endswith((".py", ".so")) for name, _ in found):
        raise ValueError(f"expected modules of Python in {folder}, found none")
    sizes = {name: path.stat().st_size for name, path in found}
    if sum(sizes.values()) > ARTIFACT_BYTES_MAX:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
        raise ValueError(
            f"expected at most {ARTIFACT_BYTES_MAX // 1024**2} MiB in {folder}, found "
            f"{sum(sizes.values())} bytes; the largest are {', '.join(largest)}"
        )
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, path in found:
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = _UNIX, _MODE << 16
            archive.writestr(entry, path.read_bytes())
    return written.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it.

    Errors: ValueError.
    """
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name.endswith(_LEFT):
            continue
        if not path.name.isprintable():  # Also what is not UTF-8.
            raise ValueError(f"expected names in UTF-8, found {os.fsencode(path)!r}")
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ValueError(f"expected files and folders, found {path}, a link or a device")
        if path.is_file():
            yield path
        elif not (path / _ENVIRONMENT).exists():
            yield from _files(path)
