"""A history that cannot be applied, or a state that cannot be encoded, costs its instance alone."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from headwater.schemas.history import (
    NO_CAUSE,
    DeleteInstance,
    HistoryAppended,
    PauseRun,
    RunResumed,
    RunSuspended,
    StartRun,
    TerminateRun,
)
from headwater.streams.engine import quarantine
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.instance_store import MemoryStore, StoredState
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.workflows.incidents import Restoring
from tests.fakes import records
from tests.fakes.engines import REPLAY
from tests.unit.streams.test_instance_stores import KEYS, Log, Owned, on_disk

BAD, GOOD = KEYS[:2]


def spoil(log: Log, owned: Owned, *, sequence: int = 1) -> None:
    """Appends events of an instance that cannot follow its state."""
    workflow, _, instance_id = BAD.partition("/")
    log.history.append(
        HistoryAppended(
            workflow=workflow,
            instance_id=instance_id,
            run_number=0,
            sequence=sequence,
            epoch=owned.epoch,
            cause=NO_CAUSE,
            at_ms=0,
            events=(RunResumed(), RunSuspended()),
        )
    )


def codes(owned: Owned, *keys: str) -> list[str]:
    before = len(owned.log.history)
    owned.tell(PauseRun(), *keys)
    events = [item.events[0] for item in owned.log.history[before:]]
    return [getattr(event, "code", "") for event in events]


@pytest.mark.parametrize("sequence", [1, 7])
def test_a_history_that_cannot_be_applied_blocks_no_takeover(sequence: int):
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), BAD, GOOD)
    spoil(log, first, sequence=sequence)
    second = Owned(log, MemoryStore())
    assert "cannot be applied at" in second.owner.instances.quarantined[BAD]
    (incident,) = second.owner.take_incidents()
    assert (incident.kind, incident.quarantined) == ("quarantine", True)
    assert BAD in incident.what
    assert incident.error is not None
    assert codes(second, BAD, GOOD) == ["INTERNAL", ""]
    assert second.owner.next_due_ms() is None, "it costs no turns"


def test_a_quarantine_outlives_checkpoints_and_ends_when_its_instance_is_deleted(tmp_path: Path):
    log = Log()
    first = Owned(log, on_disk(tmp_path))
    first.tell(StartRun("1"), BAD, GOOD)
    spoil(log, first)
    first.owner.instances.store.close()
    second = Owned(log, on_disk(tmp_path))
    second.checkpoint()
    second.owner.instances.store.close()
    reads = len(log.starts)
    third = Owned(log, on_disk(tmp_path))
    assert log.starts[reads:] == [third.epoch], "the history is not read whole again"
    assert [incident.quarantined for incident in third.owner.take_incidents()] == [True]
    from_snapshots = Owned(log, MemoryStore())
    assert set(from_snapshots.owner.instances.quarantined) == {BAD}
    assert codes(from_snapshots, BAD, GOOD) == ["INTERNAL", ""]
    from_snapshots.tell(DeleteInstance(), BAD)
    from_snapshots.tell(StartRun("2"), BAD)
    assert codes(from_snapshots, BAD) == [""]
    assert codes(Owned(log, MemoryStore()), BAD, GOOD) == ["ALREADY_PAUSED"] * 2


def test_another_release_tries_a_quarantined_instance_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    log = Log()
    first = Owned(log, on_disk(tmp_path))
    first.tell(StartRun("1"), BAD, GOOD)
    first.owner.instances.quarantine(BAD, "a bug of this release")
    first.checkpoint()
    first.owner.instances.store.close()
    monkeypatch.setattr(quarantine, "RELEASE", quarantine.RELEASE + 1)
    second = Owned(log, on_disk(tmp_path))
    assert second.owner.instances.quarantined == {}
    assert codes(second, BAD, GOOD) == ["", ""]
    assert Owned(log, MemoryStore()).owner.instances.quarantined == {}


def test_bytes_that_are_no_state_cost_their_instance_alone():
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), BAD, GOOD)
    first.checkpoint()
    store = first.owner.instances.store
    kept = store.get(BAD)
    assert kept is not None
    store.put({BAD: StoredState(kept.kind, kept.format, 0, kept.position, b"\xc1 no state")})
    second = Owned(log, store)
    assert "its state cannot be read" in second.owner.instances.quarantined[BAD]
    assert codes(second, BAD, GOOD) == ["INTERNAL", ""]


def test_a_state_that_cannot_be_encoded_blocks_no_eviction_and_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
):
    stored = LiveInstance.stored

    def refusing(self: LiveInstance, position: int) -> Any:  # noqa: ANN401
        if self.key == BAD:
            raise ValueError("no bytes")
        return stored(self, position)

    monkeypatch.setattr(LiveInstance, "stored", refusing)
    for evicted in (True, False):
        log = Log()
        first = Owned(log, MemoryStore())
        first.tell(StartRun("1"), BAD, GOOD)
        if evicted:
            first.tell(TerminateRun("done"), BAD, GOOD)
            first.evict()
        first.checkpoint()
        assert "cannot be encoded: ValueError: no bytes" in first.owner.instances.quarantined[BAD]
        second = Owned(log, MemoryStore())
        assert set(second.owner.instances.quarantined) == {BAD}
        assert codes(second, BAD, GOOD) == ["INTERNAL", "INSTANCE_TERMINAL" if evicted else ""]


def test_a_torn_store_is_no_error_of_an_instance(tmp_path: Path):
    log = Log()
    first = Owned(log, on_disk(tmp_path))
    first.tell(StartRun("1"), BAD)

    def torn(key: str) -> StoredState | None:
        raise StoreCorrupted("torn")

    first.owner.instances.store.get = torn  # type: ignore[method-assign]
    with pytest.raises(StoreCorrupted):
        first.tell(StartRun("1"), GOOD)


class Breaks:
    """An engine that raises amid the first change of a state."""

    def __init__(self) -> None:
        self.raised = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(REPLAY, name)

    def apply(self, run: Any, event: Any, at_ms: int) -> None:  # noqa: ANN401
        REPLAY.apply(run, event, at_ms)
        if not self.raised:
            self.raised = True
            raise ValueError("amid a change")


class Driven:
    """A partition with a driver, whose appends are durable at once."""

    def __init__(self, owned: Owned) -> None:
        self.log, self.driver = owned.log, Driver(partitions=1)
        self.partition = Partition(0, owned.owner, owned.epoch, {}, start=0, position=0, replied=0)
        self.driver.add_partition(self.partition)

    def send(self, *keys: str) -> None:
        for number, key in enumerate(keys, 1):
            workflow, _, instance_id = key.partition("/")
            sent = records.sent(PauseRun(), workflow=workflow, instance_id=instance_id)
            self.partition.commands.append((self.partition.owner.claims.cause + number, sent))

    def turn(self) -> None:
        for flight in self.driver.turn(0).flights:
            first = len(self.log.history)
            self.log.history += flight.batch.records
            self.partition.position = len(self.log.history)
            self.driver.appended(flight, first)

    async def appended(self, numbers: Collection[int]) -> None:
        assert numbers == [0]

    def lose(self, partition: Partition, why: str, pause_s: float) -> None:
        raise AssertionError(why)

    def restoring(self) -> Restoring:
        return Restoring(self.log, self.driver, self.appended, lambda: 0, self.lose)  # type: ignore[arg-type]


def test_a_damaged_state_is_read_again_by_the_worker(tmp_path: Path):
    log = Log()
    first = Owned(log, on_disk(tmp_path))
    first.tell(StartRun("1"), BAD, GOOD)
    first.checkpoint()
    live = first.owner.instances.in_memory(BAD)
    assert live is not None
    # What it may grow to is known: its next change is not tried on a copy first.
    live.engine, live.bytes_most = Breaks(), 100  # type: ignore[assignment]
    driven = Driven(first)
    driven.send(BAD, BAD, GOOD)

    async def scene() -> None:
        restoring = driven.restoring()
        driven.turn()
        assert first.owner.has_damaged
        assert len(driven.partition.commands) == 2, "they wait for the state"
        (work,) = restoring.begin([driven.partition])
        assert list(restoring.begin([driven.partition])) == [], "it is under way already"
        await work
        assert not first.owner.has_damaged
        driven.turn()

    asyncio.run(scene())
    outcomes = [getattr(item.events[0], "code", "") for item in log.history[-3:]]
    assert outcomes == ["INTERNAL", "", ""]
    second = Owned(log, MemoryStore())
    assert second.owner.instances.quarantined == {}
    assert codes(second, BAD, GOOD) == ["ALREADY_PAUSED"] * 2


def test_an_error_without_a_message_that_can_be_read_is_described_all_the_same():
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert quarantine.describe_error(Odd()) == "Odd: its message cannot be read"
    assert quarantine.describe_error(ValueError("\ud800")) == r"ValueError: \ud800"
    assert len(quarantine.describe_error(ValueError("x" * 10_000_000))) < 1_000
