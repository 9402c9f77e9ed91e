"""Temporary folders that are removed at the next start if their process is killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a private folder for as long as the context is open; remove those of killed processes.

    This process locks its folder, and the kernel unlocks it when the process ends, however it ends.

    Args:
        prefix: Prefix of the names of all such folders.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(left):
            _remove(left)
    with contextlib.ExitStack() as exits:
        folder = _made(prefix, exits)
        exits.callback(_remove, folder)
        yield folder


def _made(prefix: str, exits: contextlib.ExitStack) -> Path:
    """Make and lock a folder, again if another process has removed it in between."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError, BlockingIOError), contextlib.ExitStack() as own:
            own.enter_context(_locked(folder))
            if folder.exists():
                exits.push(own.pop_all())
                return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder of this user.

    Raises:
        OSError: Another process has locked it, or it is not a folder of this user.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"expected a folder of this user, found {folder}")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
