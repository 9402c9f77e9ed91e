"""What an owner gives out: records for the log, and what follows once they are durable."""

from collections.abc import Collection
from typing import TypeAlias

import msgspec

from headwater.processors.replay.state import CodeRun
from headwater.processors.runs.decisions import Rejection
from headwater.schemas.failures import WORKFLOW_NOT_FOUND
from headwater.schemas.history import (
    CommandRejected,
    CommandSent,
    EntryCompleted,
    EntryErrored,
    EntryRolledBack,
    HistoryAppended,
    LoopAdvanced,
    Post,
    ReplySent,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepsRetried,
)
from headwater.streams.engine.host_protocol import Advanced, Again, HandlerDone, Resolved, ToHost


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
Effect: TypeAlias = ToHost | Answer | Queued | CommandSent


class Batch:
    """Staged records, in order, and what follows once all of them are acknowledged."""

    __slots__ = ("effects", "number", "records")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.records: list[HistoryAppended] = []
        self.effects: list[Effect] = []

    def __bool__(self) -> bool:
        return bool(self.records or self.effects)


def unknown_workflow(name: str, known: Collection[str]) -> Rejection:
    """The refusal to create an instance of a workflow that nobody has code for."""
    names = ", ".join(sorted(known)) or "none"
    return Rejection(WORKFLOW_NOT_FOUND, f"expected one of the workflows {names}, found {name}")


def refused(
    epoch: int,
    cause: int,
    sent: CommandSent,
    rejection: Rejection,
    run: CodeRun | None,
    now_ms: int,
) -> HistoryAppended:
    """The record of a refusal; it takes no sequence."""
    return HistoryAppended(
        workflow=sent.workflow,
        instance_id=sent.instance_id,
        run_number=run.run_number if run else 0,
        sequence=run.sequence if run else 0,
        epoch=epoch,
        cause=cause,
        at_ms=now_ms,
        events=(CommandRejected(rejection.code, rejection.message),),
    )


def replied(
    sent: CommandSent, rejection: Rejection | None, run: CodeRun | None, partition: int
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
    )


def news(  # noqa: PLR0911, one for each event
    event: RunEvent, run: CodeRun, activation: int, sequence: int
) -> ToHost | None:
    """What the code of a run is told of an event that was applied, if it has to see it."""
    match event:
        case StepCompleted(key, attempt=attempt, result=result, rollback=rollback):
            return Resolved(activation, key, sequence, attempt, result, rollback=rollback)
        case StepFailed(key, attempt=attempt, failure=failure, retry_at_ms=None):
            return Resolved(activation, key, sequence, attempt, None, failure)
        case StepsRetried(keys):
            attempts = {key: run.entries[key].attempts + 1 for key in keys}
            return Again(activation, attempts, sequence)
        case EntryCompleted(key, result):
            return Resolved(activation, key, sequence, 0, result)
        case EntryErrored(key, failure):
            return Resolved(activation, key, sequence, 0, None, failure)
        case LoopAdvanced(key):
            return Advanced(activation, key, sequence)
        case EntryRolledBack(key):
            return HandlerDone(activation, key, sequence)
        case _:
            return None
