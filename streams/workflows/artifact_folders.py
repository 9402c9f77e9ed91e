"""Artifacts of deployments on this machine's disk: fetched and unpacked when they are needed."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from headwater.schemas.deployments import DeploymentCreated
from headwater.streams.clock import now_ms
from headwater.streams.code_host.artifacts import check_app, unpack
from headwater.streams.workflows.deployment_log import DeploymentLog

#: What a process has left that was killed while it unpacked: no unpacking takes so long.
_LEFT_MS: Final = 3_600_000
_LEFT: Final = ".unpacking-"


class ArtifactFolders:
    """The folders that artifacts lie in, which several workers may share.

    A folder of a deployment's name is whole and on disk: it gets its name when all of it is there.
    """

    def __init__(self, deployments: DeploymentLog, folder: Path) -> None:
        self._deployments = deployments
        self._folder = folder

    async def of(self, deployment: DeploymentCreated) -> Path:
        """The folder with the code of a deployment.

        Errors: BrokerUnavailable, ArtifactLost, ArtifactInvalid; OSError, of the disk.
        """
        place = self._folder / deployment.id
        if not place.is_dir():
            artifact = await self._deployments.artifact(deployment)
            await asyncio.to_thread(self._unpack, artifact, deployment, place)
        return place

    def _unpack(self, artifact: bytes, deployment: DeploymentCreated, place: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_left()
        making = Path(tempfile.mkdtemp(prefix=_LEFT, dir=self._folder))
        try:
            unpack(artifact, making)
            check_app(deployment.app, making)
            for each in (*making.rglob("*"), making):
                _on_disk(each)
            making.rename(place)
            _on_disk(self._folder)
        except OSError:
            # Perhaps because another worker was faster.
            if not place.is_dir():
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def _remove_left(self) -> None:
        """Removes what was not unpacked to its end."""
        for each in self._folder.glob(f"{_LEFT}*"):
            # Whoever unpacks there may be done by now.
            with contextlib.suppress(FileNotFoundError):
                if 1_000 * each.stat().st_mtime < now_ms() - _LEFT_MS:
                    shutil.rmtree(each, ignore_errors=True)


def _on_disk(place: Path) -> None:
    """Sees that a file, or the list of a folder, outlives a loss of power."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
