"""Blobs as files in a folder, and the choice between a folder and a bucket."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headwater.gateway.builtin.blobs.store import (
    BlobNotFound,
    Blobs,
    BlobsUnavailable,
    checked_key,
    checked_prefix,
)

#: Prefix of temporary files; no segment of a key begins with it.
_UNFINISHED: Final = ".new-"


class FolderBlobs:
    """The blobs of a folder, which is created with the first blob.

    A blob is written to a temporary file, synced, and renamed to its path. So a reader never sees a
    partial blob, and an acknowledged blob survives a crash of the machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    async def write(self, key: str, content: bytes, content_type: str, **about: str) -> None:
        """See `Blobs.write`; the content type and `about` are not stored."""
        del content_type, about
        await asyncio.to_thread(self._write, self._path(key), content)

    async def read(self, key: str) -> bytes:
        """See `Blobs.read`."""
        path = self._path(key)
        try:
            return await asyncio.to_thread(path.read_bytes)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise BlobNotFound(f"there is no blob {key} in {self._folder}") from error
        except OSError as error:
            raise _unavailable(error) from error

    async def delete(self, key: str) -> bool:
        """See `Blobs.delete`."""
        return await asyncio.to_thread(self._delete, self._path(key))

    async def delete_prefix(self, prefix: str) -> int:
        """See `Blobs.delete_prefix`."""
        keys = [key async for key in self.keys(prefix)]
        return sum([await self.delete(key) for key in keys])

    async def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """See `Blobs.keys`."""
        for key in await asyncio.to_thread(self._keys, checked_prefix(prefix)):
            yield key

    async def close(self) -> None:
        """Do nothing: no files are kept open."""

    def _path(self, key: str) -> Path:
        return self._folder / checked_key(key)

    def _write(self, path: Path, content: bytes) -> None:
        with _translated_errors():
            changed = self._make_folder(path.parent)
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            for folder in changed:
                _sync(folder)

    def _make_folder(self, folder: Path) -> list[Path]:
        """Create a folder; return the folders with new entries, which must be synced."""
        changed = [folder]
        while not folder.exists():
            folder = folder.parent
            changed.append(folder)
        changed[0].mkdir(parents=True, exist_ok=True)
        return changed

    def _delete(self, path: Path) -> bool:
        with _translated_errors():
            try:
                path.unlink()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
                if path.is_file():
                    raise
                return False
            _sync(path.parent)
            # Remove empty folders. One that another writer uses is not empty, so this stops there.
            with contextlib.suppress(OSError):
                for folder in path.relative_to(self._folder).parents[:-1]:
                    (self._folder / folder).rmdir()
            return True

    def _keys(self, prefix: str) -> list[str]:
        with _translated_errors():
            return [
                path.relative_to(self._folder).as_posix()
                for path in (self._folder / prefix).rglob("*")
                if path.is_file() and not path.name.startswith(_UNFINISHED)
            ]


def _sync(folder: Path) -> None:
    """Sync the entries of a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> BlobsUnavailable:
    return BlobsUnavailable(f"cannot access blobs at {error.filename}: {error.strerror}")


# -- choice of a store

#: Prefix of the address of a bucket.
S3: Final = "s3://"


def blobs_at(address: str) -> Blobs:
    """Return the store at a folder, or at s3://bucket/prefix.

    Raises:
        ValueError: The address of a bucket has no bucket.
    """
    if not address.startswith(S3):
        return FolderBlobs(Path(address))
    # Imported on use, because the library is slow to import.
    from headwater.gateway.builtin.blobs.bucket import BucketBlobs  # noqa: PLC0415

    return BucketBlobs(address)
