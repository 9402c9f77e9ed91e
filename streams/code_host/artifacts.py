"""Artifacts: the code of a deployment, as a zip of an author's, which a wheel is, too.

Nothing that a zip says of itself is believed. What was unpacked is files and folders, all of them
within the folder that was meant, and no more of them than there may be.
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
from headwater.streams.code_host.apps import read_spec
from headwater.streams.code_host.house_app import HOUSE_APP

#: Ten times the largest artifact: what is code does not shrink to less.
UNPACKED_BYTES_MAX: Final = 100 * 1024 * 1024
#: More than the largest app has; each takes a block of the disk, and a moment to make.
ENTRIES_MAX: Final = 10_000
#: Bytes of a name as file systems take them, and of a path beneath any folder.
_NAME_BYTES_MAX: Final = 255
_PATH_BYTES_MAX: Final = 1_024
_PIECE_BYTES: Final = 64 * 1024
_SHOWN: Final = 80
_ENCRYPTED: Final = 0x1
#: How files of a zip may be kept: the others take too much memory to read, or are for nobody.
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
#: What `zipfile` raises of a zip that is none, or torn.
_TORN: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, OSError),
)


class ArtifactInvalid(HeadwaterError):
    """An artifact that cannot be deployed; the message says why."""

    disposition = Disposition.REJECT
    code = ARTIFACT_INVALID


def unpack(artifact: bytes, folder: Path) -> None:
    """Unpacks an artifact into a folder that is there, and empty.

    Errors: ArtifactInvalid, when some of it may be there; OSError, of the disk.
    """
    try:
        zipped = zipfile.ZipFile(io.BytesIO(artifact))
    except _TORN as error:
        raise ArtifactInvalid(f"expected a zip, found what is none: {error}") from error
    with zipped:
        entries = zipped.infolist()
        if len(entries) > ENTRIES_MAX:
            raise ArtifactInvalid(
                f"expected at most {ENTRIES_MAX} files and folders, found {len(entries)}"
            )
        for entry in entries:
            _check(entry)
        if sum(entry.file_size for entry in entries) > UNPACKED_BYTES_MAX:
            raise _too_large()
        left = UNPACKED_BYTES_MAX
        for entry in entries:
            left -= _write(zipped, entry, folder)
            if left < 0:
                raise _too_large()


def check_app(app: str, folder: Path) -> None:
    """Sees that an app is in the artifact that was unpacked into a folder, and not elsewhere.

    Errors: ArtifactInvalid; AppNotLoaded, if it is no name of one.
    """
    module, _ = read_spec(app)
    path = module.split(".")
    if path[0] in sys.stdlib_module_names or path[0] == HOUSE_APP:
        whose = "Headwater" if path[0] == HOUSE_APP else "Python"
        raise ArtifactInvalid(f"expected a module of your own, found {module}, which is {whose}'s")
    place = folder.joinpath(*path)
    if not any(_modules_at(place)):
        there = sorted(each.name for each in folder.iterdir())[:10]
        raise ArtifactInvalid(
            f"expected the module {module} in the artifact, as {'/'.join(path)}.py or "
            f"{'/'.join(path)}/__init__.py, found at its top {', '.join(there) or 'nothing'}"
        )


def _modules_at(place: Path) -> Iterator[Path]:
    """The files that make a module, of Python or compiled."""
    if (place / "__init__.py").is_file():
        yield place
    if place.parent.is_dir():
        found = place.parent.glob(f"{place.name}.*")
        yield from (each for each in found if each.suffix in {".py", ".so"} and each.is_file())


def _check(entry: zipfile.ZipInfo) -> None:
    """Sees that an entry is a file or a folder, within the folder that it is unpacked into.

    Errors: ArtifactInvalid.
    """
    name = entry.orig_filename
    fault = _fault_of(name.removesuffix("/"))
    if fault:
        raise ArtifactInvalid(
            f"expected names within the artifact, found {name[:_SHOWN]!r}, {fault}"
        )
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArtifactInvalid(
            f"expected files and folders, found {name[:_SHOWN]!r}, a link or a device"
        )
    if entry.flag_bits & _ENCRYPTED:
        raise ArtifactInvalid(f"expected what can be read, found {name[:_SHOWN]!r} encrypted")
    if entry.compress_type not in _METHODS:
        raise ArtifactInvalid(
            f"expected files deflated or stored, found {name[:_SHOWN]!r} with the method "
            f"{entry.compress_type}"
        )


def _fault_of(name: str) -> str:
    """What is wrong with the name of an entry; empty if nothing is."""
    parts = name.split("/")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "which is no Unicode"
    if not name.isprintable() or "\\" in name or ":" in name:
        return "with characters that not every system takes"
    if "" in parts or "." in parts or ".." in parts:
        return "which leads elsewhere"
    if max(sizes) > _NAME_BYTES_MAX or sum(sizes) + len(parts) > _PATH_BYTES_MAX:
        return "which is too long"
    return ""


def _write(zipped: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> int:
    """Writes an entry; how many bytes it has.

    Errors: ArtifactInvalid.
    """
    name = entry.orig_filename
    place = folder / name
    try:
        if name.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            return 0
        place.parent.mkdir(parents=True, exist_ok=True)
        file = place.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ArtifactInvalid(
            f"expected each name once, found {name[:_SHOWN]!r} twice, or as a file and a folder"
        ) from error
    written = 0
    with file:
        for piece in _pieces(zipped, entry):
            written += file.write(piece)
    return written


def _pieces(zipped: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """What a file holds: as much as its entry says, or it is torn.

    Errors: ArtifactInvalid.
    """
    try:
        with zipped.open(entry) as reading:
            while piece := reading.read(_PIECE_BYTES):
                yield piece
    except _TORN as error:
        raise ArtifactInvalid(
            f"expected to read {entry.orig_filename[:_SHOWN]!r}, found it torn: {error}"
        ) from error


def _too_large() -> ArtifactInvalid:
    return ArtifactInvalid(
        f"expected at most {UNPACKED_BYTES_MAX // 1024**2} MiB once it is unpacked, found more"
    )
