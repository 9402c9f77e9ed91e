"""Main program of a code host in the environment of a deployment: runs `code_host.child` there.

The interpreter is that of the environment, which has no Headwater. So this file is run by its path,
imports nothing but Python's own modules, and makes the library available first.

Command-line arguments: a JSON object with the folders of the library, by module; and those of
`child.main`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_AUTHOR_LIBRARY = "headwater"


class LibraryFinder:
    """Finds modules of the library.

    Args:
        folders: Folders of the modules.
    """

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self,
        name: str,
        _path: Sequence[str] | None = None,
        _target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a module of the library, or None."""
        folder = self._folders.get(name)
        return None if folder is None else PathFinder.find_spec(name, [folder])


def main() -> None:
    """Make the library available, and run the host."""
    folders = json.loads(sys.argv.pop(1))
    own = {_AUTHOR_LIBRARY: folders.pop(_AUTHOR_LIBRARY)}
    sys.meta_path.insert(0, LibraryFinder(own))
    # After all others: packages of the environment come first.
    sys.meta_path.append(LibraryFinder(folders))
    from headwater.streams.code_host.child import main as run_host  # noqa: PLC0415 (found by now)

    run_host()


if __name__ == "__main__":
    main()
