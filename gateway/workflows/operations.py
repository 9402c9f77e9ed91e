"""What each route of workflows is called, takes and answers; for its decorator."""

from typing import Any, Final

from headwater.gateway.workflows import description as say
from headwater.gateway.workflows import examples
from headwater.gateway.workflows.description import described
from headwater.schemas import answers

_LAGS: Final = (
    "Done, and not yet to be read: Postgres lags or is away, or you preferred not to wait."
)

LIST_WORKFLOWS: Final = described(
    "listWorkflows",
    "The workflows that there are",
    "Those whose code the workers have.",
    answer=answers.WorkflowList,
    example=examples.NAMES,
    problems=say.OF_READS,
    parameters=[say.MIN_POSITION],
)
LIST_INSTANCES: Final = described(
    "listInstances",
    "Instances of a workflow, newest first",
    "A page holds still while instances come and go: its cursor names the last one seen.",
    answer=answers.InstancePage,
    example=examples.LISTING,
    problems=[*say.OF_READS, "invalid_cursor", "WORKFLOW_NOT_FOUND"],
    parameters=[*say.OF_WORKFLOW, *say.LISTING],
)
GET_INSTANCE: Final = described(
    "getInstance",
    "One instance, whole",
    "How it stands, what it was started with, and the step that it stands at.",
    answer=answers.Instance,
    example=examples.INSTANCE,
    problems=[*say.OF_READS, "INSTANCE_NOT_FOUND"],
    parameters=[*say.OF_INSTANCE, say.MIN_POSITION],
)
GET_HISTORY: Final = described(
    "getHistory",
    "What happened in a run",
    "Steps in the order in which they were first reached, events as they came, lines as they were "
    "written; each with a cursor of its own.",
    answer=answers.HistoryPage,
    example=examples.HISTORY,
    problems=[*say.OF_READS, "invalid_cursor", "INSTANCE_NOT_FOUND", "RUN_NOT_FOUND"],
    parameters=[*say.OF_INSTANCE, *say.HISTORY],
)
FOLLOW_INSTANCE: Final = described(
    "followInstance",
    "Follow an instance as it goes",
    "Server-sent events: `status`, `step`, `event` and `log`, each with what a history says of it, "
    "and `end` when the instance has ended. Begins with the current run, or behind Last-Event-ID. "
    "Comments keep the connection alive.",
    answer=str,
    example=examples.TAIL,
    problems=[*say.OF_READS, "overloaded", "INSTANCE_NOT_FOUND"],
    parameters=[*say.OF_INSTANCE, *say.TAIL],
    media_type="text/event-stream",
)
CREATE_INSTANCE: Final = described(
    "createInstance",
    "Create an instance",
    "Of several requests with one id exactly one creates it.",
    answer=answers.InstanceListed,
    example=examples.CREATED,
    problems=[
        *say.OF_WRITES,
        "INVALID_INSTANCE_ID",
        "WORKFLOW_PARAMS_INVALID",
        "WORKFLOW_NOT_FOUND",
        "INSTANCE_ID_ALREADY_EXISTS",
    ],
    parameters=[*say.OF_WORKFLOW, say.PREFER],
    body=say.CREATE_BODY,
    accepted=_LAGS,
)
CREATE_INSTANCES: Final = described(
    "createInstances",
    "Create up to 100 instances",
    "Instances that exist are skipped, and left out of the answer; so a batch may be sent again.",
    answer=answers.InstancesCreated,
    example=examples.BATCH,
    problems=[
        *say.OF_WRITES,
        "INVALID_INSTANCE_ID",
        "WORKFLOW_PARAMS_INVALID",
        "WORKFLOW_NOT_FOUND",
    ],
    parameters=[*say.OF_WORKFLOW, say.PREFER],
    body=say.BATCH_BODY,
    accepted=_LAGS,
)
RETRY_INSTANCE: Final = described(
    "retryInstance",
    "Try an errored instance again",
    "Begins its next run, which keeps the results of steps before the one that failed, or before "
    "`fromStep`.",
    answer=answers.Managed,
    example=examples.BEGUN,
    problems=[*say.OF_WRITES, "INSTANCE_NOT_FOUND", "STEP_NOT_FOUND", "INSTANCE_NOT_ERRORED"],
    parameters=[*say.OF_INSTANCE, say.PREFER],
    body=say.RETRY_BODY,
    accepted=_LAGS,
)
SEND_EVENT: Final = described(
    "sendEvent",
    "Send an event to an instance",
    "It is kept until the workflow waits for one of its type. With `startIfMissing` an instance "
    "that does not exist is created, and finds the event.",
    answer=answers.EventSent,
    example=examples.EVENT_TAKEN,
    problems=[
        *say.OF_WRITES,
        "INVALID_EVENT_TYPE",
        "INVALID_EVENT_PAYLOAD",
        "INVALID_INSTANCE_ID",
        "WORKFLOW_PARAMS_INVALID",
        "INSTANCE_NOT_FOUND",
        "WORKFLOW_NOT_FOUND",
        "INSTANCE_TERMINAL",
        "MAILBOX_FULL",
    ],
    parameters=[*say.OF_INSTANCE, say.PREFER],
    body=say.EVENT_BODY,
    accepted=_LAGS,
)
TICK: Final = described(
    "tick",
    "Have a worker do what is due",
    "For workers that were started with --tick. Off unless HEADWATER_TICK_URL and "
    "HEADWATER_TICK_KEY are set. Several ticks at a time are safe.",
    answer=answers.Ticked,
    example=examples.TICKED,
    problems=["tick_disabled", "worker_unavailable"],
    body=say.TICK_BODY,
)

#: What the verbs do that need no body.
_VERBS: Final = {
    "pause": "Stops an instance at its next step boundary. Its timers go on; one that is paused "
    "already stays so.",
    "resume": "Lets a paused instance go on; any other is left as it is.",
    "terminate": "Ends an instance for good.",
    "restart": "Begins the next run of an instance from the beginning, with the same params, "
    "however it stands. Earlier runs are kept; events that nobody took are not.",
}


def verb(name: str, *, begins: bool) -> dict[str, Any]:
    """Describes pause, resume, terminate and restart; the last begins a run."""
    ended = ("INSTANCE_TERMINAL",) if name in ("pause", "terminate") else ()
    return described(
        f"{name}Instance",
        f"{name.capitalize()} an instance",
        _VERBS[name],
        answer=answers.Managed,
        example=examples.BEGUN if begins else examples.DONE,
        problems=[*say.OF_WRITES, "INSTANCE_NOT_FOUND", *ended],
        parameters=[*say.OF_INSTANCE, say.PREFER],
        body=say.NO_BODY,
        accepted=_LAGS,
    )
