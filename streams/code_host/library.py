"""The packages that a code host needs besides the author's, and where this installation has them.

A host in the environment of a deployment imports Headwater from this installation. Of the packages
that Headwater needs there, it takes those of the environment, and this installation's only if the
environment has none. So no package of Headwater's replaces one of a deployment.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

#: Always that of this installation: host and worker exchange messages, which may change.
AUTHOR_LIBRARY: Final = "headwater"


class HostPackage(NamedTuple):
    """A package that hosts import.

    Attributes:
        module: Name of its module.
        versions: Versions that hosts work with.
    """

    module: str
    versions: str


#: By name of the distribution. The versions are those that this package requires.
HOST_PACKAGES: Final[Mapping[str, HostPackage]] = {
    "cel-expr-python": HostPackage("cel_expr_python", ">=0.1.3,<0.2"),
    "cronsim": HostPackage("cronsim", ">=2.6,<3"),
    "jsonschema-rs": HostPackage("jsonschema_rs", ">=0.55,<1"),
    "lazy-loader": HostPackage("lazy_loader", ">=0.4,<1"),
    "msgspec": HostPackage("msgspec", ">=0.20,<1"),
    "typing-extensions": HostPackage("typing_extensions", ">=4.12,<5"),
    "uvloop": HostPackage("uvloop", ">=0.21,<1"),
}


def library_folders() -> dict[str, str]:
    """Return the folders from which this process imports the library, by module."""
    modules = (AUTHOR_LIBRARY, *(package.module for package in HOST_PACKAGES.values()))
    return {module: folder for module in modules if (folder := _folder_of(module))}


def _folder_of(module: str) -> str:
    spec = find_spec(module)
    if spec is None:
        return ""
    # A package without __init__.py has locations, and no origin.
    locations = spec.submodule_search_locations
    return str(Path(locations[0] if locations else spec.origin or "").parent)
