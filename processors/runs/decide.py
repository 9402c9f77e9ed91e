"""Decide commands from outside: check their names; create, pause, resume, terminate, send events.

Pure: (state, command, facts) -> events or a rejection. A command that would change nothing is
rejected as well, so that its sender knows; the codes ALREADY_PAUSED and NOT_PAUSED state that the
requested state is the current one.

Retries are in `processors.code.retrying`, because they depend on the entries of a run.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final, get_args

import msgspec

from headwater.processors.runs.decisions import Decision, Facts, Rejection
from headwater.processors.runs.limits import (
    DEFAULT_LIMITS,
    FAILURE_MESSAGE_MAX,
    KEY_BYTES_MAX,
    MAILBOX_MAX,
    SYSTEM,
    labels_problem,
    name_problem,
    recorded,
    value_problem,
)
from headwater.processors.runs.slots import is_ticket
from headwater.processors.runs.state import Run, created_before, received_before
from headwater.schemas.failures import (
    ALREADY_MOVED,
    ALREADY_PAUSED,
    EVENT_ALREADY_RECEIVED,
    INSTANCE_EXISTS,
    INSTANCE_NOT_FOUND,
    INSTANCE_TERMINAL,
    INVALID_COMMAND,
    INVALID_EVENT_PAYLOAD,
    INVALID_EVENT_TYPE,
    INVALID_INSTANCE_ID,
    INVALID_LABELS,
    INVALID_PARAMS,
    JOB_NOT_FOUND,
    MAILBOX_FULL,
    NOT_A_GRAPH,
    NOT_PAUSED,
    NOT_THE_PARENT,
    STALE,
)
from headwater.schemas.history import (
    Artifact,
    AskSlot,
    CancelRun,
    Command,
    EventReceived,
    Limits,
    LogWritten,
    NoteRefusal,
    Once,
    Parent,
    PauseRun,
    RestartRun,
    ResumeRun,
    RunCommand,
    RunMoved,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    Sender,
    SendEvent,
    StartRun,
    TerminateRun,
)
from headwater.schemas.statuses import RunStatus

#: Fields that are no names: values, texts for people, and fields with limits of their own.
_NO_NAMES: Final = frozenset(
    {"params", "payload", "start", "output", "message", "failure", "labels", "reason", "document"}
)
_PARTS: Final = (Parent, Sender, Once, Artifact)


def _names_of(kind: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of a command that hold names."""
    for field in msgspec.structs.fields(kind):
        if field.name in _NO_NAMES or (kind is AskSlot and field.name == "key"):
            continue
        members = get_args(field.type) or (field.type,)
        if str in members:
            yield path + field.name
        for part in members:
            if part in _PARTS:
                yield from _names_of(part, f"{path}{field.name}.")


def _getter(path: str) -> Callable[[Any], Any]:
    outer, _, inner = path.partition(".")
    if not inner:
        return attrgetter(path)
    part, name = attrgetter(outer), attrgetter(inner)

    def get(command: Any) -> Any:  # noqa: ANN401, a field
        value = part(command)
        return None if value is None else name(value)

    return get


_NAMES: Final = {
    kind: tuple((path, _getter(path)) for path in _names_of(kind)) for kind in get_args(Command)
}


def names_refusal(command: Command) -> Rejection | None:
    """Return the rejection of a command with a name that is too long, or an invalid ticket.

    Services that accept requests have smaller limits of their own; these hold for every producer of
    the command topic.
    """
    for path, get in _NAMES[type(command)]:
        name = get(command)
        # A character has at most four bytes.
        if name and 4 * len(name) > KEY_BYTES_MAX and len(name.encode()) > KEY_BYTES_MAX:
            return _refusal(command, path, f"at most {KEY_BYTES_MAX} bytes", name)
    reason = getattr(command, "reason", "")
    if len(reason) > FAILURE_MESSAGE_MAX:
        most = f"at most {FAILURE_MESSAGE_MAX} characters"
        return _refusal(command, "reason", most, reason)
    if isinstance(command, AskSlot) and not is_ticket(command.ticket):
        return _refusal(command, "ticket", "an instance, a run and a seed", command.ticket)
    return None


def _refusal(command: Command, path: str, expected: str, text: str) -> Rejection:
    shown = repr(text[:80])
    return Rejection(
        INVALID_COMMAND,
        f"expected {expected} as {path} of {type(command).__name__}, found {len(text)} "
        f"characters: {shown}",
    )


# -- commands


def not_found(instance_id: str) -> Rejection:
    """Return the rejection of a command for an instance that does not exist."""
    return Rejection(
        INSTANCE_NOT_FOUND, f"expected an instance {instance_id} of this workflow, found none"
    )


def begin(
    run: Run | None, command: RunCommand, facts: Facts, kind: str, limits: Limits = DEFAULT_LIMITS
) -> Decision:
    """Start a run if the command does that; any other command requires an existing run."""
    match command:
        case StartRun():
            return _start(run, command, facts, kind, limits)
        case RestartRun() if run is not None:
            made_from = (run.definition, run.deployment, run.once, run.labels)
            provenance = (*made_from, recorded(limits), run.depth, facts.trace)
            return [RunStarted(run.params, facts.seed, run.parent, None, (), run.kind, *provenance)]
        case SendEvent(start=str(params)):
            # Creates the instance that receives the event, with the event in its mailbox.
            start = StartRun(params, labels=command.labels)
            started = _start(None, start, facts, kind, limits)
            if isinstance(started, Rejection):
                return started
            received = _received(command, facts.sent_at_ms, limits)
            return received if isinstance(received, Rejection) else [*started, received]
        case _:
            return not_found(facts.instance_id)


def _start(run: Run | None, command: StartRun, facts: Facts, kind: str, limits: Limits) -> Decision:
    """Create an instance, or restart a child for its parent's new run."""
    instance_id = facts.instance_id
    problem = name_problem("an instance id", instance_id, limits.max_instance_id, "max_instance_id")
    if problem:
        return Rejection(INVALID_INSTANCE_ID, problem)
    problem = value_problem("params", command.params, limits.max_params_bytes, "max_params_bytes")
    if problem:
        return Rejection(INVALID_PARAMS, problem)
    problem = labels_problem({label.name: label.value for label in command.labels})
    if problem:
        return Rejection(INVALID_LABELS, problem)
    before = created_before(run, command.once) if run is not None else None
    if before is not None:
        return before
    if run is not None and not _is_child_of_older_run(run, command.parent):
        return Rejection(
            INSTANCE_EXISTS,
            f"expected no instance {instance_id} of {run.workflow}, found one that is "
            f"{run.status}; restart runs it again",
        )
    made_from = (command.definition, command.deployment)
    settings = (command.once, command.labels, recorded(limits), command.depth)
    provenance = (*made_from, *settings, facts.trace)
    return [RunStarted(command.params, facts.seed, command.parent, None, (), kind, *provenance)]


def _is_child_of_older_run(run: Run, parent: Parent | None) -> bool:
    own = run.parent
    return (
        parent is not None
        and own is not None
        and (parent.workflow, parent.instance_id, parent.key)
        == (own.workflow, own.instance_id, own.key)
        and parent.run_number > own.run_number
    )


def _ended(run: Run, verb: str) -> Rejection:
    return Rejection(
        INSTANCE_TERMINAL,
        f"expected an instance that has not ended to {verb}, found {run.instance_id} {run.status}; "
        f"{_next_run(run)}",
    )


def _next_run(run: Run) -> str:
    """Describe what can be done with an instance that has ended."""
    if run.status is RunStatus.ERRORED:
        return "retry begins a new run that keeps what was done, restart one from the beginning"
    return "restart begins a new run of it"


def pause(run: Run, _: PauseRun) -> Decision:
    """Pause a run at its next step boundary; its timers continue."""
    if run.ended:
        return _ended(run, "pause")
    if run.status is RunStatus.PAUSED:
        return Rejection(ALREADY_PAUSED, f"{run.instance_id} is paused already")
    return [RunPaused()]


def resume(run: Run, _: ResumeRun) -> Decision:
    """Resume a paused run."""
    if run.status is not RunStatus.PAUSED:
        hint = f"; {_next_run(run)}" if run.ended else ""
        return Rejection(NOT_PAUSED, f"{run.instance_id} is not paused but {run.status}{hint}")
    return [RunResumed(), RunSuspended()] if run.waits_for_slot else [RunResumed()]


def move(run: Run, deployment: Artifact | None) -> Decision:
    """Continue a run on the code of a deployment that has its workflow.

    Args:
        run: The run.
        deployment: Its next deployment; None if it follows the newest code.
    """
    if run.ended:
        return _ended(run, "move")
    before, after = _code_of(run.deployment), _code_of(deployment)
    if before == after:
        return Rejection(ALREADY_MOVED, f"{run.instance_id} is on {after} already")
    line = f"run {run.run_number} was moved from {before} to {after}"
    return [RunMoved(deployment), LogWritten("info", SYSTEM, line)]


def _code_of(deployment: Artifact | None) -> str:
    return "the newest code" if deployment is None else deployment.name


def may_end(run: Run, command: TerminateRun | CancelRun) -> Rejection | None:
    """Return why a run may not be ended, or None if it may."""
    if command.parent is not None and command.parent != run.parent:
        return Rejection(NOT_THE_PARENT, f"{run.instance_id} is not the child of the sender")
    if run.ended:
        return _ended(run, "cancel" if isinstance(command, CancelRun) else "terminate")
    return None


def send_event(
    run: Run, command: SendEvent, sent_at_ms: int, limits: Limits = DEFAULT_LIMITS
) -> EventReceived | Rejection:
    """Put an event into the mailbox; an event that was received before is always recognized."""
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
            f"expected at most {MAILBOX_MAX} events that no wait has consumed, found as many; "
            f"does {run.workflow} ever wait for {command.type}?",
        )
    return received


def _received(command: SendEvent, sent_at_ms: int, limits: Limits) -> EventReceived | Rejection:
    problem = name_problem("an event type", command.type, limits.max_event_type, "max_event_type")
    if problem:
        return Rejection(INVALID_EVENT_TYPE, problem)
    problem = value_problem(
        "an event's payload", command.payload, limits.max_event_bytes, "max_event_bytes"
    )
    if problem:
        return Rejection(INVALID_EVENT_PAYLOAD, problem)
    return EventReceived(command.event_id, command.type, command.payload, sent_at_ms, command.once)


def no_job(run: Run) -> Rejection:
    """Return the rejection of a job command for a workflow without jobs."""
    return Rejection(
        JOB_NOT_FOUND, f"expected a job of a graph, found {run.workflow}, a workflow of code"
    )


def no_graph(run: Run) -> Rejection:
    """Return the rejection of a command that only graphs understand."""
    return Rejection(
        NOT_A_GRAPH,
        f"expected an instance of a graph, found one of {run.workflow}, a workflow of code; a run "
        "of code has no versions of a definition",
    )


def note_refusal(run: Run, command: NoteRefusal) -> Decision:
    """Log that a command of this run was rejected elsewhere, even if the run has ended."""
    if command.run_number != run.run_number:
        return Rejection(STALE, "another run has begun since it was sent")
    return [LogWritten("warn", "system", command.message)]
