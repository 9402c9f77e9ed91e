"""The code of deployments on this machine: unpacked artifacts, environments, scratch folders.

Several workers may share the folders. An unpacked artifact is complete and durable: it is renamed
when it is complete. It is read-only, and compared with the record of its deployment whenever a host
starts, so that all hosts of a deployment run the same code.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headwater.schemas.deployments import DeploymentCreated
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import AppNotLoaded
from headwater.streams.code_host.artifact_metadata import check_metadata
from headwater.streams.code_host.artifacts import ArtifactInvalid, check_app, unpack
from headwater.streams.code_host.sealed_folders import (
    content_digest,
    locked,
    remove_sealed,
    seal,
)
from headwater.streams.workflows.deployment_log import ArtifactLost, DeploymentLog
from headwater.streams.workflows.environments import (
    ENVIRONMENTS,
    EnvironmentFailed,
    EnvironmentPolicy,
    Environments,
)
from headwater.streams.workflows.host_process import HostCode, HostKilled, declarations_of

log = logging.getLogger(__name__)

#: Age of unfinished folders of killed processes, longer than unpacking can take.
_UNFINISHED_MS: Final = 3_600_000
_UNFINISHED: Final = ".unpacking-"


class ArtifactFolders:
    """The folders of artifacts.

    Args:
        deployments: Log of deployments and artifacts.
        folder: Folder of all of them.
    """

    def __init__(self, deployments: DeploymentLog, folder: Path) -> None:
        self._deployments = deployments
        self._folder = folder

    async def folder_of(self, deployment: DeploymentCreated) -> Path:
        """Return the folder with the code of a deployment, exactly as it was deployed.

        Raises:
            BrokerUnavailable: Kafka is not available.
            ArtifactLost: The artifact is no longer in Kafka.
            ArtifactInvalid: The artifact cannot be unpacked.
            OSError: The disk failed.
        """
        path = self._folder / deployment.id
        async with locked(self._lock_of(deployment.id)):
            if path.is_dir():
                if await asyncio.to_thread(_is_unchanged, path, deployment):
                    return path
                log.warning("%s was changed since it was unpacked; unpacking it again", path)
            artifact = await self._deployments.artifact(deployment)
            await asyncio.to_thread(self._unpack, artifact, deployment, path)
        return path

    async def remove(self, name: str) -> None:
        """Remove the folder of a removed deployment."""
        path = self._folder / name
        if path.is_dir():
            log.info("removing %s, the folder of a removed deployment", path)
            async with locked(self._lock_of(name)):
                await asyncio.to_thread(remove_sealed, path)

    def _lock_of(self, name: str) -> Path:
        return self._folder / f".{name}.lock"

    def _unpack(self, artifact: bytes, deployment: DeploymentCreated, path: Path) -> None:
        self._remove_unfinished()
        temporary = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._folder))
        try:
            unpack(artifact, temporary)
            check_app(deployment.app, temporary)
            seal(temporary)
            for entry in (*temporary.rglob("*"), temporary):
                _sync(entry)
            changed = self._set_aside(path) if path.is_dir() else None
            temporary.rename(path)
            _sync(self._folder)
            if changed is not None:
                remove_sealed(changed)
        finally:
            remove_sealed(temporary)

    def _set_aside(self, path: Path) -> Path:
        """Move a changed folder into another one: hosts of it miss it only for a moment."""
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._folder))
        path.chmod(0o755)
        path.rename(aside / path.name)
        return aside

    def _remove_unfinished(self) -> None:
        """Remove folders of processes that were killed while unpacking."""
        for folder in self._folder.glob(f"{_UNFINISHED}*"):
            # Another process may rename its folder at this moment.
            with contextlib.suppress(FileNotFoundError):
                if 1_000 * folder.stat().st_mtime < now_ms() - _UNFINISHED_MS:
                    remove_sealed(folder)


def _is_unchanged(path: Path, deployment: DeploymentCreated) -> bool:
    return not deployment.content or content_digest(path) == deployment.content


def _sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- scratch folders


class ScratchFolders:
    """Working directories of the hosts of this process, which are empty when a host starts.

    Args:
        folder: Folder that several processes may share; those of killed processes are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        self._descriptor = -1

    def new_folder(self, name: str) -> Path:
        """Return the empty folder of a host."""
        if self._own is None:
            self._own = self._claim()
        path = self._own / name
        remove_sealed(path)
        path.mkdir(mode=0o700)
        return path

    def remove(self, name: str) -> None:
        """Remove the folder of a host that has ended, if there is one."""
        if self._own is not None:
            remove_sealed(self._own / name)

    def close(self) -> None:
        """Remove the folders of this process."""
        if self._own is not None:
            remove_sealed(self._own)
            os.close(self._descriptor)
            self._own = None

    def _claim(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A new folder must not look abandoned to another process before it is locked.
        claiming = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(claiming, fcntl.LOCK_EX)
            for other in self._folder.iterdir():
                descriptor = _exclusive(other)
                if descriptor is not None:
                    remove_sealed(other)
                    os.close(descriptor)
            own = Path(tempfile.mkdtemp(dir=self._folder))
            self._descriptor = _lock(own)
        finally:
            os.close(claiming)
        return own


def _lock(folder: Path) -> int:
    """Lock a folder and return its descriptor.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _exclusive(folder: Path) -> int | None:
    """Lock a folder and return its descriptor; None if another process has locked it."""
    try:
        return _lock(folder)
    except (BlockingIOError, FileNotFoundError):
        return None


# -- all of it


class CodeFolders:
    """Everything that hosts of deployments need on this machine.

    Args:
        deployments: Log of deployments and artifacts.
        state: Folder of the state of workers.
        policy: How environments are installed.
    """

    def __init__(self, deployments: DeploymentLog, state: Path, policy: EnvironmentPolicy) -> None:
        self._artifacts = ArtifactFolders(deployments, state / "deployments")
        self._scratch = ScratchFolders(state / "scratch")
        self._environments = Environments(state / ENVIRONMENTS, policy)
        self._deployments = deployments
        #: Installations that failed, with the number of requests to install at that time. A package
        #: that is missing stays so: only a request repeats the installation.
        self._failed: dict[str, tuple[int, EnvironmentFailed]] = {}

    def is_installed(self, deployment: DeploymentCreated) -> bool:
        """Return whether the environment of a deployment need not be installed first."""
        name = deployment.environment
        return not name or deployment.id in self._failed or self._environments.has(name)

    async def prepare(self, deployment: DeploymentCreated) -> tuple[Path, Path | None]:
        """Unpack the code of a deployment, and install its environment.

        An installation that failed is repeated when an operator requests it.

        Returns:
            The folder of the code, and the interpreter of the environment, if it has one.

        Raises:
            HeadwaterError: The code or its environment is not available; the message has the
                reason.
            OSError: The disk failed.
        """
        requests = self._deployments.fold.installs.get(deployment.id, 0)
        failed = self._failed.get(deployment.id)
        if failed is not None and failed[0] == requests:
            raise failed[1]
        folder = await self._artifacts.folder_of(deployment)
        requirements = await asyncio.to_thread(check_metadata, folder)
        if requirements is None:
            return folder, None
        try:
            environment = await self._environments.install(requirements)
        except EnvironmentFailed as error:
            self._failed[deployment.id] = requests, error
            raise
        self._failed.pop(deployment.id, None)
        return folder, environment.python

    async def code_of(self, deployment: DeploymentCreated, scratch: str = "") -> HostCode:
        """Return what a host of a deployment runs.

        Args:
            deployment: The deployment.
            scratch: Name of the scratch folder; by default that of the deployment's only host.

        Raises:
            HeadwaterError: The code or its environment is not available; the message has the
                reason.
            OSError: The disk failed.
        """
        folder, python = await self.prepare(deployment)
        path = await asyncio.to_thread(self._scratch.new_folder, scratch or deployment.id)
        return HostCode(folder, path, python)

    async def remove(self, name: str) -> None:
        """Remove the artifact and the scratch folder of a removed deployment."""
        await self._artifacts.remove(name)
        await self.remove_scratch(name)

    async def remove_scratch(self, name: str) -> None:
        """Remove the scratch folder of a host that has ended, if there is one."""
        await asyncio.to_thread(self._scratch.remove, name)

    async def remove_unused(self, deployments: Iterable[DeploymentCreated]) -> None:
        """Remove environments that none of these deployments has."""
        await self._environments.remove_unused({item.environment for item in deployments})

    def close(self) -> None:
        """Remove the scratch folders."""
        self._scratch.close()


async def trial_problem(
    deployments: DeploymentLog,
    deployment: DeploymentCreated,
    *,
    state: Path,
    policy: EnvironmentPolicy,
    passed: Iterable[str],
) -> str:
    """Read the artifact of a deployment; with requirements, install these and import the app.

    Args:
        deployments: Log of deployments and artifacts.
        deployment: The deployment.
        state: Folder of the state of workers; if there is none, a temporary one is used.
        policy: How the environment is installed.
        passed: Environment variables that the app sees besides those that apps always see.

    Returns:
        The problem, or an empty text.

    Raises:
        BrokerUnavailable: Kafka is not available.
    """
    temporary = Path(tempfile.mkdtemp(prefix="headwater-"))
    exists = await asyncio.to_thread(state.is_dir)
    folders = CodeFolders(deployments, state if exists else temporary, policy)
    try:
        code = await folders.code_of(deployment)
        if code.python is not None:
            await declarations_of(deployment.app, code=code, passed=passed)
    except (ArtifactInvalid, ArtifactLost, EnvironmentFailed, AppNotLoaded, HostKilled) as error:
        return error.message
    except OSError as error:
        return str(error)
    finally:
        folders.close()
        await asyncio.to_thread(remove_sealed, temporary)
    return ""
