"""Output of an owner: records, notices and effects, staged until the records are durable."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final, TypeAlias

import msgspec

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.limits import BUILTIN_PREFIX, LOG_MESSAGE_MAX, PROGRAM, bounded
from headwater.processors.runs.sizes import bytes_max
from headwater.processors.runs.slots import holder_of
from headwater.processors.runs.state import Run
from headwater.schemas.failures import (
    CHILD_WORKFLOW,
    INSTANCE_EXISTS,
    INSTANCE_NOT_ENDED,
    INTERNAL,
    SLOT_GRANTED_BEFORE,
    SLOT_QUEUE_FULL,
    WORKFLOW_NOT_FOUND,
    is_refused,
)
from headwater.schemas.history import (
    NO_CAUSE,
    AskSlot,
    CommandRejected,
    CommandSent,
    Failure,
    FinishChild,
    GrantSlot,
    HistoryAppended,
    InstanceDeleted,
    JobActivated,
    JobExtended,
    LeaderEpochNoted,
    NoteRefusal,
    Post,
    ReplySent,
    ReturnSlot,
    SendEvent,
    StartRun,
)
from headwater.streams.engine.live_instances import LiveInstance


class Queued(msgspec.Struct, frozen=True, gc=False):
    """Posts of an instance that may be sent."""

    key: str
    posts: tuple[Post, ...]


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a command, for the reply partition that its sender consumes.

    Attributes:
        to: The reply partition.
        cause: Offset of the command.
        at: Index of the record with the outcome, in its batch.
        reply: The reply.
    """

    to: int
    cause: int
    at: int
    reply: ReplySent


#: Released when the records before it are durable.
Effect: TypeAlias = HostMessage | Answer | Queued | CommandSent


class Batch:
    """Staged records, in order, and the effects of all of them."""

    __slots__ = ("effects", "number", "records")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.records: list[HistoryAppended] = []
        self.effects: list[Effect] = []

    def __bool__(self) -> bool:
        return bool(self.records or self.effects)


#: Names of workflows in a message, and those that are compared with a name that is unknown.
_NAMES_SHOWN: Final = 10
_NAMES_COMPARED: Final = 200


def unknown_workflow(name: str, known: Collection[str], idle: str | None) -> Rejection:
    """Return the refusal to create an instance of an unknown workflow.

    Args:
        name: Name of the workflow.
        known: Names of known workflows.
        idle: A deployment that has the workflow and is not active, if there is one.
    """
    authors = sorted(workflow for workflow in known if not workflow.startswith(BUILTIN_PREFIX))
    names = ", ".join(authors[:_NAMES_SHOWN]) or "none"
    more = len(authors) - _NAMES_SHOWN
    names += f" and {more} more" if more > 0 else ""
    near = get_close_matches(name, authors[:_NAMES_COMPARED], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    message = bounded(f"expected one of the workflows {names}, found {name}{hint}")
    activate = f"`headwater deployments activate {idle}`"
    where = f"; {idle} has it but is not active: {activate}" if idle else ""
    return Rejection(WORKFLOW_NOT_FOUND, message + where)


def not_deleted(run: Run, since_ms: int | None) -> Rejection:
    """Return the refusal to delete an instance that has not ended, or still has messages to send.

    With `since_ms`, also of an instance that has changed since.
    """
    message = f"expected an instance that has ended and sent all its messages, found {run.status}"
    if since_ms is not None and run.updated_at_ms > since_ms:
        message += f", changed at {run.updated_at_ms}, after {since_ms} (Unix milliseconds)"
    return Rejection(INSTANCE_NOT_ENDED, message)


def lease_until_ms(record: HistoryAppended) -> int | None:
    """Return until when a worker holds a job, if a command acquired or extended one."""
    first = record.events[0]
    return first.until_ms if isinstance(first, JobActivated | JobExtended) else None


def replied(
    sent: CommandSent,
    rejection: Rejection | None,
    run: Run | None,
    partition: int,
    outcome: HistoryAppended,
) -> ReplySent:
    """Return the reply to a command. Its position is filled in when the outcome is durable."""
    return ReplySent(
        command_id=sent.command_id,
        code=rejection.code if rejection else "",
        message=rejection.message if rejection else "",
        status=run.status.value if run else "",
        run_number=run.run_number if run else 0,
        partition=partition,
        position=-1,
        lease_until_ms=lease_until_ms(outcome),
        deployment=run.deployment.name if run and run.deployment else None,
    )


def command_of(key: str, post: Post, now_ms: int) -> CommandSent:
    """Return the command of an instance's post. Its id is the same whenever it is sent again."""
    assert post.command is not None  # noqa: S101, checked by the caller
    return CommandSent(
        command_id=f"{key}#{post.number}",
        workflow=post.workflow or "",
        instance_id=post.instance_id or "",
        sent_at_ms=now_ms,
        reply_to=-1,
        command=post.command,
        trace=post.trace,
    )


# -- notices of refusals


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


# -- staging

#: Numbers of records and effects of a batch at some time.
StagingMark: TypeAlias = tuple[int, int]

#: Bytes of a record that several decisions share. Sharing saves appends; large records do not
#: profit. A single decision may be larger, see `sizes.fitting`.
_JOINED_BYTES_MAX: Final = 1024 * 1024


class Staging:
    """The batch that is being filled. Its records have one epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._batch = Batch()
        #: Number of records in the batches before.
        self.taken = 0
        #: Instances that may have a record to which events can be added.
        self._open: list[LiveInstance] = []
        #: Records to which events were added since the latest mark, in their previous form.
        self._joined: list[tuple[int, HistoryAppended]] = []

    def __bool__(self) -> bool:
        return bool(self._batch)

    @property
    def number(self) -> int:
        """Number of the batch that is being filled."""
        return self._batch.number

    @property
    def has_records(self) -> bool:
        """Whether the batch has records, so that memory is ahead of the log."""
        return bool(self._batch.records)

    def take_batch(self) -> Batch:
        """Return the batch, and start the next one."""
        batch, self._batch = self._batch, Batch(self._batch.number + 1)
        self.taken += len(batch.records)
        for live in self._open:
            live.tail = None
        self._open.clear()
        return batch

    def mark(self) -> StagingMark:
        """Return a mark to which the batch can be rolled back until the next mark."""
        if self._joined:
            self._joined.clear()
        batch = self._batch
        return len(batch.records), len(batch.effects)

    def roll_back(self, mark: StagingMark) -> None:
        """Remove what was staged since the latest mark."""
        batch, (records, effects) = self._batch, mark
        for index, record in reversed(self._joined):
            batch.records[index] = record
        self._joined.clear()
        del batch.records[records:], batch.effects[effects:]

    def effect(self, *effects: Effect) -> None:
        """Add effects that are released when the records so far are durable."""
        self._batch.effects.extend(effects)

    def append(self, live: LiveInstance, record: HistoryAppended) -> None:
        """Add a record of an instance. Events that no command caused share one record."""
        records = self._batch.records
        live.batch, live.since_ms = self._batch.number, record.at_ms
        if live.tail is not None:
            tail = records[live.tail]
            if record.cause == NO_CAUSE and record.at_ms == tail.at_ms:
                # Measured only now, because most records stay alone.
                before = live.tail_bytes or bytes_max(tail.events)
                live.tail_bytes = before + bytes_max(record.events)
                if live.tail_bytes <= _JOINED_BYTES_MAX:
                    events = tail.events + record.events
                    self._joined.append((live.tail, tail))
                    records[live.tail] = msgspec.structs.replace(tail, events=events)
                    return
        else:
            self._open.append(live)
        live.tail = len(records) if record.cause == NO_CAUSE else None
        live.tail_bytes = 0
        records.append(record)

    def note(
        self,
        cause: int,
        run: Run | None,
        now_ms: int,
        event: CommandRejected | InstanceDeleted | LeaderEpochNoted,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        """Add a record that is not applied to a run, such as a rejection.

        It does not advance the sequence. For an instance without a run, `names` is its workflow
        and id, or empty if it does not exist.
        """
        record = HistoryAppended(
            workflow=run.workflow if run else names[0],
            instance_id=run.instance_id if run else names[1],
            run_number=run.run_number if run else 0,
            sequence=run.sequence if run else 0,
            epoch=self._epoch,
            cause=cause,
            at_ms=now_ms,
            events=(event,),
        )
        self._batch.records.append(record)

    def answer(
        self,
        partition: int,
        offset: int,
        sent: CommandSent,
        rejection: Rejection | None,
        run: Run | None,
    ) -> None:
        """Add the answer to a command. Its outcome is in the latest record."""
        records = self._batch.records
        reply = replied(sent, rejection, run, partition, records[-1])
        self.effect(Answer(sent.reply_to, offset, len(records) - 1, reply))
