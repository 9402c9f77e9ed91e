"""Artifacts: the code of a deployment as a zip or wheel.

The metadata in the zip is not trusted. Unpacking creates only files and folders, all within the
target folder, and no more of them than permitted.
"""

import io
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.failures import ARTIFACT_INVALID
from headwater.streams.code_host.apps import parse_app_spec
from headwater.streams.code_host.builtin_app import BUILTIN_APP

#: Ten times the largest artifact. Code does not compress better than that.
UNPACKED_BYTES_MAX: Final = 100 * 1024 * 1024
#: More than the largest app has. A file uses a disk block and takes time to create.
ENTRIES_MAX: Final = 10_000
#: Limits of file systems for a name, and for a path below any folder.
_NAME_BYTES_MAX: Final = 255
_PATH_BYTES_MAX: Final = 1_024
_CHUNK_BYTES: Final = 64 * 1024
#: Characters of a name in messages.
_SHOWN: Final = 80
_ENCRYPTED: Final = 0x1
#: Begins an entry of the directory of a zip.
_ENTRY: Final = b"PK\x01\x02"
#: Compression methods that are accepted. Others need too much memory to read, or are rare.
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
#: Exceptions that `zipfile` raises for a file that is not a zip, or is damaged.
_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, OSError),
)


class ArtifactInvalid(HeadwaterError):
    """An artifact cannot be deployed. The message has the reason."""

    disposition = Disposition.REJECT
    code = ARTIFACT_INVALID


def unpack(artifact: bytes, folder: Path) -> None:
    """Unpack an artifact into an existing empty folder.

    Raises:
        ArtifactInvalid: The artifact is invalid. Part of it may have been written.
        OSError: The disk failed.
    """
    # Counted before `zipfile` makes an object of every entry. Zips in a zip count, too.
    if artifact.count(_ENTRY) > ENTRIES_MAX:
        raise _too_many()
    try:
        zipped = zipfile.ZipFile(io.BytesIO(artifact))
    except _DAMAGED as error:
        raise ArtifactInvalid(f"expected a zip, found another file: {error}") from error
    with zipped:
        entries = zipped.infolist()
        for entry in entries:
            _check(entry)
        if sum(entry.file_size for entry in entries) > UNPACKED_BYTES_MAX:
            raise _too_large()
        remaining = UNPACKED_BYTES_MAX
        for entry in entries:
            remaining -= _write(zipped, entry, folder)
            if remaining < 0:
                raise _too_large()


def _too_many() -> ArtifactInvalid:
    return ArtifactInvalid(f"expected at most {ENTRIES_MAX} files and folders, found more")


def check_app(app: str, folder: Path) -> None:
    """Check that an unpacked artifact contains an app, and that no other package provides it.

    Raises:
        ArtifactInvalid: It does not contain the app.
        AppNotLoaded: The name of the app is invalid.
    """
    module, _ = parse_app_spec(app)
    path = module.split(".")
    if path[0] in sys.stdlib_module_names or path[0] == BUILTIN_APP:
        owner = "Headwater" if path[0] == BUILTIN_APP else "Python"
        raise ArtifactInvalid(f"expected a module of your own, found {module}, which is {owner}'s")
    base = folder.joinpath(*path)
    if not any(_modules_at(base)):
        names = sorted(entry.name for entry in folder.iterdir())[:10]
        raise ArtifactInvalid(
            f"expected the module {module} in the artifact, as {'/'.join(path)}.py or "
            f"{'/'.join(path)}/__init__.py, found at its top {', '.join(names) or 'nothing'}"
        )


def _modules_at(base: Path) -> Iterator[Path]:
    """Yield the files that provide a module, whether Python source or compiled."""
    if (base / "__init__.py").is_file():
        yield base
    if base.parent.is_dir():
        candidates = base.parent.glob(f"{base.name}.*")
        yield from (
            candidate
            for candidate in candidates
            if candidate.suffix in {".py", ".so"} and candidate.is_file()
        )


def _check(entry: zipfile.ZipInfo) -> None:
    """Check that an entry is a file or a folder within the target folder.

    Raises:
        ArtifactInvalid: It is not.
    """
    name = entry.orig_filename
    problem = _name_problem(name.removesuffix("/"))
    if problem:
        raise ArtifactInvalid(
            f"expected names within the artifact, found {name[:_SHOWN]!r}, {problem}"
        )
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArtifactInvalid(
            f"expected files and folders, found {name[:_SHOWN]!r}, a link or a device"
        )
    if entry.flag_bits & _ENCRYPTED:
        raise ArtifactInvalid(f"expected readable files, found {name[:_SHOWN]!r} encrypted")
    if entry.compress_type not in _METHODS:
        raise ArtifactInvalid(
            f"expected files deflated or stored, found {name[:_SHOWN]!r} with the method "
            f"{entry.compress_type}"
        )


def _name_problem(name: str) -> str:
    """Return what is wrong with the name of an entry, or an empty text."""
    parts = name.split("/")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "which is not valid Unicode"
    if not name.isprintable() or "\\" in name or ":" in name:
        return "with characters that some file systems refuse"
    if "" in parts or "." in parts or ".." in parts:
        return "which is outside of it"
    if max(sizes) > _NAME_BYTES_MAX or sum(sizes) + len(parts) > _PATH_BYTES_MAX:
        return "which is too long"
    return ""


def _write(zipped: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> int:
    """Write an entry and return its size in bytes.

    Raises:
        ArtifactInvalid: The entry is damaged, or its path is used twice.
    """
    name = entry.orig_filename
    path = folder / name
    try:
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ArtifactInvalid(
            f"expected each name once, found {name[:_SHOWN]!r} twice, or as a file and a folder"
        ) from error
    written = 0
    with file:
        for chunk in _chunks(zipped, entry):
            written += file.write(chunk)
    return written


def _chunks(zipped: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a file in chunks.

    Raises:
        ArtifactInvalid: The file is damaged; `zipfile` checks its size and checksum.
    """
    try:
        with zipped.open(entry) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except _DAMAGED as error:
        raise ArtifactInvalid(
            f"expected to read {entry.orig_filename[:_SHOWN]!r}, found it damaged: {error}"
        ) from error


def _too_large() -> ArtifactInvalid:
    return ArtifactInvalid(
        f"expected at most {UNPACKED_BYTES_MAX // 1024**2} MiB once it is unpacked, found more"
    )
