"""Offsets without records: a projection passes them, so that it arrives at the end of its log."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError

from headwater.gateway.builtin.rebuilding import projected
from headwater.gateway.builtin.rebuilding.projected import ProjectedRows
from headwater.processors.runs.claims import Claims
from headwater.projections.projector.projection import (
    Admitted,
    Batch,
    LogRecord,
    Partition,
    Plan,
    Projection,
    Span,
    admit,
)
from headwater.projections.projector.projector import Projector
from headwater.projections.projector.store import AppliedPosition
from tests.unit.projections.histories import Appended

NO_ROWS = Plan(statements=(), unreadable=0)
PROJECTION = Projection(name="p", group="g", topics=("t",), plan=lambda _: NO_ROWS)
GAPS, OTHER = ("t", 5), ("t", 1)


class Offsets:
    """Has the offsets of a projection, and no rows."""

    def __init__(self, offsets: Mapping[Partition, int]) -> None:
        self.offsets = dict(offsets)
        self.spans: list[Mapping[Partition, Span]] = []

    async def apply(self, batch: Batch) -> tuple[Admitted, int]:
        self.spans.append(batch.spans)
        admitted = admit(batch, self.offsets)
        self.offsets |= admitted.offsets
        return admitted, 0

    async def positions(self, partitions: Sequence[Partition]) -> dict[Partition, AppliedPosition]:
        return {one: AppliedPosition(self.offsets[one], Claims()) for one in partitions}

    async def close(self) -> None:
        pass


class Consumer:
    """Has read partitions up to some offsets, and is not assigned others."""

    def __init__(
        self, positions: Mapping[Partition, int], during: Callable[[], None] = lambda: None
    ) -> None:
        self._positions = positions
        self._during = during

    async def position(self, tp: TopicPartition) -> int:
        self._during()
        if tuple(tp) not in self._positions:
            raise IllegalStateError(f"{tp} is not assigned")
        return self._positions[tp.topic, tp.partition]


class Detector:
    def leader_epoch_of(self, _consumer: object, _tp: object) -> int:
        return 3


def projector_at(store: Offsets) -> Projector:
    projector = Projector(
        cluster=cast("Any", None),
        store=cast("Any", store),
        projection=PROJECTION,
        clock=lambda: 0,
        detector=cast("Any", Detector()),
    )
    for partition, offset in store.offsets.items():
        projector._reading[partition] = projector.positions[partition] = offset
        projector._claims[partition] = Claims()
        projector.progress.begin(partition, 0, 20)
    projector.progress.assign(())
    return projector


async def pass_gaps(
    projector: Projector, consumer: Consumer, fetched: Mapping[TopicPartition, Sequence[LogRecord]]
) -> Batch:
    reader = cast("Any", consumer)
    batch = await projector._with_gaps(projector._batch(fetched, reader), reader)
    await projector._apply(batch, asyncio.Event())
    return batch


def test_a_partition_that_ends_with_gaps_is_applied_to_its_end():
    store = Offsets({GAPS: 0, OTHER: 4})
    projector = projector_at(store)
    batch = asyncio.run(pass_gaps(projector, Consumer({GAPS: 20, OTHER: 4}), {}))
    assert batch.spans == {GAPS: Span(0, 20)}
    assert batch.leader_epochs == {GAPS: 3}
    assert (projector.positions, store.offsets) == ({GAPS: 20, OTHER: 4}, {GAPS: 20, OTHER: 4})
    again = asyncio.run(pass_gaps(projector, Consumer({GAPS: 20, OTHER: 4}), {}))
    assert again.spans == {}, "nothing is written for partitions without news"


def test_gaps_are_passed_beside_records_of_other_partitions_and_after_the_last_record():
    store = Offsets({GAPS: 0, OTHER: 4})
    projector = projector_at(store)
    records = [Appended(1, 4, b"1", topic="t")]
    consumer = Consumer({GAPS: 20, OTHER: 9})
    batch = asyncio.run(pass_gaps(projector, consumer, {TopicPartition(*OTHER): records}))
    assert batch.spans == {OTHER: Span(4, 5), GAPS: Span(0, 20)}
    last = asyncio.run(pass_gaps(projector, consumer, {}))
    assert last.spans == {OTHER: Span(5, 9)}
    assert store.offsets == {GAPS: 20, OTHER: 9}


def test_a_record_that_waits_for_a_newer_release_is_not_passed():
    projector = projector_at(Offsets({GAPS: 7}))
    projector._waiting.begin(GAPS, "a newer release")
    batch = asyncio.run(pass_gaps(projector, Consumer({GAPS: 8}), {}))
    assert (batch.spans, projector.positions) == ({}, {GAPS: 7})


def test_a_partition_that_was_revoked_or_is_read_again_is_not_passed():
    projector = projector_at(Offsets({GAPS: 7, OTHER: 4}))
    consumer = Consumer({OTHER: 9}, during=lambda: projector._read_again([OTHER]))
    batch = asyncio.run(pass_gaps(projector, consumer, {}))
    assert (batch.spans, projector.positions) == ({}, {GAPS: 7, OTHER: 4})


async def fill(rows: ProjectedRows, ends: Mapping[int, int]) -> int:
    return sum([moved async for moved in rows._project(5, AppliedPosition(0, Claims()), ends[5])])


@pytest.mark.parametrize("offsets", [[], [2, 3]])
def test_a_rebuild_reads_to_an_end_without_records(
    offsets: list[int], monkeypatch: pytest.MonkeyPatch
):
    async def read(*_: object, **__: object) -> AsyncGenerator[list[LogRecord]]:
        if offsets:
            yield [Appended(5, at, b"1", topic="t") for at in offsets]

    monkeypatch.setattr(projected, "read_partition", read)
    nothing = cast("Any", None)
    dsn = "postgresql://localhost/headwater"
    rows = ProjectedRows(nothing, dsn, PROJECTION, nothing, nothing)
    store = Offsets({GAPS: 0})
    monkeypatch.setattr(rows, "_store", store)
    assert asyncio.run(fill(rows, {5: 20})) == 20
    assert store.offsets == {GAPS: 20}
