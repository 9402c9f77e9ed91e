"""Reading the topic `deployments`, which has records of two kinds."""

from headwater.schemas.codec import decode, record_name
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated


def read_deployment_record(value: bytes | None) -> DeploymentCreated | DeploymentActivated:
    """The record that a value holds.

    Errors: UndecodableRecord, UnknownSchema.
    """
    if record_name(value) == "deployment_activated":
        return decode(value, DeploymentActivated)
    return decode(value, DeploymentCreated)
