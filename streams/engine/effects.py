"""Output of an owner: records for the log, and effects that follow when they are durable."""

from collections.abc import Collection
from typing import TypeAlias

import msgspec

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.limits import BUILTIN_PREFIX, bounded
from headwater.processors.runs.state import Run
from headwater.schemas.failures import INSTANCE_NOT_ENDED, WORKFLOW_NOT_FOUND
from headwater.schemas.history import (
    CommandSent,
    HistoryAppended,
    JobActivated,
    JobExtended,
    Post,
    ReplySent,
)


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


def unknown_workflow(name: str, known: Collection[str], idle: str | None) -> Rejection:
    """Return the refusal to create an instance of an unknown workflow.

    Args:
        name: Name of the workflow.
        known: Names of known workflows.
        idle: A deployment that has the workflow and is not active, if there is one.
    """
    authors = sorted(workflow for workflow in known if not workflow.startswith(BUILTIN_PREFIX))
    names = ", ".join(authors) or "none"
    message = bounded(f"expected one of the workflows {names}, found {name}")
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
    )
