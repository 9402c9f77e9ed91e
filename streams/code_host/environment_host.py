"""Runs a main program, such as `code_host.child`, in the environment of a deployment.

The interpreter is that of the environment, which has no Headwater. So this file is run by its path,
imports nothing but Python's own modules, and makes the library available first.

Command-line arguments: a JSON object with the folders of the library, by module; the module of the
main program; and the arguments of that.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
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
    """Make the library available, and run the main program."""
    folders, module = json.loads(sys.argv.pop(1)), sys.argv.pop(1)
    own = {_AUTHOR_LIBRARY: folders.pop(_AUTHOR_LIBRARY)}
    sys.meta_path.insert(0, LibraryFinder(own))
    # After all others: packages of the environment come first.
    sys.meta_path.append(LibraryFinder(folders))
    import_module(module).main()


if __name__ == "__main__":
    main()
