"""The topics of deployments and artifacts, for processes that run, show or deploy code."""

import hashlib

from headwater.processors.deployments import DeploymentOutcome, Deployments
from headwater.schemas.codec import encode
from headwater.schemas.deployment_records import read_deployment_record
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.topics import ARTIFACTS, DEPLOYMENTS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.folded_topic import PARTITION, FoldedTopic
from headwater.streams.kafka.partition_reader import read_partition


class ArtifactLost(HeadwaterError):
    """The record at an artifact's offset is not that artifact."""

    disposition = Disposition.HALT
    code = "artifact_lost"


class DeploymentLog(FoldedTopic[Deployments, DeploymentOutcome]):
    """Follows the deployments, and appends to them. Connects on first use."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        self._cluster = cluster
        super().__init__(DEPLOYMENTS, Deployments(), _apply, cluster=cluster, client_id=client_id)

    async def upload(self, deployment_id: str, artifact: bytes) -> int:
        """Append an artifact. Return its offset, for the record of its deployment.

        Raises:
            BrokerUnavailable: It may have been appended. It then only takes up space.
        """
        return await self.append_to(ARTIFACTS, deployment_id, artifact)

    async def write(self, record: DeploymentCreated | DeploymentActivated) -> DeploymentOutcome:
        """Append a deployment or activation. Return the outcome when it is durable.

        Raises:
            BrokerUnavailable: It may have been appended. It is safe to append it again.
        """
        return await self.append(record.id, encode(record))

    async def artifact(self, deployment: DeploymentCreated) -> bytes:
        """Return the artifact of a deployment, as it was uploaded.

        Raises:
            BrokerUnavailable: Kafka is not available.
            ArtifactLost: The record is missing, or another one.
        """
        end = deployment.offset + 1
        batches = read_partition(
            self._cluster, [ARTIFACTS], PARTITION, start=deployment.offset, end=end
        )
        values = [record.value or b"" async for records in batches for record in records]
        digest = hashlib.sha256(values[0]).hexdigest() if values else "nothing"
        if digest != deployment.digest:
            raise ArtifactLost(
                f"expected the artifact {deployment.digest} of {deployment.id} at "
                f"{ARTIFACTS}/{PARTITION}@{deployment.offset}, found {digest}"
            )
        return values[0]


def _apply(deployments: Deployments, value: bytes | None) -> DeploymentOutcome:
    return deployments.apply(read_deployment_record(value))
