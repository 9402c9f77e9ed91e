"""Checkpoints: what is written of a partition, and when nothing may be."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import pytest

from headwater.processors.runs.claims import Claims
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import StartRun
from headwater.schemas.records import SnapshotTaken
from headwater.streams.engine import live_instances, state_records
from headwater.streams.engine.code import Code
from headwater.streams.engine.instance_store import HistoryMark
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.restore import CHECKPOINT
from headwater.streams.engine.turns import Partition
from headwater.streams.workflows import housekeeping
from headwater.streams.workflows.housekeeping import Checkpoints
from tests.fakes import records
from tests.fakes.engines import ENGINES, REPLAY


class Written:
    """Takes note of what is written where the log would be."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.snapshots: list[tuple[bytes, SnapshotTaken]] = []

    async def write_snapshots(
        self, snapshots: Mapping[int, Sequence[tuple[bytes, SnapshotTaken]]]
    ) -> None:
        if self.fails:
            raise BrokerUnavailable("no broker")
        for group in snapshots.values():
            self.snapshots += group


async def _nothing() -> None:
    pass


async def _nobody(_: Partition) -> None:
    pass


#: Bytes of a part, in these tests.
PART: Final = 1_000


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (live_instances, state_records):
        monkeypatch.setattr(module, "PART_BYTES", PART)


def _owned(*params: str) -> Partition:
    owner = Owner(
        0,
        Claims(epoch=0),
        LiveInstances(ENGINES),
        code=Code({"order": REPLAY.kind}),
        number_activations=lambda _: 1,
        draw_seed=lambda: "seed",
    )
    for offset, param in enumerate(params):
        sent = records.sent(StartRun(param), instance_id=f"o-{offset + 1}")
        owner.receive(offset, sent, 0)
    owner.take_batch()
    return Partition(0, owner, 0, {}, start=0, position=2, replied=len(params))


def _write(owned: Partition) -> list[tuple[bytes, SnapshotTaken]]:
    log = Written()
    _checkpoint(owned, log)
    return log.snapshots


def _checkpoint(
    owned: Partition,
    log: Written,
    replied: Callable[[Checkpoints], None] = lambda _: None,
) -> bool:
    """Has a checkpoint written; says whether another is due after it."""

    async def replies(_: Partition) -> None:
        replied(checkpoints)

    checkpoints = Checkpoints(cast("Any", log), replied=replies, commit=_nothing, records=1)
    assert checkpoints.is_due(owned, 0)
    asyncio.run(checkpoints.write_checkpoint(checkpoints.take_states(owned), 60))
    return checkpoints.is_due(owned, 60)


def test_the_mark_follows_the_states_that_it_speaks_of():
    owned = _owned("1")
    (key, state), (mark_key, mark) = _write(owned)
    assert (key, state.position, state.wake_at_ms) == (b"order/o-1", 2, 0)
    assert (state.kind, state.format, state.compressed) == ("replay", REPLAY.format, False)
    assert (mark_key, mark.position, mark.cause, mark.state) == (CHECKPOINT, 2, 0, b"")
    assert not owned.owner.instances.take_keys()


def test_a_large_state_is_compressed():
    (_, state), _ = _write(_owned(f'"{"x" * 1_000_000}"'))
    assert state.compressed
    assert len(state.state) < 10_000


def test_a_state_that_no_record_could_hold_is_in_several(small_parts: None):
    noise = random.Random(1).randbytes(1_000).hex()
    written = _write(_owned(f'"{noise}"'))
    keys = [key for key, _ in written]
    assert keys == [b"order/o-1#1", b"order/o-1#2", b"order/o-1", CHECKPOINT]
    assert written[2][1].parts == 3
    assert max(len(item.state) for _, item in written) == PART


def test_what_is_taken_at_a_time_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(housekeeping, "_STATES_BYTES", 1)
    owned, log = _owned("1", "2", "3"), Written()
    written = Checkpoints(cast("Any", log), replied=_nobody, commit=_nothing, records=1)
    assert written.is_due(owned, 0)
    first = taken = written.take_states(owned)
    assert len(taken.left) == 2
    owned.position += 5  # It goes on meanwhile.
    while asyncio.run(written.write_checkpoint(taken, 60)) and taken.left:
        taken = written.take_states(owned, taken)
    *states, (key, mark) = log.snapshots
    assert sorted(key for key, _ in states) == [b"order/o-1", b"order/o-2", b"order/o-3"]
    assert [state.position for _, state in states] == [2, 7, 7]
    assert (key, mark.position) == (CHECKPOINT, first.mark.position), "as of its beginning"
    assert not owned.owner.instances.changed


def test_the_store_is_marked_when_the_checkpoint_is_in_kafka():
    owned = _owned("1")
    store = owned.owner.instances.store
    assert not _checkpoint(owned, Written(fails=True)), "it is not tried again at once"
    # Whoever took over from here would never put it into a snapshot again.
    assert store.mark() is None
    assert owned.owner.instances.changed == {"order/o-1"}
    _write(owned)
    assert store.mark() == HistoryMark(2, 0, 0)


def test_a_partition_that_was_given_up_meanwhile_is_not_marked():
    owned = _owned("1")
    _checkpoint(owned, Written(), replied=lambda checkpoints: checkpoints.forget(owned))
    assert owned.owner.instances.store.mark() is None


def test_a_checkpoint_waits_for_the_replies_to_the_commands_before_it():
    owned = _owned("1")
    owned.replied, log = 0, Written()
    assert _checkpoint(owned, log), "as after a takeover: until they are answered once more"
    assert log.snapshots == []
    assert owned.owner.instances.changed == {"order/o-1"}
    _checkpoint(owned, log, replied=lambda _: owned.replied_to(0))
    assert [key for key, _ in log.snapshots] == [b"order/o-1", CHECKPOINT]
