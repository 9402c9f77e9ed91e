"""Checks an app before it is deployed: imports it once, in another process.

Owners get the declarations of a deployment without importing its code, and its author sees the
traceback of a failed import at once. The process has only the environment variables of apps.
"""

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.processors.graph.definition import digest, read_definition
from headwater.processors.runs.limits import name_problem
from headwater.schemas.deployments import DeployedSchedule, DeployedWorkflow
from headwater.schemas.failures import ARTIFACT_INVALID
from headwater.schemas.history import Limits
from headwater.streams.code_host.apps import AppNotLoaded, Declarations, parse_app_spec
from headwater.streams.code_host.artifacts import ArtifactInvalid, check_app, unpack
from headwater.streams.code_host.host import BUILT_IN
from headwater.streams.code_host.schedules import Declared
from headwater.streams.workflows.host_process import HostKilled, declarations_of

#: Seconds that the import of an app may take, while the request to deploy waits.
_IMPORT_S: Final = 30.0
#: Most characters of the name of an app.
_APP_MAX: Final = 200
#: Most characters of an import error: enough for a traceback of many frames.
_ERROR_MAX: Final = 8_000


class ArtifactCheck:
    """Imports apps, one at a time: an import may use any amount of memory and time.

    Args:
        passed: Environment variables of apps, besides those that they always have.
        limits: Limits of their declarations.
    """

    def __init__(self, *, passed: Sequence[str], limits: Limits) -> None:
        self._passed = passed
        self._limits = limits
        self._import_lock = asyncio.Semaphore(1)
        self._importing: asyncio.Task[Declarations] | None = None
        self._closed = False

    def close(self) -> None:
        """Cancel the import in progress, which would delay the shutdown of the server."""
        self._closed = True
        if self._importing is not None:
            self._importing.cancel()

    async def check(
        self, app: str, artifact: bytes
    ) -> tuple[tuple[DeployedWorkflow, ...], tuple[DeployedSchedule, ...]]:
        """Import an app from an artifact; return its workflows and schedules.

        Raises:
            Problem: The app cannot be deployed; the detail states what its author has to change.
        """
        async with self._import_lock:
            declared = await self._import_unless_closed(app, artifact)
        _check_graphs(app, declared)
        for name in declared.workflows:
            problem = name_problem(
                "the name of a workflow", name, self._limits.max_workflow_name, "max_workflow_name"
            )
            if problem:
                raise Problem(ARTIFACT_INVALID, problem)
        return (
            tuple(_deployed_workflow(declared, name) for name in declared.workflows),
            tuple(map(_deployed_schedule, declared.schedules)),
        )

    async def _import_unless_closed(self, app: str, artifact: bytes) -> Declarations:
        """Import an app, unless the gateway shuts down.

        Raises:
            Problem: The artifact is invalid, or the gateway shuts down.
        """
        if not self._closed:
            self._importing = asyncio.create_task(self._import(app, artifact))
            try:
                return await self._importing
            except ArtifactInvalid as error:
                raise Problem(ARTIFACT_INVALID, error.message) from error
            except asyncio.CancelledError:
                if not self._closed:
                    raise
        raise Problem("overloaded", f"expected to import {app}, found that the gateway shuts down")

    async def _import(self, app: str, artifact: bytes) -> Declarations:
        folder = await asyncio.to_thread(_new_folder)
        try:
            await asyncio.to_thread(unpack, artifact, folder)
            check_app(app, folder)
            return await declarations_of(
                app, directory=folder, within_s=_IMPORT_S, passed=self._passed
            )
        except (AppNotLoaded, HostKilled) as error:
            raise ArtifactInvalid(_without_folder(folder, error.message)[:_ERROR_MAX]) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _new_folder() -> Path:
    """Create an empty folder; its path has no symbolic links, as in tracebacks."""
    return Path(mkdtemp(prefix="headwater-")).resolve()


def check_name(app: str) -> None:
    """Check the name of an app.

    Raises:
        Problem: The name is invalid.
    """
    try:
        if len(app) > _APP_MAX:
            detail = f"app: expected at most {_APP_MAX} characters, found {len(app)}"
            raise Problem("invalid_parameter", detail, field="app")
        parse_app_spec(app)
    except AppNotLoaded as error:
        raise Problem("invalid_parameter", f"app: {error.message}", field="app") from error


def _without_folder(folder: Path, text: str) -> str:
    """Remove the path of the temporary folder from a text."""
    return text.replace(f"{folder}/", "").replace(str(folder), "the artifact")


def _check_graphs(app: str, declared: Declarations) -> None:
    """Check that the app has the tasks and workflows that its graphs name.

    Raises:
        Problem: A workflow, task or subworkflow is missing.
    """
    if not declared.workflows:
        raise Problem(
            ARTIFACT_INVALID,
            f"expected a workflow in {app}, found only tasks, which need a graph in the same app",
        )
    tasks = {*declared.tasks, *BUILT_IN}
    for name, document in declared.graphs.items():
        for node in read_definition(document).nodes:
            missing = ""
            if node.task is not None and not node.external and node.task not in tasks:
                missing = f"the task {node.task!r}, found {_listed(tasks)}"
            elif node.subworkflow is not None and node.subworkflow not in declared.workflows:
                missing = f"the workflow {node.subworkflow!r}, found {_listed(declared.workflows)}"
            if missing:
                raise Problem(
                    ARTIFACT_INVALID,
                    f"expected {app} to have what its graph {name!r} names at the node "
                    f"{node.ref!r}, {missing}",
                )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _deployed_workflow(declared: Declarations, name: str) -> DeployedWorkflow:
    limit = declared.concurrency.get(name)
    document = declared.graphs.get(name)
    return DeployedWorkflow(
        name=name,
        kind=declared.kinds[name],
        latest=name in declared.latest,
        params=declared.params.get(name),
        limit=limit.limit if limit else None,
        limit_key=limit.key if limit else None,
        publishes=declared.publishes.get(name, ()),
        document=document,
        digest="" if document is None else digest(read_definition(document)),
    )


def _deployed_schedule(declared: Declared) -> DeployedSchedule:
    text = msgspec.json.encode(declared).decode()
    return DeployedSchedule(name=declared.schedule, declared=text)
