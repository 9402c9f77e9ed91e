"""Folders that are complete, read-only and shared by processes: code and environments."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

_FILE: Final = 0o444
_PROGRAM: Final = 0o555
_FOLDER: Final = 0o555
_WRITABLE: Final = 0o755
#: Interval between attempts to get a lock. An installation takes seconds.
_LOCK_S: Final = 0.1
_CHUNK_BYTES: Final = 1024 * 1024


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """Hold the lock of a file, which is created: one process at a time.

    The kernel releases it when the process ends.

    Raises:
        OSError: The file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(descriptor):  # noqa: ASYNC110 (another process releases it)
            await asyncio.sleep(_LOCK_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def seal(folder: Path) -> None:
    """Make the content of a folder read-only, and then the folder itself."""
    for path in _entries(folder):
        if path.is_dir() and not path.is_symlink():
            path.chmod(_FOLDER)
        elif not path.is_symlink():
            path.chmod(_PROGRAM if path.stat().st_mode & stat.S_IXUSR else _FILE)
    folder.chmod(_FOLDER)


def remove_sealed(folder: Path) -> None:
    """Remove a folder that may be sealed; ignores files that cannot be removed."""
    if not folder.is_dir():
        return
    for path in (folder, *_entries(folder)):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(PermissionError):  # Of another user.
                path.chmod(_WRITABLE)
    shutil.rmtree(folder, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files of a folder. Ignores files that disappear meanwhile."""
    total = 0
    for path in _entries(folder):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def content_digest(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of all files of a folder, in hex."""
    digest = hashlib.sha256()
    for path in sorted(_entries(folder)):
        if path.is_symlink():
            kind, content = b"l", os.fsencode(path.readlink())
        elif path.is_file():
            kind, content = b"f", _file_digest(path)
        else:
            continue
        name = os.fsencode(path.relative_to(folder))
        digest.update(b"%b%d:%b%d:%b" % (kind, len(name), name, len(content), content))
    return digest.hexdigest()


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()


def _entries(folder: Path) -> Iterator[Path]:
    """Yield all files and folders within a folder, outer ones first. Follows no links."""
    for name, folders, files in os.walk(folder):
        yield from (Path(name, entry) for entry in (*folders, *files))
