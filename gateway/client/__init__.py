"""HTTP client of the workflow service, for programs outside Headwater.

Answers are described in `schemas.answers`, refused commands in `schemas.failures`.
"""

from headwater.gateway.client.answers import (
    ConnectionFailedError,
    OutcomeUnknownError,
    StreamItem,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from headwater.gateway.client.client import Client, ClientDependencies
from headwater.gateway.client.handles import InstanceHandle, WorkflowHandle
from headwater.gateway.client.jobs import JobHandle, TakenJob
from headwater.schemas.failures import InstanceFailedError

__all__ = (
    "Client",
    "ClientDependencies",
    "ConnectionFailedError",
    "InstanceFailedError",
    "InstanceHandle",
    "JobHandle",
    "OutcomeUnknownError",
    "StreamItem",
    "TakenJob",
    "UnauthorizedError",
    "UnavailableError",
    "UnexpectedAnswerError",
    "WorkflowHandle",
)
