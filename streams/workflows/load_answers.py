"""A worker's answers to requests to load a deployment, which precede its activation.

The code is imported in a temporary host, as runs would have it here: its packages and files may be
missing on one worker only.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from headwater.processors.deployments import Deployments
from headwater.processors.runs.limits import bounded
from headwater.schemas.deployments import DeploymentCreated, DeploymentLoaded, LoadRequested
from headwater.schemas.errors import HeadwaterError
from headwater.streams.clock import now_ms
from headwater.streams.workflows.code_folders import CodeFolders
from headwater.streams.workflows.deployment_log import DeploymentLog
from headwater.streams.workflows.host_process import declarations_of

log = logging.getLogger(__name__)

#: Age of a request that is no longer answered: the gateway waits less.
_OLD_MS: Final = 120_000
#: Ends the names of scratch folders of temporary hosts.
_CHECK: Final = "-check"
#: Characters of an error that are kept: its end names the failing line.
_ERROR_MAX: Final = 4_000

#: Returns whether the host of a deployment runs; None if it has none.
IsLoaded: TypeAlias = Callable[[str], bool | None]


class LoadAnswers:
    """Answers requests to load deployments, each once.

    Args:
        deployment_log: Requests, and the answers to them.
        folders: Folders of the code on this machine.
        worker: Name of the worker's member.
        passed: Environment variables of apps, besides those that they always have.
    """

    def __init__(
        self,
        deployment_log: DeploymentLog,
        folders: CodeFolders,
        worker: str,
        passed: Sequence[str],
    ) -> None:
        self._log = deployment_log
        self._folders = folders
        self._worker = worker
        self._passed = passed
        self._seen: set[str] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    def answer(self, deployments: Deployments, is_loaded: IsLoaded) -> None:
        """Answer new requests in the background."""
        requests = deployments.load_requests
        for name in requests.keys() - self._seen:
            request = requests[name]
            # It may have been removed meanwhile.
            deployment = deployments.by_id.get(request.id)
            if deployment is not None and request.at_ms > now_ms() - _OLD_MS:
                task = asyncio.create_task(self._answer(request, deployment, is_loaded))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
        self._seen = set(requests)

    async def stop(self) -> None:
        """Cancel answers that are not complete."""
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(
        self, request: LoadRequested, deployment: DeploymentCreated, is_loaded: IsLoaded
    ) -> None:
        if not await asyncio.to_thread(self._folders.is_installed, deployment):
            await self._write(request, "", installing=True)
        try:
            error = await self._error_of(deployment, is_loaded)
        except (HeadwaterError, OSError) as raised:
            error = str(raised)
        if error:
            log.warning("%s cannot be loaded: %s", deployment.id, error)
        await self._write(request, error)

    async def _write(self, request: LoadRequested, error: str, *, installing: bool = False) -> None:
        answer = DeploymentLoaded(
            id=request.id,
            request=request.request,
            worker=self._worker,
            error=bounded(error, _ERROR_MAX),
            at_ms=now_ms(),
            installing=installing,
        )
        try:
            await self._log.write(answer)
        except HeadwaterError as raised:
            log.warning("the request to load %s is not answered: %s", request.id, raised)

    async def _error_of(self, deployment: DeploymentCreated, is_loaded: IsLoaded) -> str:
        """Load a deployment. Return why that is not possible; "" if it is."""
        if is_loaded(deployment.id):
            return ""
        # Also if its host does not start: the reason is known here, and not there. That host may
        # start at any time, and works in the other scratch folder.
        scratch = f"{deployment.id}{_CHECK}"
        # Imports wait for one another, but not for installations, which may take minutes.
        await self._folders.prepare(deployment)
        async with self._one_at_a_time:
            try:
                code = await self._folders.code_of(deployment, scratch)
                await declarations_of(deployment.app, code=code, passed=self._passed)
            finally:
                await self._folders.remove_scratch(scratch)
        return ""
