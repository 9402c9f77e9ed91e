"""Deployments and their artifacts, written and read by several at once on a real broker."""

import asyncio
import hashlib
import os

import msgspec
import pytest

from headwater.processors.deployments import Activated, ActivationRejected, Created, deployment_id
from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRetired,
    LoadRequested,
)
from headwater.schemas.topics import ARTIFACTS, DEPLOYMENTS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.workflows.deployment_log import ArtifactLost, DeploymentLog

ARTIFACT_BYTES = 1_000_000


def gateway(topics: str) -> DeploymentLog:
    return DeploymentLog(cluster=Cluster(topics), client_id="tests-deployments")


async def deployed(log: DeploymentLog, app: str, artifact: bytes) -> Created:
    digest = hashlib.sha256(artifact).hexdigest()
    name = deployment_id(app, digest)
    record = DeploymentCreated(
        id=name,
        app=app,
        digest=digest,
        size=len(artifact),
        offset=await log.upload(name, artifact),
        workflows=(DeployedWorkflow(name="order", kind="replay"),),
        by="admin:tests",
        at_ms=now_ms(),
    )
    outcome = await log.write(record)
    assert isinstance(outcome, Created)
    return outcome


def activated(name: str, after: str = "") -> DeploymentActivated:
    return DeploymentActivated(id=name, after=after, rollback=False, by="k", at_ms=now_ms())


def test_artifacts_are_read_as_they_were_uploaded_also_between_others(topics: str):
    async def scenario() -> None:
        ours, theirs = gateway(topics), gateway(topics)
        try:
            artifacts = [os.urandom(ARTIFACT_BYTES) for _ in range(3)]
            made = [await deployed(ours, "between", artifact) for artifact in artifacts]
            seen = await theirs.catch_up()
            for item, artifact in zip(made, artifacts, strict=True):
                assert seen.by_id[item.deployment.id] == item.deployment
                assert await theirs.artifact(item.deployment) == artifact
        finally:
            await asyncio.gather(ours.stop(), theirs.stop())

    asyncio.run(scenario())


def test_what_lies_elsewhere_is_not_taken_for_the_artifact(topics: str):
    async def scenario() -> None:
        log = gateway(topics)
        try:
            first = (await deployed(log, "elsewhere", b"one")).deployment
            second = (await deployed(log, "elsewhere", b"two")).deployment
            wrong = msgspec.structs.replace(second, offset=first.offset)
            with pytest.raises(ArtifactLost, match=second.digest):
                await log.artifact(wrong)
        finally:
            await log.stop()

    asyncio.run(scenario())


def test_gateways_that_activate_at_once_agree_on_the_active_one(topics: str):
    async def scenario() -> None:
        gateways = [gateway(topics) for _ in range(3)]
        try:
            made = [
                (await deployed(gateways[0], "at-once", bytes([number]))).deployment.id
                for number in range(6)
            ]
            begun = await gateways[0].write(activated(made[0]))
            assert isinstance(begun, Activated)
            result = await asyncio.gather(
                *(
                    gateways[number % 3].write(activated(item, after=made[0]))
                    for number, item in enumerate(made[1:])
                )
            )
            taken = [item for item in result if isinstance(item, Activated)]
            assert len(taken) == 1
            assert (
                len([item for item in result if isinstance(item, ActivationRejected)])
                == len(made) - 2
            )
            for entry in gateways:
                assert (await entry.catch_up()).state == taken[0].id
        finally:
            await asyncio.gather(*(item.stop() for item in gateways))

    asyncio.run(scenario())


async def kept(topics: str, topic: str, name: str) -> list[bytes]:
    """The keys of a deployment that compaction keeps, except for the latest records about it."""
    latest: dict[bytes, bytes | None] = {}
    async for records in read_partition(Cluster(topics), [topic], 0):
        latest |= {record.key: record.value for record in records}
    own = f"{name}#".encode()
    return [key for key, value in latest.items() if key.startswith(own) and value is not None]


def test_a_removed_deployment_leaves_no_artifact_and_no_record_but_its_removal(topics: str):
    async def scenario() -> None:
        ours, theirs = gateway(topics), gateway(topics)
        try:
            # Two gateways deployed the same at once, each with an upload of its own.
            name = (await deployed(ours, "removed", b"old")).deployment.id
            await deployed(theirs, "removed", b"old")
            assert len(await kept(topics, ARTIFACTS, name)) == 2
            for stage in (CLOSED, REMOVED):
                await ours.write(
                    DeploymentRetired(id=name, stage=stage, closing="c", by="k", at_ms=now_ms())
                )
            removal = (await theirs.catch_up()).retired[name]
            await theirs.discard(removal)
            assert await kept(topics, ARTIFACTS, name) == []
            assert len(await kept(topics, DEPLOYMENTS, name)) == 2, "closed and removed"
            # Deployed again it is new, and to discard the old one again changes nothing.
            again = (await deployed(ours, "removed", b"old")).deployment
            await theirs.discard(removal)
            assert await theirs.artifact(again) == b"old"
            late = gateway(topics)
            try:
                assert (await late.catch_up()).by_id[name] == again
            finally:
                await late.stop()
        finally:
            await asyncio.gather(ours.stop(), theirs.stop())

    asyncio.run(scenario())


def test_requests_to_load_a_deployment_leave_no_records(topics: str):
    async def scenario() -> None:
        ours, theirs = gateway(topics), gateway(topics)
        worker = "workflows one"
        try:
            name = (await deployed(ours, "loaded", b"code")).deployment.id
            for number in range(3):
                request = f"{name} {number}"
                await ours.write(LoadRequested(id=name, request=request, at_ms=now_ms()))
                answer = DeploymentLoaded(
                    id=name, request=request, worker=worker, error="", at_ms=now_ms()
                )
                for installing, error in ((True, None), (False, "")):
                    await theirs.write(msgspec.structs.replace(answer, installing=installing))
                    assert (await ours.catch_up()).loads[request] == {worker: error}
                assert len(await kept(topics, DEPLOYMENTS, name)) == 3
                await ours.discard_loads(name, [worker])
            assert len(await kept(topics, DEPLOYMENTS, name)) == 1, "the creation"
        finally:
            await asyncio.gather(ours.stop(), theirs.stop())

    asyncio.run(scenario())
