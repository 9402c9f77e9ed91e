"""Headwater: signed webhooks in, typed rows out; long-running work as durable workflows.

The public face for authors of workflows and tools: names are re-exported here, from wherever they
live, and nothing inside imports this module. It is run by the command `headwater`, which
`headwater --help` explains.
"""

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
from streams.code_host.step import Step
from streams.harness import WorkflowTest
from streams.refusals import (
    CommandRefusedError,
    InstanceExistsError,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidEventTypeError,
    InvalidInstanceIdError,
    WorkflowNotFoundError,
    WorkflowParamsInvalidError,
)

__all__ = (
    "Break",
    "ChildWorkflowError",
    "CommandRefusedError",
    "Continue",
    "DuplicateStepError",
    "EventTimeoutError",
    "HistoryDivergedError",
    "InstanceExistsError",
    "InstanceNotFoundError",
    "InstanceTerminalError",
    "InvalidEventTypeError",
    "InvalidInstanceIdError",
    "JoinError",
    "LoopError",
    "NonDeterministicError",
    "NonRetryableError",
    "NotAwaitedError",
    "RaceError",
    "Retry",
    "RollbackCheckpointError",
    "RollbackError",
    "Step",
    "StepFailedError",
    "StepTx",
    "UniqueConstraintError",
    "UnserialisableError",
    "Workflow",
    "WorkflowEvent",
    "WorkflowNotFoundError",
    "WorkflowParamsInvalidError",
    "WorkflowTest",
    "workflow",
)
