"""Artifacts of deployments on the local disk, fetched and unpacked on demand."""

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

#: Age of unfinished folders of killed processes, longer than unpacking can take.
_UNFINISHED_MS: Final = 3_600_000
_UNFINISHED: Final = ".unpacking-"


class ArtifactFolders:
    """The folders of artifacts, which several workers may share.

    A folder with the name of a deployment is complete and durable: it is renamed when it is
    complete.
    """

    def __init__(self, deployments: DeploymentLog, folder: Path) -> None:
        self._deployments = deployments
        self._folder = folder

    async def folder_of(self, deployment: DeploymentCreated) -> Path:
        """Return the folder with the code of a deployment.

        Raises:
            BrokerUnavailable: Kafka is not available.
            ArtifactLost: The artifact is no longer in Kafka.
            ArtifactInvalid: The artifact cannot be unpacked.
            OSError: The disk failed.
        """
        path = self._folder / deployment.id
        if not path.is_dir():
            artifact = await self._deployments.artifact(deployment)
            await asyncio.to_thread(self._unpack, artifact, deployment, path)
        return path

    def _unpack(self, artifact: bytes, deployment: DeploymentCreated, path: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_unfinished()
        temporary = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._folder))
        try:
            unpack(artifact, temporary)
            check_app(deployment.app, temporary)
            for entry in (*temporary.rglob("*"), temporary):
                _sync(entry)
            temporary.rename(path)
            _sync(self._folder)
        except OSError:
            # Another worker may have renamed its folder first.
            if not path.is_dir():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        """Remove folders of processes that were killed while unpacking."""
        for folder in self._folder.glob(f"{_UNFINISHED}*"):
            # Another process may rename its folder at this moment.
            with contextlib.suppress(FileNotFoundError):
                if 1_000 * folder.stat().st_mtime < now_ms() - _UNFINISHED_MS:
                    shutil.rmtree(folder, ignore_errors=True)


def _sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
