"""Protection of data from other users, and from other processes of the same user."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PRIVATE: Final = 0o700
#: Mode if this is root: the embedded Postgres runs as another account, which needs to pass through
#: to its own folder, but not to list this one.
_ROOTS: Final = 0o711


def make_data_dir(data_dir: Path) -> None:
    """Create the data folder. An existing folder keeps its mode, which is the operator's choice.

    Raises:
        OSError: It cannot be created.
    """
    mode = _ROOTS if os.geteuid() == 0 else _PRIVATE
    data_dir.mkdir(mode=mode, parents=True, exist_ok=True)


def make_private_folder(folder: Path, data_dir: Path) -> None:
    """Create a folder below the data folder that only this user may enter.

    Raises:
        OSError: It cannot be created.
    """
    make_data_dir(data_dir)
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)


def close_environment() -> None:
    """Hide the environment and the memory of this process from other processes of its user.

    On Linux `/proc/PID/environ` has the variables that a process was started with, which may be
    keys. Processes of the same user may read it, and authors' code in a code host runs as the same
    user. After this call only root may read it. Child processes are not affected. Does nothing on
    other systems.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def exposing_ancestors(
    secrets: Collection[str], first: int, proc: Path = Path("/proc")
) -> Iterator[str]:
    """Yield a line per ancestor of this process that exposes secrets in its environment.

    Such as the init process of a container, or a shell script: authors' code can read what it was
    started with, unless it belongs to another user. Yields nothing on systems without `/proc`.

    Args:
        secrets: Names of variables that contain secrets.
        first: Process id of the parent.
        proc: Folder of processes.
    """
    process = first
    while process > 0:
        try:
            status = (proc / str(process) / "stat").read_text("utf-8", "replace")
        except FileNotFoundError:
            return
        environment = b""
        with contextlib.suppress(FileNotFoundError, PermissionError):
            environment = (proc / str(process) / "environ").read_bytes()
        variables = (item.partition(b"=") for item in environment.split(b"\0"))
        names = sorted(os.fsdecode(name) for name, _, value in variables if value)
        name, _, rest = status.partition("(")[2].rpartition(")")
        if exposed := [variable for variable in names if variable in secrets]:
            yield (
                f"the environment of process {process} ({name}) has {', '.join(exposed)}, which "
                "authors' code can read there: start Headwater without this process (`exec` in a "
                "script, no `init: true` in a container), or run that as another user"
            )
        process = int(rest.split()[1])
