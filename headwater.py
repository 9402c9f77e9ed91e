"""Headwater: signed webhooks in, typed rows out; long-running work as durable workflows.

The public face for authors of workflows and tools: names are re-exported here, from wherever they
live, and nothing inside imports this module. It is run by the command `headwater`, which
`headwater --help` explains.
"""

from gateway.client import (
    Client,
    ClientError,
    ConnectionFailedError,
    InstanceFailedError,
    OutcomeUnknownError,
    UnauthorizedError,
    UnavailableError,
)
from processors.replay.errors import (
    ChildWorkflowError,
    DuplicateStepError,
    EventTimeoutError,
    HistoryDivergedError,
    JoinError,
    LoopError,
    NonDeterministicError,
    NonRetryableError,
    NotAwaitedError,
    RaceError,
    RollbackCheckpointError,
    RollbackError,
    StepFailedError,
    UniqueConstraintError,
    UnserialisableError,
)
from streams.code_host.attempt import StepTx
from streams.code_host.definition import (
    Break,
    Continue,
    Retry,
    Workflow,
    WorkflowEvent,
    workflow,
)
from streams.code_host.schedules import Schedule, schedule
from streams.code_host.step import Step
from streams.harness import WorkflowTest
from streams.refusals import (
    CommandRefusedError,
    EventPayloadInvalidError,
    InstanceExistsError,
    InstanceNotErroredError,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidEventTypeError,
    InvalidInstanceIdError,
    MailboxFullError,
    StepNotFoundError,
    WorkflowNotFoundError,
    WorkflowParamsInvalidError,
)

__all__ = (
    "Break",
    "ChildWorkflowError",
    "Client",
    "ClientError",
    "CommandRefusedError",
    "ConnectionFailedError",
    "Continue",
    "DuplicateStepError",
    "EventPayloadInvalidError",
    "EventTimeoutError",
    "HistoryDivergedError",
    "InstanceExistsError",
    "InstanceFailedError",
    "InstanceNotErroredError",
    "InstanceNotFoundError",
    "InstanceTerminalError",
    "InvalidEventTypeError",
    "InvalidInstanceIdError",
    "JoinError",
    "LoopError",
    "MailboxFullError",
    "NonDeterministicError",
    "NonRetryableError",
    "NotAwaitedError",
    "OutcomeUnknownError",
    "RaceError",
    "Retry",
    "RollbackCheckpointError",
    "RollbackError",
    "Schedule",
    "Step",
    "StepFailedError",
    "StepNotFoundError",
    "StepTx",
    "UnauthorizedError",
    "UnavailableError",
    "UniqueConstraintError",
    "UnserialisableError",
    "Workflow",
    "WorkflowEvent",
    "WorkflowNotFoundError",
    "WorkflowParamsInvalidError",
    "WorkflowTest",
    "schedule",
    "workflow",
)
