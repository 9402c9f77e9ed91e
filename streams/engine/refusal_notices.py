"""Notices for workflows whose commands were refused."""

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, PROGRAM, bounded
from headwater.processors.runs.slots import holder_of
from headwater.processors.runs.state import Run
from headwater.schemas.failures import (
    CHILD_WORKFLOW,
    INSTANCE_EXISTS,
    INTERNAL,
    SLOT_GRANTED_BEFORE,
    SLOT_QUEUE_FULL,
    is_refused,
)
from headwater.schemas.history import (
    AskSlot,
    CommandSent,
    Failure,
    FinishChild,
    GrantSlot,
    NoteRefusal,
    ReturnSlot,
    SendEvent,
    StartRun,
)


def refusal_notice(
    sent: CommandSent, rejection: Rejection, run: Run | None, now_ms: int
) -> CommandSent | None:
    """Return the command that notifies the sender, if that is a workflow that has to know.

    Args:
        sent: The refused command.
        rejection: The refusal.
        run: Run of the instance that the command was sent to.
        now_ms: Current time in Unix milliseconds.
    """
    command = sent.command
    what = f"{sent.workflow}/{sent.instance_id}"
    notice: FinishChild | NoteRefusal | ReturnSlot | GrantSlot
    if isinstance(command, StartRun) and command.parent is not None:
        parent = command.parent
        if rejection.code == INSTANCE_EXISTS and run is not None and run.parent == parent:
            return None  # Sent twice: it runs already.
        failure = Failure(CHILD_WORKFLOW, bounded(f"{what}: {rejection.message}"))
        notice = FinishChild(parent.run_number, parent.key, None, failure)
        workflow, instance_id = parent.workflow, parent.instance_id
    elif isinstance(command, SendEvent | StartRun) and command.sender is not None:
        sender = command.sender
        # Sent twice, or already created: the request is fulfilled.
        settled = rejection.code == INSTANCE_EXISTS or not is_refused(rejection.code)
        if settled or sender.workflow.startswith(PROGRAM):
            return None
        effect = (
            f"the event {command.type} to {what} was dropped"
            if isinstance(command, SendEvent)
            else f"{what} was not created"
        )
        message = bounded(f"{effect}: {rejection.message}", LOG_MESSAGE_MAX)
        notice = NoteRefusal(sender.run_number, message)
        workflow, instance_id = sender.workflow, sender.instance_id
    elif isinstance(command, GrantSlot) and rejection.code != SLOT_GRANTED_BEFORE:
        # The instance that requested the slot has ended or was deleted: it goes to the next one.
        notice = ReturnSlot(command.ticket)
        workflow, instance_id = sent.workflow, command.slots
    elif isinstance(command, AskSlot) and rejection.code in {SLOT_QUEUE_FULL, INTERNAL}:
        failure = Failure(rejection.code, bounded(rejection.message))
        notice = GrantSlot(command.ticket, sent.instance_id, failure)
        workflow, instance_id = sent.workflow, holder_of(command.ticket)[0]
    else:
        return None
    return CommandSent(
        command_id=f"re:{sent.command_id}",
        workflow=workflow,
        instance_id=instance_id,
        sent_at_ms=now_ms,
        reply_to=-1,
        command=notice,
    )
