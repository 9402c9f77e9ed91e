"""Seeing that what is about to be deployed can be run: it is imported once, in another process.

So owners know what a deployment declares without importing anything, and its author sees the
traceback at once. The process sees the environment variables that apps see, and no others.
"""

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import msgspec

from headwater.gateway.http.problems import Problem
from headwater.processors.graph.definition import digest, read_definition
from headwater.processors.runs.limits import name_fault
from headwater.schemas.deployments import DeployedSchedule, DeployedWorkflow
from headwater.schemas.failures import ARTIFACT_INVALID
from headwater.schemas.history import Limits
from headwater.streams.code_host.apps import AppNotLoaded, Declarations, read_spec
from headwater.streams.code_host.artifacts import ArtifactInvalid, check_app, unpack
from headwater.streams.code_host.hosted_tasks import BUILT_IN
from headwater.streams.code_host.schedules import Declared
from headwater.streams.workflows.host_process import HostKilled, declarations_of

#: How long an app may take to be imported, in seconds; whoever deploys waits for it.
_IMPORT_S: Final = 30.0
#: Characters of the name of an app.
_APP_MAX: Final = 200
#: Characters that are told of why an app cannot be imported: a traceback of many frames.
_TOLD_MAX: Final = 8_000


class ArtifactCheck:
    """Imports apps, one at a time: each takes as much memory and time as it likes.

    Args:
        passed: Environment variables that apps see besides those that they always see.
        limits: Limits of what they declare.
    """

    def __init__(self, *, passed: Sequence[str], limits: Limits) -> None:
        self._passed = passed
        self._limits = limits
        self._turn = asyncio.Semaphore(1)
        self._importing: asyncio.Task[Declarations] | None = None
        self._ended = False

    def close(self) -> None:
        """Ends what is under way: a server that ends waits for its answers."""
        self._ended = True
        if self._importing is not None:
            self._importing.cancel()

    async def declared(
        self, app: str, artifact: bytes
    ) -> tuple[tuple[DeployedWorkflow, ...], tuple[DeployedSchedule, ...]]:
        """The workflows, and the schedules, that an app in an artifact declares.

        Errors: Problem, which says what its author has to change.
        """
        async with self._turn:
            declared = await self._in_time(app, artifact)
        _check_graphs(app, declared)
        for name in declared.workflows:
            fault = name_fault(
                "the name of a workflow", name, self._limits.max_workflow_name, "max_workflow_name"
            )
            if fault:
                raise Problem(ARTIFACT_INVALID, fault)
        return (
            tuple(_deployed(declared, name) for name in declared.workflows),
            tuple(map(_scheduled, declared.schedules)),
        )

    async def _in_time(self, app: str, artifact: bytes) -> Declarations:
        """What an app declares, unless the gateway ends before.

        Errors: Problem.
        """
        if not self._ended:
            self._importing = asyncio.create_task(self._declared(app, artifact))
            try:
                return await self._importing
            except ArtifactInvalid as error:
                raise Problem(ARTIFACT_INVALID, error.message) from error
            except asyncio.CancelledError:
                if not self._ended:
                    raise
        raise Problem("overloaded", f"expected to import {app}, found that the gateway ends")

    async def _declared(self, app: str, artifact: bytes) -> Declarations:
        folder = await asyncio.to_thread(_new_folder)
        try:
            await asyncio.to_thread(unpack, artifact, folder)
            check_app(app, folder)
            return await declarations_of(
                app, directory=folder, within_s=_IMPORT_S, passed=self._passed
            )
        except (AppNotLoaded, HostKilled) as error:
            raise ArtifactInvalid(_without(folder, error.message)[:_TOLD_MAX]) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _new_folder() -> Path:
    """An empty folder, as processes name the one that they are in."""
    return Path(mkdtemp(prefix="headwater-")).resolve()


def check_name(app: str) -> None:
    """Sees that this may be the name of an app.

    Errors: Problem.
    """
    try:
        if len(app) > _APP_MAX:
            found = f"expected at most {_APP_MAX} characters, found {len(app)}"
            raise Problem("invalid_parameter", f"app: {found}", field="app")
        read_spec(app)
    except AppNotLoaded as error:
        raise Problem("invalid_parameter", f"app: {error.message}", field="app") from error


def _without(folder: Path, text: str) -> str:
    """A text without the folder that is gone when it is read."""
    return text.replace(f"{folder}/", "").replace(str(folder), "the artifact")


def _check_graphs(app: str, declared: Declarations) -> None:
    """Sees that there is what graphs name: their runs would fail for want of it.

    Errors: Problem.
    """
    if not declared.workflows:
        raise Problem(
            ARTIFACT_INVALID,
            f"expected a workflow in {app}, found tasks alone, which are for graphs beside them",
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


def _deployed(declared: Declarations, name: str) -> DeployedWorkflow:
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


def _scheduled(declared: Declared) -> DeployedSchedule:
    text = msgspec.json.encode(declared).decode()
    return DeployedSchedule(name=declared.schedule, declared=text)
