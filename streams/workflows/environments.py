"""Virtual environments of deployments: the packages of their requirements.txt, on this machine.

An environment is installed once for the same requirements and the same Python, and shared by all
deployments, hosts, workers and gateways that use the folder. It is complete when its record exists,
which is written last; a lock keeps other processes from installing it at the same time.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import sys
import sysconfig
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.clock import now_ms
from headwater.streams.code_host.requirements import REQUIREMENTS, Requirements
from headwater.streams.code_host.sealed_folders import (
    folder_bytes,
    locked,
    remove_sealed,
    seal,
)
from headwater.streams.workflows.app_environment import environment_of_installer

log = logging.getLogger(__name__)

#: Name of the folder of all environments in the state of workers.
ENVIRONMENTS: Final = "environments"
_RECORD: Final = "environment.json"
_LOG: Final = "install.log"
#: Interval of the checks of a running installation.
_CHECK_S: Final = 1.0
#: Lines and characters of the installer's output in an error: its last messages.
_LINES: Final = 15
_REASON_MAX: Final = 2_000
#: How long an environment without a deployment is kept. Deploying takes less than that.
_UNUSED_MS: Final = 3_600_000
#: User and password in a URL.
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")


class EnvironmentFailed(HeadwaterError):
    """An environment cannot be installed. The message has the reason."""

    disposition = Disposition.HALT
    code = "environment_failed"


class EnvironmentPolicy(NamedTuple):
    """How environments are installed.

    Attributes:
        bytes_max: Largest environment.
        install_s: Longest time of an installation, in seconds.
        packages_max: Largest number of packages.
        builds: Whether packages without a wheel are built, which executes their code.
        wheels: Folder of wheels, used instead of an index.
    """

    bytes_max: int = 2 * 1024**3
    install_s: float = 600.0
    packages_max: int = 500
    builds: bool = False
    wheels: Path | None = None


class Environment(NamedTuple):
    """An installed environment.

    Attributes:
        python: Its interpreter.
        digest: Digest of its requirements.
        size: Bytes of its files.
    """

    python: Path
    digest: str
    size: int


class _Record(msgspec.Struct, frozen=True):
    """The record of a complete environment."""

    size: int


class Environments:
    """The environments in a folder, which several processes may share.

    Args:
        folder: The folder.
        policy: How environments are installed.
    """

    def __init__(self, folder: Path, policy: EnvironmentPolicy = EnvironmentPolicy()) -> None:  # noqa: B008 (a constant)
        self._folder = folder
        self._policy = policy

    def has(self, digest: str) -> bool:
        """Return whether the environment of requirements with this digest is installed."""
        return _installed(self._path(digest), digest) is not None

    async def install(self, requirements: Requirements) -> Environment:
        """Return the environment of requirements, installing it if necessary.

        Raises:
            EnvironmentFailed: It cannot be installed.
            OSError: The disk failed.
        """
        path = self._path(requirements.digest)
        environment = _installed(path, requirements.digest)
        if environment is not None:
            return environment
        async with locked(self._lock_of(path)):
            environment = _installed(path, requirements.digest)
            return environment or await self._install(path, requirements)

    async def remove_unused(self, used: Collection[str]) -> None:
        """Remove environments that no deployment has and no process used for an hour.

        Args:
            used: Digests of the requirements of all deployments.
        """
        kept = {self._path(digest).name for digest in used}
        for path in await asyncio.to_thread(lambda: list(self._folder.glob("*"))):
            hidden = path.name.startswith(".")
            if not hidden and path.name not in kept and _unused_ms(path) > _UNUSED_MS:
                async with locked(self._lock_of(path)):
                    if _unused_ms(path) > _UNUSED_MS:
                        log.info("removing the environment %s, which no deployment uses", path)
                        await asyncio.to_thread(remove_sealed, path)

    def _path(self, digest: str) -> Path:
        """Return the folder of an environment: one for every version of Python."""
        return self._folder / f"{digest[:32]}-{sysconfig.get_config_var('SOABI')}"

    def _lock_of(self, path: Path) -> Path:
        return self._folder / f".{path.name}.lock"

    async def _install(self, path: Path, requirements: Requirements) -> Environment:
        policy = self._policy
        if len(requirements.pins) > policy.packages_max:
            raise EnvironmentFailed(
                f"expected at most {policy.packages_max} packages in {REQUIREMENTS} "
                f"(HEADWATER_ENVIRONMENT_PACKAGES), found {len(requirements.pins)}"
            )
        log.info("installing %d packages into %s", len(requirements.pins), path)
        # What a killed process has left.
        await asyncio.to_thread(remove_sealed, path)
        try:
            await _Installation(path, policy).run(requirements)
            size = await asyncio.to_thread(_complete, path, policy.bytes_max)
        except BaseException:
            await asyncio.to_thread(remove_sealed, path)
            raise
        return Environment(_python(path), requirements.digest, size)


def _python(path: Path) -> Path:
    return path / "bin" / "python"


def _installed(path: Path, digest: str) -> Environment | None:
    """Return a complete environment, and record that it is used; None if there is none."""
    record = path / _RECORD
    try:
        size = msgspec.json.decode(record.read_bytes(), type=_Record).size
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    with contextlib.suppress(PermissionError):  # Another user may have installed it.
        os.utime(record)
    # The interpreter is a link: after an upgrade of Python it may lead nowhere.
    return Environment(_python(path), digest, size) if _python(path).exists() else None


def _unused_ms(path: Path) -> float:
    """Return for how long no process has used an environment."""
    record = path / _RECORD
    try:
        used_s = (record if record.exists() else path).stat().st_mtime
    except FileNotFoundError:
        return 0
    return now_ms() - 1_000 * used_s


def _complete(path: Path, bytes_max: int) -> int:
    """Make an environment read-only, and write its record when all of it is on disk.

    Returns:
        The bytes of its files.

    Raises:
        EnvironmentFailed: It is too large.
    """
    size = folder_bytes(path)
    if size > bytes_max:
        raise _too_large(bytes_max)
    seal(path)
    path.chmod(0o755)
    os.sync()
    temporary = path / f"{_RECORD}.tmp"
    temporary.write_bytes(msgspec.json.encode(_Record(size)))
    temporary.chmod(0o444)
    temporary.rename(path / _RECORD)
    path.chmod(0o555)
    return size


def _too_large(bytes_max: int) -> EnvironmentFailed:
    return EnvironmentFailed(
        f"expected an environment of at most {bytes_max // 1024**2} MiB "
        "(HEADWATER_ENVIRONMENT_MIB), found more"
    )


class _Installation:
    """One installation: creates a virtual environment, and installs packages into it.

    Args:
        path: Folder of the environment, which does not exist.
        policy: How it is installed.
    """

    def __init__(self, path: Path, policy: EnvironmentPolicy) -> None:
        self._path = path
        self._policy = policy
        self._deadline_s = asyncio.get_running_loop().time() + policy.install_s

    async def run(self, requirements: Requirements) -> None:
        """Install everything.

        Raises:
            EnvironmentFailed: A program failed, or the environment is too large or took too long.
        """
        downloads = self._path / "tmp"
        downloads.mkdir(parents=True)
        (self._path / REQUIREMENTS).write_text(requirements.text, "utf-8")
        with (self._path / _LOG).open("wb") as output:
            venv = ("-m", "venv", "--without-pip", "--symlinks", str(self._path))
            await self._execute((sys.executable, "-I", *venv), output)
            await self._execute(self._installer(), output)
            # Not by the installers: uv starts the interpreter of the environment for it, which
            # executes code of packages (in .pth files), with the variables of indexes.
            compiling = ("-m", "compileall", "-q", str(self._path / "lib"))
            await self._execute((sys.executable, "-I", *compiling), output, may_fail=True)
        (self._path / _LOG).unlink()
        shutil.rmtree(downloads, ignore_errors=True)

    def _installer(self) -> Sequence[str]:
        """Return the command that installs the packages."""
        policy, python = self._policy, str(_python(self._path))
        options = ["--require-hashes", "-r", str(self._path / REQUIREMENTS)]
        if not policy.builds:
            options += ["--only-binary", ":all:"]
        if policy.wheels is not None:
            options += ["--no-index", "--find-links", str(policy.wheels.absolute())]
        if uv := shutil.which("uv"):
            quiet = ("--no-progress", "--color", "never", "--no-cache")
            # Files of its own: an environment must not change with a cache or another environment.
            copied = ("--link-mode", "copy")
            return (uv, "pip", "install", "--python", python, *quiet, *copied, *options)
        if importlib.util.find_spec("pip") is None:
            raise EnvironmentFailed(
                "expected uv on the PATH, or pip in the environment of Headwater, to install "
                f"{REQUIREMENTS}, found neither"
            )
        quiet = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
        pip = (sys.executable, "-P", "-m", "pip", "--python", python, "install")
        return (*pip, "--no-cache-dir", "--no-compile", *quiet, *options)

    async def _execute(
        self, command: Sequence[str], output: IO[bytes], *, may_fail: bool = False
    ) -> None:
        """Run a program until it ends or exceeds a limit."""
        environment = environment_of_installer() | {"TMPDIR": str(self._path / "tmp")}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=self._path,
            # A group of its own, so that programs that it starts are killed with it.
            start_new_session=True,
        )
        ended = asyncio.ensure_future(process.wait())
        try:
            while not (await asyncio.wait({ended}, timeout=_CHECK_S))[0]:
                self._check_time()
                await self._check_size()
            self._check_time()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await ended
        if process.returncode and not may_fail:
            raise EnvironmentFailed(
                f"expected {Path(command[0]).name} to install {REQUIREMENTS}, found exit code "
                f"{process.returncode}:\n{self._last_lines()}"
            )

    def _check_time(self) -> None:
        if asyncio.get_running_loop().time() > self._deadline_s:
            raise EnvironmentFailed(
                f"expected {REQUIREMENTS} to be installed within {self._policy.install_s:g} s "
                f"(HEADWATER_ENVIRONMENT_INSTALL_S), found the installer still busy:\n"
                f"{self._last_lines()}"
            )

    async def _check_size(self) -> None:
        if await asyncio.to_thread(folder_bytes, self._path) > self._policy.bytes_max:
            raise _too_large(self._policy.bytes_max)

    def _last_lines(self) -> str:
        """Return the last lines of the output, without passwords."""
        text = (self._path / _LOG).read_text("utf-8", "replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return _CREDENTIALS.sub("(secret)@", "\n".join(lines[-_LINES:]))[-_REASON_MAX:]
