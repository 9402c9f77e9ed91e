"""Deployments of code: zip, deploy, activate and read them."""

import contextlib
import io
import json
import os
import stat
import zipfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from headwater.gateway.client.requests import (
    Query,
    Repeat,
    Request,
    encoded_query,
    json_object,
)
from headwater.schemas.failures import DeploymentRemovedError
from headwater.schemas.replay_answers import ReplayReport
from headwater.schemas.v1_answers import Deployment, DeploymentActive, DeploymentPage

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session


#: Limit of the gateway.
ARTIFACT_BYTES_MAX: Final = 10 * 1024 * 1024
_MODE: Final = stat.S_IFREG | 0o644
_UNIX: Final = 3
#: Files of projects that are hidden, and needed.
_NEEDED: Final = frozenset({".python-version"})
_REQUIREMENTS: Final = "requirements.txt"
#: File that marks a virtual environment.
_ENVIRONMENT: Final = "pyvenv.cfg"
#: What Python and its tools write next to code, and a deployment does not need.
_IGNORED_SUFFIXES: Final = ("__pycache__", ".pyc", ".pyo", ".egg-info")
_SHOWN: Final = 3


def artifact_of(
    source: str | os.PathLike[str] | bytes, requirements: str | os.PathLike[str] | None = None
) -> bytes:
    """Return the artifact of a folder, which is zipped, or the content of a file.

    Args:
        source: The folder or file, or its content.
        requirements: A requirements.txt that is added.

    Raises:
        ValueError, OSError: The folder or file cannot be deployed, or not be read.
    """
    if isinstance(source, bytes):
        content = source
    else:
        path = Path(source)
        content = zipped(path) if path.is_dir() else path.read_bytes()
    return content if requirements is None else _added(content, Path(requirements).read_bytes())


def zipped(folder: Path) -> bytes:
    """Zip a folder without hidden files, caches and virtual environments.

    A deployment is named by the hash of its bytes. So files are ordered by name, without times,
    owners and modes, and stored uncompressed: deflate's output differs between machines.

    Raises:
        ValueError, OSError: The folder cannot be deployed, or not be read.
    """
    files = sorted((path.relative_to(folder).as_posix(), path) for path in _files(folder))
    if not any(name.endswith((".py", ".so")) for name, _ in files):
        raise ValueError(f"expected modules of Python in {folder}, found none")
    sizes = {name: path.stat().st_size for name, path in files}
    if sum(sizes.values()) > ARTIFACT_BYTES_MAX:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
        raise ValueError(
            f"expected at most {ARTIFACT_BYTES_MAX // 1024**2} MiB in {folder}, found "
            f"{sum(sizes.values())} bytes; the largest are {', '.join(largest)}"
        )
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, path in files:
            _add(archive, name, path.read_bytes())
    return written.getvalue()


def _added(artifact: bytes, requirements: bytes) -> bytes:
    """Return a zip or wheel with a requirements.txt added, in the same way on every machine.

    Raises:
        ValueError: It is not a zip, or has one already.
    """
    written = io.BytesIO(artifact)
    if not zipfile.is_zipfile(written):
        raise ValueError(f"expected a zip or wheel to add {_REQUIREMENTS} to, found another file")
    with zipfile.ZipFile(written, "a") as archive:
        if _REQUIREMENTS in archive.namelist():
            raise ValueError(f"expected an artifact without {_REQUIREMENTS}, found one with it")
        _add(archive, _REQUIREMENTS, requirements)
    return written.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = _UNIX, _MODE << 16
    archive.writestr(entry, content)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of its subfolders.

    Raises:
        ValueError: A name is not UTF-8, or a file is a link or device.
    """
    for path in folder.iterdir():
        hidden = path.name.startswith(".") and path.name not in _NEEDED
        if hidden or path.name.endswith(_IGNORED_SUFFIXES):
            continue
        if not path.name.isprintable():  # Also what is not UTF-8.
            raise ValueError(f"expected names in UTF-8, found {os.fsencode(path)!r}")
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ValueError(f"expected files and folders, found {path}, a link or a device")
        if path.is_file():
            yield path
        elif not (path / _ENVIRONMENT).exists():
            yield from _files(path)


# -- code

T = TypeVar("T")

#: Seconds that a server and its workers may take to install the requirements of a deployment and to
#: import it, on top of the usual timeout: HEADWATER_ENVIRONMENT_INSTALL_S and some more.
_IMPORT_TIMEOUT_S: Final = 690.0
#: Seconds that a server may take to read all partitions before it removes a deployment.
_REMOVAL_TIMEOUT_S: Final = 60.0
_ALL: Final = 100


def _forced(reason: str) -> dict[str, str]:
    return {"force": "true", "reason": json.dumps(reason)} if reason else {}


class Deployments:
    """Deployments of a server. Answers are current, also after other clients' deployments.

    Reading takes either key, changing something takes the operators' key. All methods raise
    ClientError.
    """

    def __init__(self, session: "Session", admin_key: str | None) -> None:
        self._session = session
        self._key = {"x-admin-key": admin_key} if admin_key else {}

    async def deploy(
        self,
        artifact: bytes | str | os.PathLike[str],
        *,
        app: str,
        requirements: str | os.PathLike[str] | None = None,
    ) -> Deployment:
        """Deploy an app. It runs nothing until it is activated.

        Args:
            artifact: A folder, which is zipped; a zip or wheel; or the bytes of one.
            app: The app in the artifact, as package.module or package.module:attribute.
            requirements: A requirements.txt with hashes that is added to the artifact.

        Raises:
            CommandRefusedError: The app cannot be imported; the message says why.
            ValueError, OSError: The artifact cannot be read.
        """
        content = artifact_of(artifact, requirements)
        request = Request(
            method="POST",
            path=self._session.gateway_path("v1", "deployments"),
            repeat=Repeat.SAFE,
            query=encoded_query({"app": app}),
            body=content,
            headers={"content-type": "application/zip", **self._key},
            waits_s=_IMPORT_TIMEOUT_S,
        )
        return await self._session.send(request, Deployment)

    async def activate(
        self,
        deployment_id: str,
        *,
        percent: int = 100,
        replaces: str = "",
        force_reason: str = "",
    ) -> DeploymentActive:
        """Start new runs on a deployment; existing runs stay on theirs.

        Args:
            deployment_id: Deployment to activate.
            percent: Percentage of the new runs that start on it, 0 to 100. With less than 100, the
                others start on the active deployment, which stays active.
            replaces: Id of the deployment that must be active until then; "" for any.
            force_reason: Why it is activated even if open runs do not fit it.

        Raises:
            CommandRefusedError: Open runs that would continue on it do not fit it.
        """
        share = {} if percent == _ALL else {"percent": str(percent)}
        body = json_object(**share, **_forced(force_reason)).encode()
        return await self._activate(
            deployment_id, "activate", replaces=replaces, repeat=Repeat.SAFE, body=body
        )

    async def remove(self, deployment_id: str, *, wait_s: int = 0) -> None:
        """Remove a deployment that gets no new runs and has no open ones.

        A removed deployment counts as success: an earlier answer may have been lost.

        Args:
            deployment_id: Deployment to remove.
            wait_s: How long to wait until its runs have ended, at most 60. Meanwhile, and after
                that, no new run starts on it.

        Raises:
            CommandRefusedError: Runs of it have not ended, or it gets new runs.
        """
        request = Request(
            method="DELETE",
            path=self._session.gateway_path("v1", "deployments", deployment_id),
            repeat=Repeat.SAFE,
            query=encoded_query({"wait": wait_s or None}),
            headers=self._key,
            waits_s=wait_s + _REMOVAL_TIMEOUT_S,
        )
        with contextlib.suppress(DeploymentRemovedError):
            await self._session.transport.send(request)

    async def install(self, deployment_id: str) -> Deployment:
        """Let workers that could not install the requirements of a deployment try again."""
        request = Request(
            method="POST",
            path=self._session.gateway_path("v1", "deployments", deployment_id, "install"),
            repeat=Repeat.SAFE,
            headers=self._key,
        )
        return await self._session.send(request, Deployment)

    async def check(self, deployment_id: str) -> ReplayReport:
        """Replay runs against a deployment, and return how they fit it. Nothing changes."""
        request = Request(
            method="POST",
            path=self._session.gateway_path("v1", "deployments", deployment_id, "check"),
            repeat=Repeat.SAFE,
            headers=self._key,
            waits_s=_IMPORT_TIMEOUT_S,
        )
        return await self._session.send(request, ReplayReport)

    async def rollback(
        self, deployment_id: str | None = None, *, replaces: str = "", force_reason: str = ""
    ) -> DeploymentActive:
        """Activate the deployment that was active before, or an earlier one.

        While another deployment has a share of the new runs, a rollback ends the share.

        Args:
            deployment_id: Deployment to go back to; None for the previous one.
            replaces: As for `activate`; makes the request safe to repeat.
            force_reason: As for `activate`.

        Raises:
            OutcomeUnknownError: An answer was lost, and without `replaces` or an id the request is
                not repeated: it could go back by two deployments.
        """
        id_json = None if deployment_id is None else json.dumps(deployment_id)
        repeat = Repeat.SAFE if replaces or id_json else Repeat.UNSAFE
        body = json_object(deploymentId=id_json, **_forced(force_reason)).encode()
        return await self._activate("rollback", replaces=replaces, repeat=repeat, body=body)

    async def active(self) -> Deployment:
        """Return the active deployment, on which new runs start.

        Raises:
            CommandRefusedError: No deployment is active.
        """
        return await self.get("active")

    async def get(self, deployment_id: str) -> Deployment:
        """Return a deployment."""
        return await self._read(Deployment, {}, deployment_id)

    async def page(self, *, limit: int = 50, cursor: str | None = None) -> DeploymentPage:
        """Return a page of deployments, newest first; `.cursor` is that of the next page."""
        return await self._read(DeploymentPage, {"limit": limit, "cursor": cursor})

    async def all(self) -> AsyncGenerator[Deployment]:
        """Yield all deployments, newest first."""
        cursor = None
        while True:
            page = await self.page(limit=100, cursor=cursor)
            for deployment in page.deployments:
                yield deployment
            if page.cursor is None:
                return
            cursor = page.cursor

    async def _read(self, kind: type[T], query: Query, *segments: str) -> T:
        request = Request(
            method="GET",
            path=self._session.gateway_path("v1", "deployments", *segments),
            repeat=Repeat.READ,
            query=encoded_query(query),
            headers=self._key,
        )
        return await self._session.send(request, kind)

    async def _activate(
        self, *segments: str, replaces: str, repeat: Repeat, body: bytes | None = None
    ) -> DeploymentActive:
        tag = {"if-match": f'"{replaces}"'} if replaces else {}
        request = Request(
            method="POST",
            path=self._session.gateway_path("v1", "deployments", *segments),
            repeat=repeat,
            body=body,
            headers={**tag, **self._key},
            waits_s=_IMPORT_TIMEOUT_S,
        )
        return await self._session.send(request, DeploymentActive)
