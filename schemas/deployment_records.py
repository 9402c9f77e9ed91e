"""Decode records of the topic `deployments`, which has two kinds."""

from headwater.schemas.codec import decode, record_name
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated


def read_deployment_record(value: bytes | None) -> DeploymentCreated | DeploymentActivated:
    """Decode a record of the topic.

    Raises:
        UndecodableRecord: The bytes are not such a record.
        UnknownSchema: The schema id is not in the catalog.
    """
    if record_name(value) == "deployment_activated":
        return decode(value, DeploymentActivated)
    return decode(value, DeploymentCreated)
