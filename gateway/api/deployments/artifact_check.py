"""Checks an app before it is deployed: imports it once, in another process.

Owners get the declarations of a deployment without importing its code, and its author sees the
traceback of a failed import at once. The process has only the environment variables of apps.
"""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, NamedTuple

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.processors.graph.definition import digest, read_definition
from headwater.processors.runs.limits import name_problem
from headwater.schemas.deployments import DeployedSchedule, DeployedWorkflow, DeploymentCreated
from headwater.schemas.failures import ARTIFACT_INVALID
from headwater.schemas.history import Limits
from headwater.streams.code_host.apps import AppNotLoaded, Declarations, parse_app_spec
from headwater.streams.code_host.artifact_metadata import check_metadata
from headwater.streams.code_host.artifacts import ArtifactInvalid, check_app, unpack
from headwater.streams.code_host.host import BUILT_IN
from headwater.streams.code_host.requirements import Requirements
from headwater.streams.code_host.schedules import Declared
from headwater.streams.code_host.sealed_folders import content_digest, remove_sealed, seal
from headwater.streams.workflows.environments import Environment, EnvironmentFailed, Environments
from headwater.streams.workflows.host_process import HostCode, HostKilled, declarations_of

#: Artifacts that are unpacked at the same time; more than operators deploy at once.
_CHECKS_MAX: Final = 4
#: Seconds that the import of an app may take, while the request to deploy waits.
_IMPORT_S: Final = 30.0
#: Most characters of the name of an app.
_APP_MAX: Final = 200
#: Most characters of an import error: enough for a traceback of many frames.
_ERROR_MAX: Final = 8_000


class CheckedArtifact(NamedTuple):
    """What the record of a deployment states about its artifact.

    Attributes:
        workflows: Its workflows.
        schedules: Its schedules.
        content: Digest of its unpacked files.
        requirements: The packages of its requirements.txt, as name==version.
        environment: Digest of its requirements; empty if it has none.
        environment_bytes: Bytes of its environment.
    """

    workflows: tuple[DeployedWorkflow, ...]
    schedules: tuple[DeployedSchedule, ...]
    content: str
    requirements: tuple[str, ...] = ()
    environment: str = ""
    environment_bytes: int = 0


class _Unpacked(NamedTuple):
    """An artifact that can be imported.

    Attributes:
        folder: Folder of its files.
        content: Digest of its files.
        requirements: Its requirements.txt, if it has one.
        environment: The environment of these.
    """

    folder: Path
    content: str
    requirements: Requirements | None = None
    environment: Environment | None = None


class ArtifactCheck:
    """Checks artifacts: installs their requirements, and imports them.

    They are imported one at a time, because an import may use much memory and time. Installations
    do not wait for one another.

    Args:
        passed: Environment variables of apps, besides those that they always have.
        limits: Limits of their declarations.
        environments: Environments of this machine.
        memory_mib: Memory of an import.
    """

    def __init__(
        self,
        *,
        passed: Sequence[str],
        limits: Limits,
        environments: Environments,
        memory_mib: int,
    ) -> None:
        self._passed = passed
        self._limits = limits
        self._environments = environments
        self._memory_mib = memory_mib
        self._checks = asyncio.Semaphore(_CHECKS_MAX)
        self._import_lock = asyncio.Semaphore(1)
        self._checking: set[asyncio.Task[CheckedArtifact]] = set()
        self._closed = False

    def close(self) -> None:
        """Cancel the checks in progress, which would delay the shutdown of the server."""
        self._closed = True
        for check in self._checking:
            check.cancel()

    async def remove_unused(self, deployments: Iterable[DeploymentCreated]) -> None:
        """Remove environments that none of these deployments has: those of refused artifacts."""
        await self._environments.remove_unused({item.environment for item in deployments})

    async def check(self, app: str, artifact: bytes) -> CheckedArtifact:
        """Import an app from an artifact; return what its deployment records.

        Raises:
            Problem: The app cannot be deployed; the detail states what its author has to change.
        """
        async with self._checks:
            if not self._closed:
                task = asyncio.create_task(self._check(app, artifact))
                self._checking.add(task)
                task.add_done_callback(self._checking.discard)
                try:
                    return await task
                except (ArtifactInvalid, EnvironmentFailed) as error:
                    raise Problem(ARTIFACT_INVALID, error.message) from error
                except asyncio.CancelledError:
                    if not self._closed:
                        raise
        raise Problem("overloaded", f"expected to import {app}, found that the gateway shuts down")

    async def _check(self, app: str, artifact: bytes) -> CheckedArtifact:
        folder = await asyncio.to_thread(_new_folder)
        try:
            unpacked = await asyncio.to_thread(_unpacked, app, artifact, folder / "code")
            if unpacked.requirements is not None:
                environment = await self._environments.install(unpacked.requirements)
                unpacked = unpacked._replace(environment=environment)
            async with self._import_lock:
                declared = await self._import(app, unpacked)
        finally:
            await asyncio.to_thread(remove_sealed, folder)
        self._check_declared(app, declared)
        return _checked(declared, unpacked)

    async def _import(self, app: str, unpacked: _Unpacked) -> Declarations:
        folder, environment = unpacked.folder, unpacked.environment
        scratch = folder.parent / "scratch"
        await asyncio.to_thread(scratch.mkdir)
        code = HostCode(folder, scratch, None if environment is None else environment.python)
        try:
            return await declarations_of(
                app,
                code=code,
                within_s=_IMPORT_S,
                passed=self._passed,
                memory_max=self._memory_mib * 1024 * 1024,
            )
        except (AppNotLoaded, HostKilled) as error:
            message = _without_folder(folder, error.message)[:_ERROR_MAX]
            if "MemoryError" in message:
                message += f"\nIt may use {self._memory_mib} MiB (HEADWATER_CHECK_MEMORY_MIB)."
            raise ArtifactInvalid(message) from error

    def _check_declared(self, app: str, declared: Declarations) -> None:
        """Check the declarations of an app.

        Raises:
            Problem: They have an error.
        """
        _check_graphs(app, declared)
        for name in declared.workflows:
            problem = name_problem(
                "the name of a workflow", name, self._limits.max_workflow_name, "max_workflow_name"
            )
            if problem:
                raise Problem(ARTIFACT_INVALID, problem)


def _checked(declared: Declarations, unpacked: _Unpacked) -> CheckedArtifact:
    requirements, environment = unpacked.requirements, unpacked.environment
    return CheckedArtifact(
        tuple(_deployed_workflow(declared, name) for name in declared.workflows),
        tuple(map(_deployed_schedule, declared.schedules)),
        unpacked.content,
        () if requirements is None else requirements.names,
        "" if requirements is None else requirements.digest,
        0 if environment is None else environment.size,
    )


def _unpacked(app: str, artifact: bytes, folder: Path) -> _Unpacked:
    """Unpack an artifact, and check what it contains and requires.

    Raises:
        ArtifactInvalid: It cannot be deployed.
    """
    folder.mkdir()
    unpack(artifact, folder)
    check_app(app, folder)
    requirements = check_metadata(folder)
    seal(folder)
    return _Unpacked(folder, content_digest(folder), requirements)


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
