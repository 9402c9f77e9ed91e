"""The topics of graph definitions, deployments and artifacts."""

import contextlib
import hashlib
from collections.abc import Iterable

from headwater.processors.deployments import DeploymentOutcome, Deployments
from headwater.processors.graph.catalogue import Catalogue, Outcome
from headwater.schemas.codec import decode, encode, read_deployment_record
from headwater.schemas.deployments import (
    REMOVED,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRecord,
    DeploymentRetired,
    EnvironmentReported,
    GraphDeployed,
    LoadRequested,
)
from headwater.schemas.errors import Disposition, HeadwaterError, UndecodableRecord, UnknownSchema
from headwater.schemas.topics import ARTIFACTS, DEPLOYMENTS, GRAPH_DEFINITIONS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import PARTITION, FoldedTopic
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing


class DefinitionLog(FoldedTopic[Catalogue, Outcome]):
    """Follows the topic, and deploys definitions. Connects on first use."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        super().__init__(
            GRAPH_DEFINITIONS, Catalogue(), _apply_definition, cluster=cluster, client_id=client_id
        )

    async def deploy(self, record: GraphDeployed) -> Outcome:
        """Deploy a definition. Return the outcome when it is durable.

        Raises:
            BrokerUnavailable: It may have been deployed. It is safe to deploy it again.
        """
        return await self.append(record.name, encode(record))


def _apply_definition(catalogue: Catalogue, value: bytes) -> Outcome:
    return catalogue.apply(decode(value, GraphDeployed))


# -- deployments and artifacts


class ArtifactLost(HeadwaterError):
    """The record at an artifact's offset is not that artifact."""

    disposition = Disposition.HALT
    code = "artifact_lost"


class DeploymentLog(FoldedTopic[Deployments, DeploymentOutcome]):
    """Follows the deployments, and appends to them. Connects on first use."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        self._cluster = cluster
        super().__init__(
            DEPLOYMENTS, Deployments(), _apply_deployment, cluster=cluster, client_id=client_id
        )

    async def upload(self, deployment_id: str, artifact: bytes) -> int:
        """Append an artifact. Return its offset, for the record of its deployment.

        Raises:
            BrokerUnavailable: It may have been appended. It then only takes up space.
        """
        return await self.append_to(ARTIFACTS, deployment_id, artifact)

    async def write(self, record: DeploymentRecord) -> DeploymentOutcome:
        """Append a record about a deployment. Return the outcome when it is durable.

        Raises:
            BrokerUnavailable: It may have been appended. It is safe to append it again.
        """
        match record:
            case LoadRequested():
                key = _load_key(record.id)
            case DeploymentLoaded(worker=worker):
                key = _load_key(record.id, worker)
            case _:
                return await self.append(record.id, encode(record))
        return await self.append(key, encode(record), replaces=True)

    async def discard_loads(self, deployment_id: str, workers: Iterable[str]) -> None:
        """Delete the latest request to load a deployment, and the answers of workers.

        Raises:
            BrokerUnavailable: Some may have been deleted. They only take up space.
        """
        keys = [_load_key(deployment_id), *(_load_key(deployment_id, one) for one in workers)]
        deleted = [Outgoing(DEPLOYMENTS, PARTITION, key.encode(), None) for key in keys]
        await self._appender.append_or_stop(deleted)

    async def artifact(self, deployment: DeploymentCreated) -> bytes:
        """Return the artifact of a deployment, as it was uploaded.

        Raises:
            BrokerUnavailable: Kafka is not available.
            ArtifactLost: The record is missing, or another one.
        """
        end = deployment.offset + 1
        records = await self._records(ARTIFACTS, deployment.offset, end)
        values = [record.value or b"" for record in records]
        digest = hashlib.sha256(values[0]).hexdigest() if values else "nothing"
        if digest != deployment.digest:
            raise ArtifactLost(
                f"expected the artifact {deployment.digest} of {deployment.id} at "
                f"{ARTIFACTS}/{PARTITION}@{deployment.offset}, found {digest}"
            )
        return values[0]

    async def discard(self, removal: DeploymentRetired) -> None:
        """Delete the records and artifacts of a removed deployment; safe to repeat.

        The same content may have been uploaded by several requests, and again after the removal.

        Raises:
            BrokerUnavailable: Some may have been deleted.
        """
        records, offsets = superseded(await self._records(DEPLOYMENTS), removal)
        for offset in offsets:
            # Before the record that has the offset.
            records[:0] = await self._records(ARTIFACTS, offset, offset + 1)
        deleted = [
            Outgoing(record.topic, PARTITION, record.key, None)
            for record in records
            if record.key is not None and record.key.startswith(f"{removal.id}#".encode())
        ]
        if deleted:
            await self._appender.append_or_stop(deleted)

    async def _records(
        self, topic: str, start: int | None = None, end: int | None = None
    ) -> list[Incoming]:
        batches = read_partition(self._cluster, [topic], PARTITION, start=start, end=end)
        return [record async for records in batches for record in records]


def _load_key(deployment_id: str, worker: str = "") -> str:
    """Return the key of the latest request to load a deployment, or of a worker's answer."""
    return f"{deployment_id}#load/{worker}"


def superseded(
    records: Iterable[Incoming], removal: DeploymentRetired
) -> tuple[list[Incoming], list[int]]:
    """Return the records of a deployment before its removal, and the offsets of its artifacts.

    Without those on which other deployments depend: activations, removals, and a creation after an
    earlier removal, without which the activations that follow it would be rejected.
    """
    deleted: list[Incoming] = []
    offsets: list[int] = []
    is_removed = False
    for record in records:
        with contextlib.suppress(UndecodableRecord, UnknownSchema):
            match read_deployment_record(record.value):
                case DeploymentCreated(id=removal.id, offset=offset):
                    offsets.append(offset)
                    if not is_removed:
                        deleted.append(record)
                case (
                    EnvironmentReported(id=removal.id)
                    | LoadRequested(id=removal.id)
                    | DeploymentLoaded(id=removal.id)
                ):
                    deleted.append(record)
                case DeploymentRetired() as retired if retired == removal:
                    break
                case DeploymentRetired(id=removal.id, stage=stage):
                    is_removed = is_removed or stage == REMOVED
                case _:
                    continue
    return deleted, offsets


def _apply_deployment(deployments: Deployments, value: bytes) -> DeploymentOutcome:
    return deployments.apply(read_deployment_record(value))
