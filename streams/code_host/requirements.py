"""Requirements of a deployment: pinned packages with hashes, in requirements.txt.

The file is read before an installer gets it. Only pins with hashes are accepted, so that the same
file installs the same packages on every machine, and its digest identifies the environment.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from headwater.streams.code_host.artifacts import ArtifactInvalid
from headwater.streams.code_host.library import AUTHOR_LIBRARY, HOST_PACKAGES

REQUIREMENTS: Final = "requirements.txt"
#: A pin with the hashes of the wheels of all platforms has some kilobytes.
_BYTES_MAX: Final = 4 * 1024 * 1024
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
#: Characters of a line in messages.
_SHOWN: Final = 80
_COMMAND: Final = "uv pip compile --generate-hashes pyproject.toml -o requirements.txt"


class Pin(NamedTuple):
    """A package of one version.

    Attributes:
        requirement: What is installed, as `name==version` with extras and marker.
        hashes: Hashes of the files that may be installed.
        line: Line of the file, from 1.
    """

    requirement: Requirement
    hashes: tuple[str, ...]
    line: int

    @property
    def name(self) -> str:
        """The normalized name of the package."""
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        """The version."""
        (specifier,) = self.requirement.specifier
        return specifier.version

    @property
    def applies(self) -> bool:
        """Whether the package is installed on this platform and this Python."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate()

    @property
    def text(self) -> str:
        """The pin as a line of a file for an installer."""
        return " ".join((str(self.requirement), *(f"--hash={digest}" for digest in self.hashes)))


class Requirements(NamedTuple):
    """The pins of a file, without Headwater itself."""

    pins: tuple[Pin, ...]

    @property
    def text(self) -> str:
        """The file for an installer: the same for the same pins, whatever their order."""
        return "".join(sorted(f"{pin.text}\n" for pin in self.pins))

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        """The pins without hashes, by name."""
        return tuple(sorted(str(pin.requirement) for pin in self.pins))

    @property
    def versions(self) -> dict[str, str]:
        """The versions that are installed here, by name."""
        return {pin.name: pin.version for pin in self.pins if pin.applies}


def requirements_in(folder: Path) -> Requirements | None:
    """Return the requirements of an unpacked artifact; None if it has none.

    Raises:
        ArtifactInvalid: A line has no pin or no hash, or the host does not support its version.
    """
    path = folder / REQUIREMENTS
    if not path.is_file():
        return None
    if path.stat().st_size > _BYTES_MAX:
        raise ArtifactInvalid(
            f"expected at most {_BYTES_MAX // 1024**2} MiB in {REQUIREMENTS}, found more"
        )
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactInvalid(f"expected UTF-8 in {REQUIREMENTS}, found {error}") from error
    return parse_requirements(text)


def parse_requirements(text: str) -> Requirements:
    """Parse a file of pins with hashes.

    Raises:
        ArtifactInvalid: A line has no pin or no hash, or the host does not support its version.
    """
    pins = (_pin(number, line) for number, line in _logical_lines(text))
    # Workers use their own Headwater, whatever version the author's tools have locked.
    requirements = Requirements(tuple(pin for pin in pins if pin.name != AUTHOR_LIBRARY))
    for pin in requirements.pins:
        _check_supported(pin)
    return requirements


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, joined where they are continued, with their first number."""
    parts: list[str] = []
    first = 1
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        first = first if parts else number
        parts += line.removesuffix("\\").split()
        if not line.endswith("\\") and parts:
            yield first, " ".join(parts)
            parts = []
    if parts:
        yield first, " ".join(parts)


def _pin(number: int, line: str) -> Pin:
    words = line.replace("--hash ", "--hash=").split()
    hashes = [word.removeprefix("--hash=") for word in words if word.startswith("--hash=")]
    rest = [word for word in words if not word.startswith("--hash=")]
    option = next((word for word in rest if word.startswith("-")), None)
    if option is not None:
        raise _invalid(
            number, line, "a package, and no options (the installers of the gateway and of "
            "workers have their own settings, such as PIP_INDEX_URL and UV_INDEX_URL)"
        )  # fmt: skip
    try:
        requirement = Requirement(" ".join(rest))
    except InvalidRequirement:
        raise _invalid(number, line, "a package as name==version") from None
    operators = [specifier.operator for specifier in requirement.specifier]
    exact = operators in (["=="], ["==="]) and not str(requirement.specifier).endswith("*")
    if requirement.url is not None or not exact:
        raise _invalid(number, line, "one version of a package, as name==version")
    if not hashes:
        raise _invalid(number, line, "hashes, as --hash=sha256:…")
    if not all(map(_HASH.fullmatch, hashes)):
        raise _invalid(number, line, "hashes as sha256, sha384 or sha512 in hex")
    return Pin(requirement, tuple(sorted(set(hashes))), number)


def _invalid(number: int, line: str, expected: str) -> ArtifactInvalid:
    shown = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
    return ArtifactInvalid(
        f"{REQUIREMENTS}, line {number}: expected {expected}, found {shown!r}; "
        f"`{_COMMAND}` writes such a file, and so does pip-compile"
    )


def _check_supported(pin: Pin) -> None:
    """Check that the host can use the version of a package that it imports as well.

    Raises:
        ArtifactInvalid: It cannot.
    """
    supported = HOST_PACKAGES.get(pin.name)
    if supported is None or not pin.applies:
        return
    if not SpecifierSet(supported.versions).contains(pin.version, prereleases=True):
        raise ArtifactInvalid(
            f"{REQUIREMENTS}, line {pin.line}: expected {pin.name}{supported.versions}, because "
            f"the process that runs the code uses this package, too, found {pin.version}; pin a "
            "version in this range"
        )
