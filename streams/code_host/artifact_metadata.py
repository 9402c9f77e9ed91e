"""What an artifact states about itself: its Python version, and the packages that it requires.

Both are checked when it is deployed. A package that is missing would otherwise be noticed when a
step imports it.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from headwater.streams.code_host.artifacts import ArtifactInvalid
from headwater.streams.code_host.library import AUTHOR_LIBRARY
from headwater.streams.code_host.requirements import Requirements, requirements_in

#: The file of a project that names one version, as pyenv and uv read it.
PYTHON_VERSION: Final = ".python-version"
_PROJECT: Final = "pyproject.toml"
_VERSION: Final = re.compile(r"(?:cpython@|python-?)?(\d+\.\d+)(?:\.\d+)?")
#: More than the metadata of any wheel has.
_BYTES_MAX: Final = 4 * 1024 * 1024


def check_metadata(folder: Path) -> Requirements | None:
    """Check what an unpacked artifact requires, and return its requirements.txt, if any.

    Raises:
        ArtifactInvalid: It needs another Python, or a package that it does not list.
    """
    requirements = requirements_in(folder)
    wheels = {path: _metadata(path) for path in sorted(folder.glob("*.dist-info/METADATA"))}
    _check_python(folder, wheels)
    _check_required(wheels, requirements)
    return requirements


def _metadata(path: Path) -> RawMetadata:
    return parse_email(_content(path))[0]


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_BYTES_MAX + 1)
    if len(content) > _BYTES_MAX:
        raise ArtifactInvalid(
            f"expected at most {_BYTES_MAX // 1024**2} MiB in {path.name}, found more"
        )
    return content


# -- the Python version


def _check_python(folder: Path, wheels: Mapping[Path, RawMetadata]) -> None:
    here = ".".join(map(str, sys.version_info[:3]))
    for source, required in _python_versions(folder, wheels):
        try:
            fits = SpecifierSet(required).contains(here, prereleases=True)
        except InvalidSpecifier:
            raise ArtifactInvalid(
                f"{source}: expected a version of Python, found {required[:80]!r}"
            ) from None
        if not fits:
            raise ArtifactInvalid(
                f"expected Python {required}, as {source} states, found {here}, which runs the "
                "gateway or worker; deploy code for that version, or run Headwater with another"
            )


def _python_versions(folder: Path, wheels: Mapping[Path, RawMetadata]) -> Iterator[tuple[str, str]]:
    """Yield the required versions of Python as specifiers, with the files that state them."""
    path = folder / PYTHON_VERSION
    if path.is_file():
        lines = _content(path).decode("utf-8", "replace").splitlines()
        stated = next((line.strip() for line in lines if line.strip()[:1] not in ("", "#")), "")
        match = _VERSION.fullmatch(stated)
        # Releases of one minor version run the same code.
        yield PYTHON_VERSION, f"=={match[1]}.*" if match else stated or "nothing"
    path = folder / _PROJECT
    if path.is_file():
        try:
            project = tomllib.loads(_content(path).decode("utf-8")).get("project", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ArtifactInvalid(f"expected TOML in {_PROJECT}, found {error}") from error
        if isinstance(project, dict) and "requires-python" in project:
            yield _PROJECT, str(project["requires-python"])
    for path, metadata in wheels.items():
        if "requires_python" in metadata:
            yield path.parent.name, metadata["requires_python"]


# -- required packages


def _check_required(wheels: Mapping[Path, RawMetadata], requirements: Requirements | None) -> None:
    available: dict[str, str] = {
        canonicalize_name(metadata.get("name", "")): metadata.get("version", "")
        for metadata in wheels.values()
    }
    if requirements is not None:
        available |= requirements.versions
    missing = []
    for path, metadata in wheels.items():
        for text in metadata.get("requires_dist", []):
            problem = _missing(text, available, installed=requirements is None)
            if problem:
                missing.append(f"{problem} (required by {path.parent.name})")
    if missing:
        raise ArtifactInvalid(
            "expected all packages that the artifact requires, found without a fitting version: "
            f"{', '.join(missing)}; add them to requirements.txt in the artifact"
        )


def _missing(text: str, available: Mapping[str, str], *, installed: bool) -> str:
    """Return what is missing of a requirement of a wheel, or "".

    Args:
        text: The requirement.
        available: Versions of packages in the artifact and its requirements.txt, by name.
        installed: Whether the packages of this process are available, too.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return f"{text[:80]!r}, which is not valid"
    name = canonicalize_name(requirement.name)
    extra = {"extra": ""}
    if name == AUTHOR_LIBRARY or (requirement.marker and not requirement.marker.evaluate(extra)):
        return ""
    actual = available.get(name)
    if actual is None and installed:
        try:
            actual = version(name)
        except PackageNotFoundError:
            actual = None
    if actual is not None and requirement.specifier.contains(actual, prereleases=True):
        return ""
    return f"{requirement}" if actual is None else f"{requirement}, not {actual}"
