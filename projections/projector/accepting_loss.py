"""Moving a projection back to the end of a topic that has lost the end of its log.

A single broker that loses power may lose records that it had acknowledged. What Postgres has of
them stays, as nothing says what was there before; the projection goes on with what comes next.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import psycopg
from typing_extensions import override

from headwater.processors.runs.claims import Claims
from headwater.projections.postgres.statements import statement
from headwater.projections.projector.projection import Projection, all_count
from headwater.projections.projector.records import LogRecord

#: Yields the records of a partition of a topic, from the first to before an offset.
ReadPartition: TypeAlias = Callable[[str, int, int], AsyncIterator[Sequence[LogRecord]]]


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that Postgres has and Kafka has not."""

    projection: Projection
    topic: str
    partition: int
    #: Offset at which the partition ends now.
    end: int
    #: First offset that the projection had not applied.
    applied: int
    #: That of what is left, if that is known.
    leader_epoch: int

    @override
    def __str__(self) -> str:
        place = f"{self.topic}/{self.partition}"
        if self.end == self.applied:
            return f"{place} up to offset {self.applied - 1}, of which Kafka has another log"
        return f"{place} from offset {self.end} to {self.applied - 1}"


class Applied(NamedTuple):
    """How far a projection has applied a partition: the first offset that it has not."""

    projection: Projection
    topic: str
    partition: int
    offset: int
    leader_epoch: int


class Cut(Protocol):
    """Where a log was cut, and the leader epoch of what is left, if that is known."""

    @property
    def end(self) -> int: ...  # noqa: D102
    @property
    def leader_epoch(self) -> int: ...  # noqa: D102


#: Finds where a log was cut before what was applied of it; None if it was not.
FindCut: TypeAlias = Callable[[Applied], Awaitable[Cut | None]]


def applied_offsets(
    connection: psycopg.Connection[tuple[str, int, int, int]], projections: Iterable[Projection]
) -> list[Applied]:
    """Return each partition that a projection has applied something of."""
    return [
        Applied(projection, *row)
        for projection in projections
        for row in connection.execute(
            statement("applied_offsets"), {"projection": projection.name}
        ).fetchall()
    ]


async def losses(applied: Iterable[Applied], find_cut: FindCut) -> list[Loss]:
    """Return the partitions that lack something that was applied of them."""
    lost_ends = []
    for one in applied:
        cut = await find_cut(one)
        if cut is not None:
            lost = (cut.end, one.offset, cut.leader_epoch)
            lost_ends.append(Loss(one.projection, one.topic, one.partition, *lost))
    return lost_ends


async def accept(
    connection: psycopg.Connection[tuple[str, int, int, int]],
    loss: Loss,
    read: ReadPartition,
    now_ms: int,
) -> bool:
    """Let a projection go on at the end of a partition, and record what was lost.

    Returns:
        Whether it was moved; False if a projector had moved it meanwhile.
    """
    claims = Claims()
    if loss.projection.read is not all_count:
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
