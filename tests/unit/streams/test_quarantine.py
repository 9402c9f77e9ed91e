"""A history that cannot be applied, or a state that cannot be encoded, costs its instance alone."""

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
from headwater.streams.engine.instance_store import MemoryStore, StoredState
from headwater.streams.engine.live_instances import LiveInstance
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
    events = [each.events[0] for each in owned.log.history[before:]]
    return [getattr(each, "code", "") for each in events]


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
    assert [each.quarantined for each in third.owner.take_incidents()] == [True]
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


def test_an_error_without_a_message_that_can_be_read_is_described_all_the_same():
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert quarantine.described(Odd()) == "Odd: its message cannot be read"
    assert quarantine.described(ValueError("\ud800")) == r"ValueError: \ud800"
    assert len(quarantine.described(ValueError("x" * 10_000_000))) < 1_000
