"""What an owner gives out: records for the log, and what follows once they are durable."""

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
    """Posts of an instance that may be sent now."""

    key: str
    posts: tuple[Post, ...]


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a command, for the partition of replies where its sender listens.

    Shape:  `at` is the place in the batch of the record that has the outcome.
    """

    to: int
    cause: int
    at: int
    reply: ReplySent


#: What follows from records that are durable.
Effect: TypeAlias = HostMessage | Answer | Queued | CommandSent


class Batch:
    """Staged records, in order, and what follows once all of them are acknowledged."""

    __slots__ = ("effects", "number", "records")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.records: list[HistoryAppended] = []
        self.effects: list[Effect] = []

    def __bool__(self) -> bool:
        return bool(self.records or self.effects)


def unknown_workflow(name: str, known: Collection[str], idle: str | None) -> Rejection:
    """The refusal to create an instance of a workflow that nobody has code for.

    Shape:  idle is a deployment that has it and is not active, if there is one.
    """
    authors = sorted(each for each in known if not each.startswith(BUILTIN_PREFIX))
    names = ", ".join(authors) or "none"
    fault = bounded(f"expected one of the workflows {names}, found {name}")
    activate = f"`headwater deployments activate {idle}`"
    where = f"; {idle} has it, and is not active: {activate}" if idle else ""
    return Rejection(WORKFLOW_NOT_FOUND, fault + where)


def not_deleted(run: Run, since_ms: int | None) -> Rejection:
    """The refusal to delete an instance that has not ended, or still tells others that it has.

    Shape:  with a time, also one to which something has happened since.
    """
    fault = f"expected an instance that has ended and told all who wait for it, found {run.status}"
    if since_ms is not None and run.updated_at_ms > since_ms:
        fault += f", changed at {run.updated_at_ms}, after {since_ms} (Unix milliseconds)"
    return Rejection(INSTANCE_NOT_ENDED, fault)


def lease_until_ms(record: HistoryAppended) -> int | None:
    """Until when a worker has a job, if that is what a command came to."""
    first = record.events[0]
    return first.until_ms if isinstance(first, JobActivated | JobExtended) else None


def replied(
    sent: CommandSent,
    rejection: Rejection | None,
    run: Run | None,
    partition: int,
    outcome: HistoryAppended,
) -> ReplySent:
    """What the sender of a command is told; where its outcome lies is known when it is durable."""
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
    """The command that a post of an instance is; sent twice, it has the same id.

    Shape:  (key of the instance, a post with a command, when it is sent).
    """
    assert post.command is not None  # noqa: S101, the caller saw it
    return CommandSent(
        command_id=f"{key}#{post.number}",
        workflow=post.workflow or "",
        instance_id=post.instance_id or "",
        sent_at_ms=now_ms,
        reply_to=-1,
        command=post.command,
    )
