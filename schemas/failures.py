"""Rejections and failures: names, codes, HTTP statuses, and the errors of clients.

A command is rejected with a code, which is in its log record, its reply, the HTTP problem document
and the error that a client catches. A step, a branch or a run fails with a name, which
`history.steps[i].error.name` shows. Both are defined only here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from typing_extensions import override

# --- names of failures that Headwater itself assigns ---------------------------------------------

CHILD_WORKFLOW: Final = "ChildWorkflowError"
DATA: Final = "DataError"
DEAD_END: Final = "DeadEndError"
DEPTH_LIMIT: Final = "DepthLimitError"
EVENT_TIMEOUT: Final = "EventTimeoutError"
HOST_LOST: Final = "HostLostError"
JOIN: Final = "JoinError"
LEASE_EXPIRED: Final = "LeaseExpiredError"
MAX_STEPS_EXCEEDED: Final = "MAX_STEPS_EXCEEDED"
RACE: Final = "RaceError"
ROUND_LIMIT: Final = "RoundLimitError"
RUN_TIMEOUT: Final = "RunTimeoutError"
SLOT_QUEUE_FULL: Final = "SLOT_QUEUE_FULL"
RUN_TOO_LARGE: Final = "RUN_TOO_LARGE"
ROLLBACK: Final = "RollbackError"
STATEMENT_REFUSED: Final = "StatementRefusedError"
STEP_TIMEOUT: Final = "StepTimeoutError"
TOKEN_LIMIT: Final = "TokenLimitError"  # noqa: S105, not a secret
UNIQUE_CONSTRAINT: Final = "UniqueConstraintError"
UNSERIALISABLE: Final = "UnserialisableError"

# --- codes of rejected commands ------------------------------------------------------------------

ALREADY_CANCELLED: Final = "ALREADY_CANCELLED"
ALREADY_MOVED: Final = "ALREADY_MOVED"
ALREADY_PAUSED: Final = "ALREADY_PAUSED"
ARTIFACT_INVALID: Final = "artifact_invalid"
DEPLOYMENT_ACTIVE: Final = "deployment_active"
DEPLOYMENT_CHANGED: Final = "deployment_changed"
DEPLOYMENT_IN_USE: Final = "deployment_in_use"
DEPLOYMENT_NOT_FOUND: Final = "deployment_not_found"
DEPLOYMENT_NOT_LOADED: Final = "deployment_not_loaded"
DEPLOYMENT_REMOVED: Final = "deployment_removed"
EVENT_ALREADY_RECEIVED: Final = "EVENT_ALREADY_RECEIVED"
GRAPH_CHANGED: Final = "GRAPH_CHANGED"
GRAPH_INVALID: Final = "GRAPH_INVALID"
GRAPH_NOT_FOUND: Final = "GRAPH_NOT_FOUND"
GRAPH_OF_APP: Final = "GRAPH_OF_APP"
IDEMPOTENCY_CONFLICT: Final = "idempotency_conflict"
INSTANCE_CREATED_BEFORE: Final = "INSTANCE_CREATED_BEFORE"
INSTANCE_EXISTS: Final = "INSTANCE_ID_ALREADY_EXISTS"
INSTANCE_NOT_ENDED: Final = "INSTANCE_NOT_ENDED"
INSTANCE_NOT_ERRORED: Final = "INSTANCE_NOT_ERRORED"
INSTANCE_NOT_FOUND: Final = "INSTANCE_NOT_FOUND"
INSTANCE_TERMINAL: Final = "INSTANCE_TERMINAL"
#: Also the name of the failure that ends a run for which no decision is possible.
INTERNAL: Final = "INTERNAL"
INVALID_COMMAND: Final = "INVALID_COMMAND"
INVALID_EVENT_PAYLOAD: Final = "INVALID_EVENT_PAYLOAD"
INVALID_EVENT_TYPE: Final = "INVALID_EVENT_TYPE"
INVALID_INSTANCE_ID: Final = "INVALID_INSTANCE_ID"
INVALID_LABELS: Final = "INVALID_LABELS"
JOB_ALREADY_ENDED: Final = "JOB_ALREADY_ENDED"
JOB_CANCELLED: Final = "JOB_CANCELLED"
JOB_END_REPEATED: Final = "JOB_END_REPEATED"
JOB_LEASE_LOST: Final = "JOB_LEASE_LOST"
JOB_NOT_AVAILABLE: Final = "JOB_NOT_AVAILABLE"
JOB_NOT_FOUND: Final = "JOB_NOT_FOUND"
JOB_OUTPUT_INVALID: Final = "JOB_OUTPUT_INVALID"
MAILBOX_FULL: Final = "MAILBOX_FULL"
BRANCH_NOT_FOUND: Final = "BRANCH_NOT_FOUND"
MIGRATION_REFUSED: Final = "MIGRATION_REFUSED"
NODE_NOT_FOUND: Final = "NODE_NOT_FOUND"
NO_ACTIVE_DEPLOYMENT: Final = "no_active_deployment"
NOTHING_TO_ROLL_BACK: Final = "nothing_to_roll_back"
NOT_A_GRAPH: Final = "NOT_A_GRAPH"
NOT_PAUSED: Final = "NOT_PAUSED"
NOT_THE_PARENT: Final = "NOT_THE_PARENT"
#: Also the name of the failure that ends a run when its next events fit in no record.
RECORD_TOO_LARGE: Final = "RECORD_TOO_LARGE"
REPLAY_DIVERGED: Final = "replay_diverged"
RUN_NOT_FOUND: Final = "RUN_NOT_FOUND"
SHARE_TAKEN: Final = "share_taken"
SLOT_GRANTED_BEFORE: Final = "SLOT_GRANTED_BEFORE"
SLOT_NOT_WANTED: Final = "SLOT_NOT_WANTED"
SEQUENCE_NOT_FOUND: Final = "SEQUENCE_NOT_FOUND"
STALE: Final = "STALE"
STEP_NOT_FOUND: Final = "STEP_NOT_FOUND"
TOKEN_NOT_FOUND: Final = "TOKEN_NOT_FOUND"  # noqa: S105, a token of a graph
TRANSITION_NOT_FOUND: Final = "TRANSITION_NOT_FOUND"
WORKFLOW_NOT_FOUND: Final = "WORKFLOW_NOT_FOUND"
INVALID_PARAMS: Final = "INVALID_PARAMS"


# --- errors of clients, for a server as for a test harness ---------------------------------------


class ClientError(Exception):
    """Base of the errors that workflow clients catch.

    Attributes:
        code: Code of the problem document; "" without one.
        status: HTTP status; None without a response.
        detail: What is wrong.
        field: The parameter or member that is wrong.
        repeated: Whether an earlier attempt of the same request may have been accepted.
        position: Log position of the rejection, as the server states it.
    """

    code: ClassVar[str] = ""

    def __init__(
        self,
        detail: str,
        *,
        code: str = "",
        status: int | None = None,
        field: str | None = None,
        repeated: bool = False,
        position: str = "",
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.field = field
        self.repeated = repeated
        self.position = position
        if code:
            # Most classes have a code of their own; an unknown code is set on the instance.
            vars(self)["code"] = code


class InstanceFailedError(Exception):
    """An instance has ended without the requested result.

    Attributes:
        outcome: errored or terminated.
        name: Name of its error; "" if it has none.
        message: Message of its error; "" if it has none.
    """

    def __init__(self, instance: str, outcome: str, name: str = "", message: str = "") -> None:
        super().__init__(instance, outcome, name, message)
        self.instance = instance
        self.outcome = outcome
        self.name = name
        self.message = message

    @override
    def __str__(self) -> str:
        suffix = f": {self.name}: {self.message}" if self.name else ""
        return f"expected {self.instance} to complete, found it {self.outcome}{suffix}"


class CommandRefusedError(ClientError):
    """A command was rejected and changed nothing; `.code` is the reason."""


class DeploymentRemovedError(CommandRefusedError):
    """The deployment existed, and was removed."""

    code = DEPLOYMENT_REMOVED


class WorkflowNotFoundError(CommandRefusedError):
    """There is no workflow of this name."""

    code = WORKFLOW_NOT_FOUND


class InstanceNotFoundError(CommandRefusedError):
    """There is no such instance."""

    code = INSTANCE_NOT_FOUND


class InstanceExistsError(CommandRefusedError):
    """An instance with this id exists already."""

    code = INSTANCE_EXISTS


class IdempotencyConflictError(CommandRefusedError):
    """The idempotency key was used before, for something else."""

    code = IDEMPOTENCY_CONFLICT


class InstanceTerminalError(CommandRefusedError):
    """The instance has ended."""

    code = INSTANCE_TERMINAL


class InstanceNotErroredError(CommandRefusedError):
    """Only an instance that has errored can be retried."""

    code = INSTANCE_NOT_ERRORED


class StepNotFoundError(CommandRefusedError):
    """The instance has no such step, or its code can no longer reach it."""

    code = STEP_NOT_FOUND


class InvalidInstanceIdError(CommandRefusedError):
    """The id of an instance violates the rules."""

    code = INVALID_INSTANCE_ID


class InvalidLabelsError(CommandRefusedError):
    """The labels of an instance violate the rules."""

    code = INVALID_LABELS


class InvalidEventTypeError(CommandRefusedError):
    """The type of an event violates the rules."""

    code = INVALID_EVENT_TYPE


class WorkflowParamsInvalidError(CommandRefusedError):
    """The params of an instance do not match its workflow's schema."""

    code = INVALID_PARAMS


class EventPayloadInvalidError(CommandRefusedError):
    """The payload of an event is too large."""

    code = INVALID_EVENT_PAYLOAD


class MailboxFullError(CommandRefusedError):
    """The instance has received too many events that it never consumed."""

    code = MAILBOX_FULL


class JobLeaseLostError(CommandRefusedError):
    """A job no longer belongs to its worker: its lease expired, or the attempt timed out."""

    code = JOB_LEASE_LOST


class JobAlreadyEndedError(CommandRefusedError):
    """An attempt of a job has ended already, with another outcome."""

    code = JOB_ALREADY_ENDED


class JobCancelledError(CommandRefusedError):
    """A job was canceled: its token was canceled, or its run has ended."""

    code = JOB_CANCELLED


# --- the registry --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """A code of a rejection.

    Attributes:
        status: HTTP status of its problem document.
        title: Title of its problem document.
        error: The error that clients catch.
        field: The member of the request that it is about, if any.
        settled: Whether the requested state is the current one, which clients treat as success.
    """

    code: str
    status: int
    title: str
    error: type[CommandRefusedError] = CommandRefusedError
    field: str | None = None
    settled: bool = False


REFUSALS: Final = {
    refusal.code: refusal
    for refusal in (
        Refusal(INVALID_PARAMS, 400, "The params are invalid",
                WorkflowParamsInvalidError, field="params"),
        Refusal(INVALID_INSTANCE_ID, 400, "The instance id is invalid",
                InvalidInstanceIdError, field="id"),
        Refusal(INVALID_LABELS, 400, "The labels are invalid",
                InvalidLabelsError, field="labels"),
        Refusal(INVALID_EVENT_TYPE, 400, "The event type is invalid",
                InvalidEventTypeError, field="type"),
        Refusal(INVALID_EVENT_PAYLOAD, 400, "The event payload is invalid",
                EventPayloadInvalidError, field="payload"),
        Refusal(JOB_OUTPUT_INVALID, 400, "The job output is invalid", field="output"),
        Refusal(WORKFLOW_NOT_FOUND, 404, "No such workflow", WorkflowNotFoundError),
        Refusal(INSTANCE_NOT_FOUND, 404, "No such instance", InstanceNotFoundError),
        Refusal(RUN_NOT_FOUND, 404, "No such run", field="runNumber"),
        Refusal(STEP_NOT_FOUND, 404, "No such step", StepNotFoundError, field="fromStep"),
        Refusal(BRANCH_NOT_FOUND, 404, "No such branch waits at a join", field="branch"),
        Refusal(NODE_NOT_FOUND, 404, "The graph has no such node", field="node"),
        Refusal(SEQUENCE_NOT_FOUND, 404, "The run has no such event", field="at"),
        Refusal(TOKEN_NOT_FOUND, 404, "No such active token", field="token"),
        Refusal(TRANSITION_NOT_FOUND, 404, "The token cannot arrive by this transition",
                field="transition"),
        Refusal(ARTIFACT_INVALID, 400, "The artifact cannot be deployed"),
        Refusal(DEPLOYMENT_NOT_FOUND, 404, "No such deployment", field="deploymentId"),
        Refusal(DEPLOYMENT_CHANGED, 412, "Another deployment was activated meanwhile"),
        Refusal(DEPLOYMENT_REMOVED, 410, "The deployment was removed", DeploymentRemovedError,
                field="deploymentId"),
        Refusal(DEPLOYMENT_IN_USE, 409, "Runs of the deployment have not ended"),
        Refusal(DEPLOYMENT_ACTIVE, 409, "New runs begin on the deployment"),
        Refusal(SHARE_TAKEN, 409, "Another deployment has a share of the new runs"),
        Refusal(NO_ACTIVE_DEPLOYMENT, 409, "No deployment is active"),
        Refusal(DEPLOYMENT_NOT_LOADED, 409, "A worker cannot load the deployment"),
        Refusal(REPLAY_DIVERGED, 409, "Open runs would continue on code that they do not fit"),
        Refusal(NOTHING_TO_ROLL_BACK, 409, "No deployment was active before"),
        Refusal(GRAPH_INVALID, 400, "The definition contradicts itself"),
        Refusal(GRAPH_NOT_FOUND, 404, "No such graph, or no such version"),
        Refusal(GRAPH_OF_APP, 409, "An app has a workflow of this name"),
        Refusal(GRAPH_CHANGED, 412, "Another version was deployed meanwhile"),
        Refusal(NOT_A_GRAPH, 409, "The run is not a graph run"),
        Refusal(MIGRATION_REFUSED, 409, "The run cannot continue on that definition"),
        Refusal(JOB_NOT_FOUND, 404, "No such job"),
        Refusal(INSTANCE_EXISTS, 409, "An instance of this id exists", InstanceExistsError),
        Refusal(IDEMPOTENCY_CONFLICT, 409, "The idempotency key was used for something else",
                IdempotencyConflictError, field="Idempotency-Key"),
        Refusal(INSTANCE_CREATED_BEFORE, 409, "The instance was created by this request before",
                settled=True),
        Refusal(INSTANCE_TERMINAL, 409, "The instance has ended", InstanceTerminalError),
        Refusal(INSTANCE_NOT_ERRORED, 409, "The instance has not errored",
                InstanceNotErroredError),
        Refusal(MAILBOX_FULL, 409, "The instance's mailbox is full", MailboxFullError),
        Refusal(NOT_THE_PARENT, 409, "The instance is not a child of the sender"),
        Refusal(JOB_NOT_AVAILABLE, 409, "The job is not available now"),
        Refusal(JOB_LEASE_LOST, 409, "The worker no longer has the job",
                JobLeaseLostError),
        Refusal(JOB_ALREADY_ENDED, 409, "The attempt has ended already", JobAlreadyEndedError),
        Refusal(JOB_CANCELLED, 410, "The job was canceled", JobCancelledError),
        Refusal(JOB_END_REPEATED, 409, "The attempt was ended by this request before",
                settled=True),
        Refusal(STALE, 409, "The command arrived too late"),
        Refusal(SLOT_NOT_WANTED, 409, "The run does not wait for this slot"),
        Refusal(SLOT_QUEUE_FULL, 409, "Too many runs wait for a slot of the limit"),
        Refusal(SLOT_GRANTED_BEFORE, 409, "The run has its slot already", settled=True),
        Refusal(RECORD_TOO_LARGE, 409, "The decision does not fit into a record"),
        Refusal(INVALID_COMMAND, 400, "The command has an invalid name"),
        Refusal(INTERNAL, 500, "The command could not be decided"),
        Refusal(ALREADY_CANCELLED, 409, "The instance is being canceled already", settled=True),
        Refusal(ALREADY_MOVED, 409, "The run is on that code already", settled=True),
        Refusal(ALREADY_PAUSED, 409, "The instance is paused already", settled=True),
        Refusal(NOT_PAUSED, 409, "The instance is not paused", settled=True),
        Refusal(EVENT_ALREADY_RECEIVED, 409, "The event was received before", settled=True),
    )
}  # fmt: skip

#: By error code, the next step of the person who sees the error, with the command for it.
NEXT_STEPS: Final[Mapping[str, str]] = {
    WORKFLOW_NOT_FOUND: "`headwater workflows list` shows those that exist; if this one is among "
    "them, not every worker was started with its app",
    INSTANCE_NOT_FOUND: "`headwater instances list` shows those that exist",
    INSTANCE_EXISTS: "`headwater instances restart` begins a new run of it",
    INSTANCE_TERMINAL: "`headwater instances restart` begins a new run of it",
    INSTANCE_NOT_ERRORED: "`headwater instances restart` begins a new run of any instance",
    JOB_LEASE_LOST: "`headwater jobs activate` activates it again, if no other worker has it",
    RUN_NOT_FOUND: "`headwater instances get` names the current run; the first is 0",
    "run_not_found": "`headwater runs list` shows those that exist",
    "ambiguous_run": "-w names one",
    NO_ACTIVE_DEPLOYMENT: "`headwater deployments activate` activates one",
    DEPLOYMENT_NOT_FOUND: "`headwater deployments list` shows those that exist",
    DEPLOYMENT_REMOVED: "`headwater instances retry --deployment active` retries a run on the "
    "active deployment; `headwater deployments deploy` of the same artifact restores the other",
    DEPLOYMENT_IN_USE: "`headwater deployments remove --wait` waits until they have ended; "
    "`headwater instances move` moves them",
    DEPLOYMENT_ACTIVE: "`headwater deployments activate` of another one first; with a share, "
    "--percent 0",
    SHARE_TAKEN: "`headwater deployments list` shows the shares",
    STEP_NOT_FOUND: "`headwater instances history` shows the keys of steps",
    TOKEN_NOT_FOUND: "`headwater instances tokens` shows the live ones",
    "invalid_cursor": "leave out --cursor to begin again",
}

_NOT_REFUSED: Final = frozenset(
    {"", *(refusal.code for refusal in REFUSALS.values() if refusal.settled)}
)


def is_refused(code: str) -> bool:
    """Return whether a reply's code is a rejection that changed nothing that was requested.

    The code is "" if the command was accepted; an unknown code is a rejection.
    """
    return code not in _NOT_REFUSED


def refused(code: str, detail: str, **more: Any) -> CommandRefusedError:  # noqa: ANN401 (as there)
    """Return the error of a rejection by its code; the other arguments are those of ClientError."""
    known = REFUSALS.get(code)
    return (known.error if known else CommandRefusedError)(detail, code=code, **more)
