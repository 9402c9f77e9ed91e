"""What an owner keeps of commands that the broker has lost."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from headwater.processors.runs.claims import claim_of
from headwater.schemas.history import (
    NO_LEADER_EPOCH,
    CommandRejected,
    HistoryAppended,
    LeaderEpochNoted,
    StartRun,
)
from headwater.schemas.records import SnapshotTaken
from headwater.streams.engine.code import Code
from headwater.streams.engine.instance_store import HistoryMark, MemoryStore, StoredState
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.restore import CHECKPOINT, Restored, restore_partition
from headwater.streams.engine.state_records import snapshot_of
from headwater.streams.engine.turns import Partition
from tests.fakes import records
from tests.fakes.engines import ENGINES, REPLAY

CLAIM = claim_of("owner", {"order": REPLAY.kind}, 0)
REFUSED = CommandRejected("NO", "no")


class Log:
    """A history, and its snapshots."""

    def __init__(
        self, history: list[HistoryAppended], checkpoint: SnapshotTaken | None = None
    ) -> None:
        self._history = history
        self._checkpoint = checkpoint

    async def read(
        self, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[tuple[int, HistoryAppended]]]:
        yield [(offset, self._history[offset]) for offset in range(start, end)]

    async def read_snapshots(
        self, partition: int
    ) -> AsyncGenerator[tuple[bytes, SnapshotTaken | None]]:
        if self._checkpoint is not None:
            yield CHECKPOINT, self._checkpoint


def history(*events: tuple[int, CommandRejected | LeaderEpochNoted]) -> list[HistoryAppended]:
    """A claim, records with their causes, and another claim."""
    said = [records.appended(event, instance_id="", cause=cause) for cause, event in events]
    return [CLAIM, *said, CLAIM]


def restored(log: Log, epoch: int, committed: int) -> Restored:
    instances = LiveInstances(ENGINES, MemoryStore())
    return asyncio.run(restore_partition(log, instances, 0, epoch, committed))


@pytest.mark.parametrize(
    ("noted", "outcomes", "replied"),
    [
        (LeaderEpochNoted(2), {2: 3, 3: 4, 4: 6}, 2),
        (LeaderEpochNoted(2, lost_from=3), {2: 3, 4: 6}, 2),
        (LeaderEpochNoted(2, lost_from=1), {4: 6}, 1),
        (LeaderEpochNoted(NO_LEADER_EPOCH, lost_from=3), {4: 6}, 3),
    ],
    ids=["none", "some", "replied ones", "another log"],
)
def test_an_outcome_is_told_to_none_who_sent_another_command_to_its_offset(
    noted: LeaderEpochNoted, outcomes: dict[int, int], replied: int
):
    reported = history(
        (0, REFUSED), (1, REFUSED), (2, REFUSED), (3, REFUSED), (-1, noted), (4, REFUSED)
    )
    result = restored(Log(reported), epoch=7, committed=2)
    assert {cause: outcome.position for cause, outcome in result.outcomes.items()} == outcomes
    assert (result.replied, result.claims.cause) == (replied, 4)


def test_a_checkpoint_has_the_leader_epoch():
    mark = HistoryMark(2, 0, 1, leader_epoch=6)
    checkpoint = snapshot_of(mark, StoredState("", 0, -1, 2, b""))
    reported = history((0, REFUSED), (1, REFUSED))
    result = restored(Log(reported, checkpoint), epoch=3, committed=2)
    assert (result.start, result.claims.cause, result.claims.leader_epoch) == (2, 1, 6)


def test_a_command_at_the_offset_of_a_lost_one_is_carried_out():
    owner = Owner(
        0,
        restored(Log([CLAIM]), epoch=0, committed=0).claims,
        LiveInstances(ENGINES),
        code=Code({"order": REPLAY.kind}),
        number_activations=lambda _: 1,
        draw_seed=lambda: "seed",
    )
    partition = Partition(0, owner, 0, {}, start=0, position=1, replied=0)
    for offset in range(4):
        owner.receive(offset, records.sent(StartRun("1"), instance_id=f"o-{offset}"), 0)
    partition.replied_to(3)
    owner.take_batch()
    partition.lose_commands(2, 6, 0)
    assert (partition.replied, owner.claims.cause, owner.claims.leader_epoch) == (2, 1, 6)
    for offset in range(1, 3):
        owner.receive(offset, records.sent(StartRun("1"), instance_id=f"new-{offset}"), 0)
    noted, begun = owner.take_batch().records
    assert noted.events == (LeaderEpochNoted(6, lost_from=2),)
    assert (begun.instance_id, begun.cause) == ("new-2", 2)
