"""What other users, and other processes of this user, may not read."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PRIVATE: Final = 0o700
#: Where this is root's, another account runs the embedded Postgres: it may pass through to its own
#: folder, and list nothing.
_ROOTS: Final = 0o711


def make_data_dir(data_dir: Path) -> None:
    """Make the data folder, unless it exists; its mode is then the operator's choice.

    Raises:
        OSError: It cannot be made.
    """
    mode = _ROOTS if os.geteuid() == 0 else _PRIVATE
    data_dir.mkdir(mode=mode, parents=True, exist_ok=True)


def make_private_folder(folder: Path, data_dir: Path) -> None:
    """Make a folder below the data folder that only this user may enter.

    Raises:
        OSError: It cannot be made.
    """
    make_data_dir(data_dir)
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)


def close_environment() -> None:
    """Close the environment and the memory of this process to other processes of its user.

    On Linux `/proc/PID/environ` has what a process was started with, keys among it, and processes
    of the same user may read it: authors' code in a code host runs as ours. Only root reads it from
    now on. Processes that this one starts are not affected. Elsewhere nothing is done.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
