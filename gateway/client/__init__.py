"""The client of workflows: everything that a program outside does with them, over HTTP alone."""

from headwater.gateway.client.answers import (
    CurrentStep,
    Described,
    Event,
    Failure,
    History,
    InstanceMeta,
    InstanceStatus,
    Listed,
    LogLine,
    Page,
    Parent,
    Step,
    StreamItem,
)
from headwater.gateway.client.client import Client, WorkflowListed, World
from headwater.gateway.client.errors import (
    ConnectionFailedError,
    InstanceFailedError,
    OutcomeUnknownError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from headwater.gateway.client.handles import InstanceHandle, WorkflowHandle

__all__ = (
    "Client",
    "ConnectionFailedError",
    "CurrentStep",
    "Described",
    "Event",
    "Failure",
    "History",
    "InstanceFailedError",
    "InstanceHandle",
    "InstanceMeta",
    "InstanceStatus",
    "Listed",
    "LogLine",
    "OutcomeUnknownError",
    "Page",
    "Parent",
    "Step",
    "StreamItem",
    "UnauthorizedError",
    "UnavailableError",
    "UnexpectedAnswerError",
    "WorkflowHandle",
    "WorkflowListed",
    "World",
)
