"""The topics of deployments and of their artifacts: for whoever runs, shows or deploys code."""

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
    """What lies where an artifact was written is not that artifact."""

    disposition = Disposition.HALT
    code = "artifact_lost"


class DeploymentLog(FoldedTopic[Deployments, DeploymentOutcome]):
    """Follows the deployments, and deploys; connects when first used."""

    def __init__(self, *, cluster: Cluster, client_id: str) -> None:
        self._cluster = cluster
        super().__init__(DEPLOYMENTS, Deployments(), _apply, cluster=cluster, client_id=client_id)

    async def upload(self, deployment_id: str, artifact: bytes) -> int:
        """Makes an artifact durable; gives its offset, for the record of its deployment.

        Errors: BrokerUnavailable, when it may lie there: one that nobody names costs its room.
        """
        return await self.append_to(ARTIFACTS, deployment_id, artifact)

    async def write(self, record: DeploymentCreated | DeploymentActivated) -> DeploymentOutcome:
        """Deploys or activates; says what came of it once it is durable.

        Errors: BrokerUnavailable, when it may have been done: to say it again does no harm.
        """
        return await self.append(record.id, encode(record))

    async def artifact(self, deployment: DeploymentCreated) -> bytes:
        """The artifact of a deployment, as it was uploaded.

        Errors: BrokerUnavailable; ArtifactLost.
        """
        end = deployment.offset + 1
        reading = read_partition(
            self._cluster, [ARTIFACTS], PARTITION, start=deployment.offset, end=end
        )
        found = [record.value or b"" async for records in reading for record in records]
        digest = hashlib.sha256(found[0]).hexdigest() if found else "nothing"
        if digest != deployment.digest:
            raise ArtifactLost(
                f"expected the artifact {deployment.digest} of {deployment.id} at "
                f"{ARTIFACTS}/{PARTITION}@{deployment.offset}, found {digest}"
            )
        return found[0]


def _apply(deployments: Deployments, value: bytes | None) -> DeploymentOutcome:
    return deployments.apply(read_deployment_record(value))
