"""Decides what comes from outside: create, pause, resume, terminate, cancel, restart, events.

How a run is retried says `processors.replay.retrying`, because that depends on its entries.

Pure: (state, command, facts) -> events or a rejection. A command that would change nothing is
rejected too, so that its sender learns it; the codes ALREADY_PAUSED and NOT_PAUSED say that what
was asked for is so already.
"""

from headwater.processors.runs.decisions import Decision, Facts, Rejection
from headwater.processors.runs.labels import labels_fault
from headwater.processors.runs.limits import (
    MAILBOX_MAX,
    USUAL,
    name_fault,
    recorded,
    value_fault,
)
from headwater.processors.runs.once import created_before, received_before
from headwater.processors.runs.state import Run
from headwater.schemas.failures import (
    ALREADY_PAUSED,
    EVENT_ALREADY_RECEIVED,
    INSTANCE_EXISTS,
    INSTANCE_NOT_FOUND,
    INSTANCE_TERMINAL,
    INVALID_EVENT_PAYLOAD,
    INVALID_EVENT_TYPE,
    INVALID_INSTANCE_ID,
    INVALID_LABELS,
    INVALID_PARAMS,
    JOB_NOT_FOUND,
    MAILBOX_FULL,
    NOT_PAUSED,
    NOT_THE_PARENT,
    STALE,
)
from headwater.schemas.history import (
    CancelRun,
    EventReceived,
    Limits,
    LogWritten,
    NoteRefusal,
    Parent,
    PauseRun,
    RestartRun,
    ResumeRun,
    RunCommand,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    SendEvent,
    StartRun,
    TerminateRun,
)
from headwater.schemas.statuses import RunStatus


def not_found(instance_id: str) -> Rejection:
    """The refusal of anything asked of an instance that does not exist."""
    return Rejection(
        INSTANCE_NOT_FOUND, f"expected an instance {instance_id} of this workflow, found none"
    )


def begin(
    run: Run | None, command: RunCommand, facts: Facts, kind: str, limits: Limits = USUAL
) -> Decision:
    """Begins a run, if a command does so; any other has to find a run that has begun."""
    match command:
        case StartRun():
            return _start(run, command, facts, kind, limits)
        case RestartRun() if run is not None:
            more = (run.definition, run.deployment, run.once, run.labels, recorded(limits))
            return [RunStarted(run.params, facts.seed, run.parent, None, (), run.kind, *more)]
        case SendEvent(start=str(params)):
            # It creates the instance that it is for, with the event in its mailbox.
            start = StartRun(params, labels=command.labels)
            started = _start(None, start, facts, kind, limits)
            if isinstance(started, Rejection):
                return started
            received = _received(command, facts.sent_at_ms, limits)
            return received if isinstance(received, Rejection) else [*started, received]
        case _:
            return not_found(facts.instance_id)


def _start(run: Run | None, command: StartRun, facts: Facts, kind: str, limits: Limits) -> Decision:
    """Creates an instance, or restarts a child for its parent's new run."""
    instance_id = facts.instance_id
    fault = name_fault("an instance id", instance_id, limits.max_instance_id, "max_instance_id")
    if fault:
        return Rejection(INVALID_INSTANCE_ID, fault)
    fault = value_fault("params", command.params, limits.max_params_bytes, "max_params_bytes")
    if fault:
        return Rejection(INVALID_PARAMS, fault)
    fault = labels_fault({label.name: label.value for label in command.labels})
    if fault:
        return Rejection(INVALID_LABELS, fault)
    before = created_before(run, command.once) if run is not None else None
    if before is not None:
        return before
    if run is not None and not _is_own_child_of_an_older_run(run, command.parent):
        return Rejection(
            INSTANCE_EXISTS,
            f"expected no instance {instance_id} of {run.workflow}, found one that is "
            f"{run.status}; restart runs it again",
        )
    made_from = (command.definition, command.deployment)
    more = (*made_from, command.once, command.labels, recorded(limits))
    return [RunStarted(command.params, facts.seed, command.parent, None, (), kind, *more)]


def _is_own_child_of_an_older_run(run: Run, parent: Parent | None) -> bool:
    mine = run.parent
    return (
        parent is not None
        and mine is not None
        and (parent.workflow, parent.instance_id, parent.key)
        == (mine.workflow, mine.instance_id, mine.key)
        and parent.run_number > mine.run_number
    )


def _ended(run: Run, verb: str) -> Rejection:
    return Rejection(
        INSTANCE_TERMINAL,
        f"expected an instance that has not ended to {verb}, found {run.instance_id} {run.status}; "
        f"{_next_run(run)}",
    )


def _next_run(run: Run) -> str:
    """What may be done with an instance that has ended."""
    if run.status is RunStatus.ERRORED:
        return "retry begins a new run that keeps what was done, restart one from the beginning"
    return "restart begins a new run of it"


def pause(run: Run, _: PauseRun) -> Decision:
    """Stops a run at its next step boundary; its timers go on."""
    if run.ended:
        return _ended(run, "pause")
    if run.status is RunStatus.PAUSED:
        return Rejection(ALREADY_PAUSED, f"{run.instance_id} is paused already")
    return [RunPaused()]


def resume(run: Run, _: ResumeRun) -> Decision:
    """Lets a paused run go on."""
    if run.status is not RunStatus.PAUSED:
        then = f"; {_next_run(run)}" if run.ended else ""
        return Rejection(NOT_PAUSED, f"{run.instance_id} is not paused but {run.status}{then}")
    return [RunResumed(), RunSuspended()] if run.waits_for_slot else [RunResumed()]


def may_end(run: Run, command: TerminateRun | CancelRun) -> Rejection | None:
    """Says why a run may not be ended, if so."""
    if command.parent is not None and command.parent != run.parent:
        return Rejection(NOT_THE_PARENT, f"{run.instance_id} is not the child of the sender")
    if run.ended:
        return _ended(run, "cancel" if isinstance(command, CancelRun) else "terminate")
    return None


def send_event(
    run: Run, command: SendEvent, sent_at_ms: int, limits: Limits = USUAL
) -> EventReceived | Rejection:
    """Puts an event into the mailbox; a copy of one that was there is known for ever."""
    sender = command.sender
    if sender and run.received.get(f"{sender.workflow}/{sender.instance_id}", -1) >= sender.number:
        return Rejection(EVENT_ALREADY_RECEIVED, f"{command.event_id} was received before")
    before = received_before(run, command.once)
    if before is not None:
        return before
    received = _received(command, sent_at_ms, limits)
    if isinstance(received, Rejection):
        return received
    if run.ended:
        return _ended(run, "send an event to")
    if len(run.mailbox) >= MAILBOX_MAX:
        return Rejection(
            MAILBOX_FULL,
            f"expected at most {MAILBOX_MAX} events that nobody has consumed, found as many; "
            f"does {run.workflow} ever wait for {command.type}?",
        )
    return received


def _received(command: SendEvent, sent_at_ms: int, limits: Limits) -> EventReceived | Rejection:
    fault = name_fault("an event type", command.type, limits.max_event_type, "max_event_type")
    if fault:
        return Rejection(INVALID_EVENT_TYPE, fault)
    fault = value_fault(
        "an event's payload", command.payload, limits.max_event_bytes, "max_event_bytes"
    )
    if fault:
        return Rejection(INVALID_EVENT_PAYLOAD, fault)
    return EventReceived(command.event_id, command.type, command.payload, sent_at_ms, command.once)


def no_job(run: Run) -> Rejection:
    """The refusal of what is asked of a job where there are none."""
    return Rejection(
        JOB_NOT_FOUND, f"expected a job of a graph, found {run.workflow}, a workflow of code"
    )


def note_refusal(run: Run, command: NoteRefusal) -> Decision:
    """Writes down that a command of this run was refused elsewhere, also when it has ended."""
    if command.run_number != run.run_number:
        return Rejection(STALE, "another run has begun since it was sent")
    return [LogWritten("warn", "system", command.message)]
