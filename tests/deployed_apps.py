"""Apps that tests deploy: one after the other, of the same name, and no two of the same code."""

import hashlib
import io
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from headwater.processors.code.engine import ReplayEngine
from headwater.processors.deployments import Activated, deployment_id
from headwater.schemas.deployments import (
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
)
from headwater.streams.clock import now_ms
from headwater.streams.code_host.artifacts import ArtifactInvalid, unpack
from headwater.streams.code_host.requirements import parse_requirements
from headwater.streams.code_host.schedules import Schedule
from headwater.streams.code_host.sealed_folders import content_digest
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.deployment_log import DeploymentLog

APP = "shop"
#: Says in each step which code ran it, and where: the folder of its deployment.
_CODE = """
import math
import os
from pathlib import Path

from headwater import Retry, workflow

VERSION = {version!r}
EVER = Retry(limit=math.inf, delay="100 ms", backoff="constant")


def says():
    return VERSION


@workflow("order")
async def order(event, step):
    said = [await step.do("begin", says, retries=EVER)]
    await step.wait_for_event("go", type="go", timeout="1 hour")
    for n in range({steps}):
        said.append(await step.do(f"step-{{n}}", says, retries=EVER))
    return [*said, await step.run_workflow("parcel", "parcel", params=None)]


@workflow("parcel")
async def parcel(event, step):
    return await step.do("pack", says, retries=EVER)


@workflow("poll", versioning="latest")
async def poll(event, step):
    said = []
    for n in range(2):
        await step.wait_for_event(f"go-{{n}}", type="go", timeout="1 hour")
        said.append(await step.do(f"say-{{n}}", says, retries=EVER))
    return said
"""
_WORKFLOWS = (
    DeployedWorkflow(name="order", kind=ReplayEngine.kind),
    DeployedWorkflow(name="parcel", kind=ReplayEngine.kind),
    DeployedWorkflow(name="poll", kind=ReplayEngine.kind, latest=True),
)


def code_of(version: str, steps: int = 20) -> str:
    """The module of a version of the app."""
    return _CODE.format(version=version, steps=steps)


def zipped(code: str, requirements: str = "") -> bytes:
    """An artifact with a module of the app's name, and a requirements.txt if it has any."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as artifact:
        artifact.writestr(f"{APP}.py", code)
        if requirements:
            artifact.writestr("requirements.txt", requirements)
    return made.getvalue()


def content_of(artifact: bytes) -> str:
    """The digest of the unpacked files, as the gateway records it."""
    with TemporaryDirectory() as name:
        try:
            unpack(artifact, Path(name))
        except ArtifactInvalid:
            return ""
        return content_digest(Path(name))


def deployed_schedule(found: Schedule) -> DeployedSchedule:
    """A schedule, as a deployment has it."""
    text = msgspec.json.encode(found.declared).decode()
    return DeployedSchedule(name=found.declared.schedule, declared=text)


class Deployer:
    """Deploys and activates as a gateway does."""

    def __init__(self, log: DeploymentLog) -> None:
        self.log = log

    async def deploy(
        self,
        code: str,
        as_it_is: bytes = b"",
        limit: int | None = None,
        workflows: tuple[DeployedWorkflow, ...] = _WORKFLOWS,
        schedules: tuple[Schedule, ...] = (),
        requirements: str = "",
    ) -> str:
        """Deploy and activate a module of this code.

        Args:
            code: The code of the module.
            as_it_is: Bytes to deploy instead, which no gateway would accept.
            limit: How many runs of the first workflow may be active at once.
            requirements: The requirements.txt of the artifact.
        """
        artifact = as_it_is or zipped(code, requirements)
        digest = hashlib.sha256(artifact).hexdigest()
        name = deployment_id(APP, digest)
        record = DeploymentCreated(
            id=name,
            app=APP,
            digest=digest,
            size=len(artifact),
            offset=await self.log.upload(name, artifact),
            workflows=(msgspec.structs.replace(workflows[0], limit=limit), *workflows[1:]),
            by="tests",
            at_ms=now_ms(),
            schedules=tuple(map(deployed_schedule, schedules)),
            content=content_of(artifact),
            environment=parse_requirements(requirements).digest if requirements else "",
        )
        await self.log.write(record)
        return name

    async def activate(self, name: str, *, rollback: bool = False) -> None:
        record = DeploymentActivated(
            id=name, after="", rollback=rollback, by="tests", at_ms=now_ms()
        )
        assert isinstance(await self.log.write(record), Activated)

    async def release(self, code: str, limit: int | None = None) -> str:
        """Deploys, and activates."""
        name = await self.deploy(code, limit=limit)
        await self.activate(name)
        return name


@asynccontextmanager
async def deploying(bootstrap: str) -> AsyncIterator[Deployer]:
    """Whoever deploys."""
    log = DeploymentLog(cluster=Cluster(bootstrap), client_id="tests-deploying")
    try:
        yield Deployer(log)
    finally:
        await log.stop()
