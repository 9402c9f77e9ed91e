"""The account that runs the embedded Postgres when Headwater is started as root.

Postgres refuses to run as root, so another account of the machine runs it. That account must reach
the server's programs and data. If a parent folder is closed to it (such as `/root`), they are
stored elsewhere: permissions of folders that are not Headwater's are never changed.
"""

import contextlib
import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path
from typing import Final

from headwater.schemas.errors import ProcessUnavailable

#: The first of these accounts that exists runs the server.
_INSTEAD_OF_ROOT: Final = ("postgres", "nobody")
#: Folder for programs and data that the account could not reach otherwise.
ELSEWHERE: Final = Path("/var/lib/headwater")
_DIGEST_CHARS: Final = 12


def account_instead_of_root(data: Path) -> pwd.struct_passwd | None:
    """Return the account to run the server, or None if this process is not root's.

    Args:
        data: The server's data; once they exist, their owner runs it.

    Raises:
        PartUnavailable: There is no suitable account.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat().st_uid):
        return pwd.getpwuid(owner)
    for name in _INSTEAD_OF_ROOT:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ProcessUnavailable(
        f"Postgres refuses to run as root, and none of the users {_INSTEAD_OF_ROOT} exists. "
        "Create one (useradd postgres), or run Headwater as an ordinary user."
    )


def is_reachable(path: Path) -> bool:
    """Return whether every account may traverse all parent folders of a path."""
    closest = (parent for parent in path.parents if parent.exists())
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in closest)


def reachable_folder(path: Path, elsewhere: Path) -> Path:
    """Return a folder that the account can reach: this one, or one in `elsewhere`."""
    if os.geteuid() != 0 or is_reachable(path):
        return path
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:_DIGEST_CHARS]
    return elsewhere / f"{path.name}-{digest}"


def programs_of(installation: Path, elsewhere: Path) -> Path:
    """Return an installation that the account can reach: this one, or a copy.

    Args:
        installation: A folder of the package with the programs. A folder of libraries is next to
            the package, and the programs find it by relative path.
        elsewhere: Parent folder of a copy.
    """
    if os.geteuid() != 0 or is_reachable(installation / "bin" / "postgres"):
        return installation
    package, target = installation.parent, reachable_folder(installation, elsewhere)
    if not target.exists():
        elsewhere.mkdir(mode=0o755, parents=True, exist_ok=True)
        unfinished = target.with_name(f"{target.name}.{os.getpid()}")
        for name in (f"{package.name}/{installation.name}", f"{package.name}.libs"):
            if (package.parent / name).exists():
                shutil.copytree(package.parent / name, unfinished / name, symlinks=True)
        for folder in (unfinished, unfinished / package.name):
            folder.chmod(0o755)
        try:
            unfinished.rename(target)
        except OSError:  # Another process was faster.
            shutil.rmtree(unfinished, ignore_errors=True)
    return target / package.name / installation.name


def write_private(file: Path, text: str, owner: pwd.struct_passwd | None = None) -> None:
    """Write a file that only this user, or another owner, may read."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
    if owner is not None:
        os.chown(file, owner.pw_uid, owner.pw_gid)
