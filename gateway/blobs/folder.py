"""Blobs as files of a folder.

A blob is written beside its place, made durable, and then put there by a rename: nobody ever reads
half of one, and what was acknowledged survives a crash of the machine.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headwater.gateway.blobs.store import (
    BlobNotFound,
    BlobsUnavailable,
    checked_key,
    checked_prefix,
)

#: What is being written begins with it, as no segment of a key does.
_UNFINISHED: Final = ".new-"


class FolderBlobs:
    """The blobs of a folder, which is made when the first is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    async def write(self, key: str, content: bytes, content_type: str, **about: str) -> None:
        """As `Blobs.write`; what a blob is is known by whoever wrote it, and not kept."""
        del content_type, about
        await asyncio.to_thread(self._write, self._place(key), content)

    async def read(self, key: str) -> bytes:
        """As `Blobs.read`."""
        place = self._place(key)
        try:
            return await asyncio.to_thread(place.read_bytes)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise BlobNotFound(f"expected a blob {key}, found none in {self._folder}") from error
        except OSError as error:
            raise _unavailable(error) from error

    async def delete(self, key: str) -> bool:
        """As `Blobs.delete`."""
        return await asyncio.to_thread(self._delete, self._place(key))

    async def delete_prefix(self, prefix: str) -> int:
        """As `Blobs.delete_prefix`."""
        keys = [key async for key in self.keys(prefix)]
        return sum([await self.delete(key) for key in keys])

    async def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """As `Blobs.keys`."""
        for key in await asyncio.to_thread(self._keys, checked_prefix(prefix)):
            yield key

    async def close(self) -> None:
        """Nothing is open."""

    def _place(self, key: str) -> Path:
        return self._folder / checked_key(key)

    def _write(self, place: Path, content: bytes) -> None:
        with _edge():
            made = self._make(place.parent)
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=place.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(place)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            for folder in made:
                _sync(folder)

    def _make(self, folder: Path) -> list[Path]:
        """Makes a folder; gives those whose entries are new, which have to be made durable."""
        changed = [folder]
        while not folder.exists():
            folder = folder.parent
            changed.append(folder)
        changed[0].mkdir(parents=True, exist_ok=True)
        return changed

    def _delete(self, place: Path) -> bool:
        with _edge():
            try:
                place.unlink()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
                if place.is_file():
                    raise
                return False
            _sync(place.parent)
            # Folders are there for their files alone; one that somebody writes to now stays.
            with contextlib.suppress(OSError):
                for folder in place.relative_to(self._folder).parents[:-1]:
                    (self._folder / folder).rmdir()
            return True

    def _keys(self, prefix: str) -> list[str]:
        with _edge():
            return [
                place.relative_to(self._folder).as_posix()
                for place in (self._folder / prefix).rglob("*")
                if place.is_file() and not place.name.startswith(_UNFINISHED)
            ]


def _sync(folder: Path) -> None:
    """Makes the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _edge() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> BlobsUnavailable:
    return BlobsUnavailable(
        f"expected a folder to keep blobs in, found {error.filename}: {error.strerror}"
    )
