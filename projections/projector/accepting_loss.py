"""Move a projection back to the end of a topic that lost records.

A single broker that loses power may lose acknowledged records. Their rows stay in Postgres, because
the previous rows are unknown; the projection continues with the next record.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import psycopg
from typing_extensions import override

from headwater.processors.runs.claims import Claims
from headwater.projections.postgres.statements import statement
from headwater.projections.projector.projection import Projection, admit_all
from headwater.projections.projector.records import LogRecord

#: Yields the records of a topic partition, from the first to before an offset.
ReadPartition: TypeAlias = Callable[[str, int, int], AsyncIterator[Sequence[LogRecord]]]


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that Postgres has and Kafka lost."""

    projection: Projection
    topic: str
    partition: int
    #: Current end offset of the partition.
    end: int
    #: First offset that the projection had not applied.
    applied: int
    #: Leader epoch at that end, if it is known.
    leader_epoch: int

    @override
    def __str__(self) -> str:
        partition = f"{self.topic}/{self.partition}"
        if self.end == self.applied:
            return f"{partition} up to offset {self.applied - 1}, where Kafka has another log"
        return f"{partition} from offset {self.end} to {self.applied - 1}"


class Applied(NamedTuple):
    """Progress of a projection on a partition: the first offset that is not applied."""

    projection: Projection
    topic: str
    partition: int
    offset: int
    leader_epoch: int


class Cut(Protocol):
    """Where a log was cut, and the leader epoch there, if it is known."""

    @property
    def end(self) -> int: ...  # noqa: D102
    @property
    def leader_epoch(self) -> int: ...  # noqa: D102


#: Finds where a log was cut before the applied offset; None if it was not.
FindCut: TypeAlias = Callable[[Applied], Awaitable[Cut | None]]


def applied_offsets(
    connection: psycopg.Connection[tuple[str, int, int, int]], projections: Iterable[Projection]
) -> list[Applied]:
    """Return each partition of which a projection has applied records."""
    return [
        Applied(projection, *row)
        for projection in projections
        for row in connection.execute(
            statement("applied_offsets"), {"projection": projection.name}
        ).fetchall()
    ]


async def losses(applied: Iterable[Applied], find_cut: FindCut) -> list[Loss]:
    """Return the partitions that lost applied records."""
    lost_ends = []
    for progress in applied:
        cut = await find_cut(progress)
        if cut is not None:
            details = (cut.end, progress.offset, cut.leader_epoch)
            lost_ends.append(
                Loss(progress.projection, progress.topic, progress.partition, *details)
            )
    return lost_ends


async def accept(
    connection: psycopg.Connection[tuple[str, int, int, int]],
    loss: Loss,
    read: ReadPartition,
    now_ms: int,
) -> bool:
    """Let a projection continue at the end of a partition, and record the loss.

    Returns:
        Whether it was moved; False if a projector has moved it in the meantime.
    """
    claims = Claims()
    if loss.projection.read is not admit_all:
        async for records in read(loss.topic, loss.partition, loss.end):
            loss.projection.read(records, claims)
    moved = connection.execute(
        statement("accept_loss"),
        {
            "projection": loss.projection.name,
            "topic": loss.topic,
            "partition": loss.partition,
            "end": loss.end,
            "applied": loss.applied,
            "epoch": claims.epoch,
            "cause": claims.cause,
            "leader_epoch": loss.leader_epoch,
            "error": f"lost from Kafka, and accepted: {loss}",
            "now_ms": now_ms,
        },
    )
    return moved.rowcount == 1
