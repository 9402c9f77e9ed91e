"""The client of workflows: everything that a program outside does with them, over HTTP alone.

What it answers is described in `schemas.answers`, and how a command is refused in
`schemas.failures`.
"""

from headwater.gateway.client.answers import StreamItem
from headwater.gateway.client.client import Client, World
from headwater.gateway.client.errors import (
    ConnectionFailedError,
    OutcomeUnknownError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from headwater.gateway.client.handles import InstanceHandle, WorkflowHandle
from headwater.gateway.client.jobs import JobHandle, TakenJob
from headwater.schemas.failures import InstanceFailedError

__all__ = (
    "Client",
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
    "World",
)
