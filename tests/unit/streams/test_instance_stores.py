"""Goal: whatever a store of instances lies on, it gives what was put, and a takeover goes on there.

Method: one contract for the store in memory, that of the simulation, and the one on disk. Then an
owner whose instances end, and its successors, which read the history from where the store is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from headwater.processors.runs.claims import Claims, claim_of
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.history import (
    Command,
    CommandRejected,
    DeleteInstance,
    HistoryAppended,
    InstanceDeleted,
    PauseRun,
    RestartRun,
    StartRun,
    TerminateRun,
)
from headwater.schemas.records import SnapshotTaken
from headwater.streams.engine.code import Code
from headwater.streams.engine.instance_store import (
    DELETED,
    HistoryMark,
    InstanceStore,
    MemoryStore,
    StoredState,
)
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.restore import CHECKPOINT, Restored, restore_partition
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.instance_stores import DiskStore, InstanceStores
from tests.fakes import records
from tests.fakes.engines import ENGINES, REPLAY
from tests.simulation.engine_disk import Disk
from tests.unit.streams.stores import opened

KEYS = [f"order/o-{number}" for number in range(30)]


def on_disk(folder: Path) -> InstanceStore:
    return DiskStore(opened(folder))


@pytest.fixture(params=["memory", "simulation", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InstanceStore]:
    made: dict[str, Callable[[], InstanceStore]] = {
        "memory": MemoryStore,
        "simulation": Disk().take,
        "disk": lambda: on_disk(tmp_path),
    }
    result = made[request.param]()
    yield result
    result.close()


def a_state(wake_at_ms: int = -1, position: int = 7) -> StoredState:
    return StoredState("replay", 1, wake_at_ms, position, b"state")


def test_a_new_store_has_nothing(store: InstanceStore):
    assert (store.mark(), store.get("a"), list(store.wakes())) == (None, None, [])


def test_what_was_put_last_is_there(store: InstanceStore):
    store.put({"a": a_state(), "ä/~0": a_state(5)})
    store.put({"a": a_state(position=8)})
    store.put({})
    assert (store.get("a"), store.get("ä/~0")) == (a_state(position=8), a_state(5))


def test_those_that_time_moves_are_found_as_long_as_it_does(store: InstanceStore):
    many = {f"s/{number}": a_state(number) for number in range(2_500)}
    store.put(many | {"ended": a_state(), "sleeps": a_state(9)})
    store.put({"sleeps": a_state(), "s/0": a_state(2**42)})
    expected = {number: f"s/{number}" for number in range(1, 2_500)} | {2**42: "s/0"}
    assert dict(store.wakes()) == expected


def test_a_mark_is_kept_until_the_next_and_all_may_be_forgotten(store: InstanceStore):
    store.put({"a": a_state(3)})
    store.set_mark(HistoryMark(5, 3, 2))
    store.set_mark(HistoryMark(9, 4, -1))
    assert store.mark() == HistoryMark(9, 4, -1)
    store.clear()
    assert (store.mark(), store.get("a"), list(store.wakes())) == (None, None, [])


# -- takeovers


class Log:
    """A partition's history and snapshots, and from where on they were read."""

    def __init__(self) -> None:
        self.history: list[HistoryAppended] = []
        self.snapshots: list[tuple[bytes, SnapshotTaken | None]] = []
        self.starts: list[int] = []
        self.snapshots_read = 0

    def claim(self) -> int:
        self.history.append(claim_of("owner", {"order": REPLAY.kind}, 0))
        return len(self.history) - 1

    async def read(
        self, partition: int, start: int, end: int
    ) -> AsyncIterator[list[tuple[int, HistoryAppended]]]:
        self.starts.append(start)
        for offset in range(start, end):
            yield [(offset, self.history[offset])]

    async def read_snapshots(
        self, partition: int
    ) -> AsyncIterator[tuple[bytes, SnapshotTaken | None]]:
        self.snapshots_read += 1
        for snapshot in self.snapshots:
            yield snapshot

    def write(self, changed: dict[str, StoredState], mark: HistoryMark) -> None:
        for key, item in {**changed, "": StoredState("", 0, -1, 0, b"")}.items():
            taken = snapshot_of(item, mark.epoch, mark.position, mark.cause)
            self.snapshots.append((key.encode(), taken))


def snapshot_of(each: StoredState, epoch: int, position: int, cause: int = -1) -> SnapshotTaken:
    return SnapshotTaken(
        kind=each.kind,
        format=each.format,
        compressed=False,
        epoch=epoch,
        position=position,
        cause=cause,
        wake_at_ms=each.wake_at_ms,
        state=each.state,
    )


class Owned:
    """A partition with an owner, whose appends are durable at once."""

    def __init__(
        self,
        log: Log,
        store: InstanceStore,
        live_max: int = 10_000,
        *,
        kind: str = REPLAY.kind,
        limit: Concurrency | None = None,
    ) -> None:
        self.log = log
        self.epoch = log.claim()
        self.restored = self._take_over(store, live_max)
        self.owner = Owner(
            0,
            self.restored.claims,
            self.restored.instances,
            code=Code({"order": kind}, concurrency={} if limit is None else {"order": limit}),
            number_activations=lambda _: 1,
            draw_seed=lambda: "seed",
        )

    def _take_over(self, store: InstanceStore, live_max: int) -> Restored:
        instances = LiveInstances(ENGINES, store)
        return asyncio.run(restore_partition(self.log, instances, 0, self.epoch, 0, live_max))

    def tell(self, command: Command, *keys: str, at_ms: int = 0) -> None:
        for key in keys:
            workflow, _, instance_id = key.partition("/")
            sent = records.sent(command, workflow=workflow, instance_id=instance_id)
            self.owner.receive(self.owner.claims.cause + 1, sent, at_ms)
        self.log.history += self.owner.take_batch().records

    def run(self, *keys: str) -> None:
        """Instances that begin and end."""
        self.tell(StartRun("1"), *keys)
        self.tell(TerminateRun("done"), *keys)

    def evict(self) -> int:
        self.owner.dispatch(0)  # Nobody evicts what a host is still to get.
        return self.owner.evict(1, self.owner.batch_number, len(self.log.history))

    def checkpoint(self) -> None:
        mark = HistoryMark(len(self.log.history), self.epoch, self.owner.claims.cause)
        instances = self.owner.instances
        self.log.write(instances.take_snapshots(list(instances.take_keys()), mark.position), mark)
        instances.store.set_mark(mark)

    def ended(self) -> set[str]:
        result = [(key, self.owner.instances.find(key)) for key in KEYS]
        return {key for key, live in result if live is not None and live.run.ended}


def test_a_takeover_with_a_store_reads_only_what_came_since(tmp_path: Path):
    log = Log()
    first = Owned(log, on_disk(tmp_path))
    first.run(*KEYS[:10])
    assert first.evict() == 10
    first.checkpoint()
    at = len(log.history)
    first.run(*KEYS[10:12])
    first.owner.instances.store.close()
    second = Owned(log, on_disk(tmp_path))
    assert (log.starts, log.snapshots_read) == ([0, at], 1)
    assert second.restored.instances.count_in_memory() == 2
    assert second.ended() == set(KEYS[:12])
    assert second.restored.claims == Claims(second.epoch, 23, "owner")


def test_a_takeover_knows_the_time_of_the_latest_record_that_counts():
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), *KEYS[:2], at_ms=7_000)
    second = Owned(log, MemoryStore())
    first.tell(StartRun("1"), KEYS[2], at_ms=8_000)
    second.tell(StartRun("1"), KEYS[3], at_ms=7_500)
    third = Owned(log, MemoryStore())
    times = [item.restored.at_ms for item in (first, second, third)]
    assert times == [0, 7_000, 7_500]


def test_states_that_are_newer_than_the_mark_do_not_get_their_events_again(tmp_path: Path):
    log = Log()
    first = Owned(log, on_disk(tmp_path))
    first.tell(StartRun("1"), *KEYS[:3])
    first.checkpoint()
    first.tell(TerminateRun("done"), *KEYS[:2])
    assert first.evict() == 2
    first.owner.instances.store.close()
    second = Owned(log, on_disk(tmp_path))
    assert second.ended() == set(KEYS[:2])
    second.checkpoint()
    assert Owned(log, MemoryStore()).ended() == set(KEYS[:2])


def test_without_a_store_snapshots_and_history_fill_it_again(tmp_path: Path):
    log = Log()
    first = Owned(log, on_disk(tmp_path / "lost"))
    first.run(*KEYS[:10])
    first.checkpoint()
    at = len(log.history)
    first.run(*KEYS[10:12])
    second = Owned(log, on_disk(tmp_path / "new"))
    assert log.starts == [0, at]
    assert second.ended() == set(KEYS[:12])
    second.owner.instances.store.close()
    third = Owned(log, on_disk(tmp_path / "new"))
    assert (log.starts, log.snapshots_read) == ([0, at, at], 2)
    assert third.ended() == set(KEYS[:12])


def test_a_store_that_was_half_filled_is_filled_anew(tmp_path: Path):
    log = Log()
    first = Owned(log, MemoryStore())
    first.run(*KEYS[:10])
    first.checkpoint()
    half = on_disk(tmp_path)
    half.put({KEYS[0]: a_state(), "order/never": a_state()})
    second = Owned(log, half)
    assert second.ended() == set(KEYS[:10])
    assert second.owner.instances.find("order/never") is None


def test_an_instance_that_was_deleted_is_nowhere_and_may_begin_anew(tmp_path: Path):
    log = Log()
    first = Owned(log, on_disk(tmp_path))
    first.run(*KEYS[:3])
    first.evict()
    first.checkpoint()
    first.tell(DeleteInstance(), *KEYS[:2])
    first.tell(StartRun("2"), KEYS[1])
    assert (first.ended(), first.owner.instances.find(KEYS[0])) == ({KEYS[2]}, None)
    first.evict()
    first.owner.instances.store.close()
    second = Owned(log, on_disk(tmp_path))
    assert (second.ended(), second.owner.instances.find(KEYS[0])) == ({KEYS[2]}, None)
    second.checkpoint()
    second.owner.instances.store.close()
    assert KEYS[0].encode() not in b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in {".sst", ".log"}
    )
    third = Owned(log, MemoryStore())
    assert third.ended() == {KEYS[2]}
    assert {key for key in KEYS if third.owner.instances.find(key)} == set(KEYS[1:3])


def test_a_checkpoint_that_was_cut_off_may_have_removed_what_the_history_speaks_of():
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), KEYS[0])
    first.checkpoint()
    first.tell(TerminateRun("done"), KEYS[0])
    first.tell(DeleteInstance(), KEYS[0])
    log.snapshots.append((KEYS[0].encode(), snapshot_of(DELETED, first.epoch, len(log.history))))
    second = Owned(log, MemoryStore())
    assert second.owner.instances.find(KEYS[0]) is None
    assert log.starts[-1] > 0, "the history was not read whole"


def test_a_state_that_is_missing_and_was_not_deleted_is_read_from_the_whole_history():
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), *KEYS[:2])
    first.checkpoint()
    first.tell(TerminateRun("done"), *KEYS[:2])
    log.snapshots.append((KEYS[0].encode(), snapshot_of(DELETED, first.epoch, len(log.history))))
    second = Owned(log, MemoryStore())
    assert second.ended() == set(KEYS[:2])
    assert log.starts[-2:] == [2 + 1, 0]


def test_a_state_that_is_missing_may_be_followed_by_a_restart():
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), *KEYS[:2])
    first.checkpoint()
    first.tell(RestartRun(), *KEYS[:2])
    first.tell(TerminateRun("done"), *KEYS[:2])
    log.snapshots.append((KEYS[0].encode(), snapshot_of(DELETED, first.epoch, len(log.history))))
    second = Owned(log, MemoryStore())
    assert second.ended() == set(KEYS[:2])
    assert log.starts[-1] == 0


def test_what_has_not_ended_is_not_deleted_and_what_is_not_there_is_named_nowhere():
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), KEYS[0])
    first.tell(DeleteInstance(), *KEYS[:2])
    first.tell(PauseRun(), KEYS[2])
    refused, nothing, unknown = log.history[-3:]
    assert isinstance(refused.events[0], CommandRejected)
    assert refused.events[0].code == "INSTANCE_NOT_ENDED"
    assert (nothing.instance_id, nothing.events) == ("", (InstanceDeleted(),))
    assert (unknown.workflow, unknown.instance_id) == ("", "")


def test_an_instance_to_which_something_has_happened_since_is_not_deleted():
    log = Log()
    first = Owned(log, MemoryStore())
    first.tell(StartRun("1"), *KEYS[:2])
    first.tell(TerminateRun("done"), *KEYS[:2])
    ended_at_ms = 0
    first.tell(DeleteInstance(unchanged_since_ms=ended_at_ms - 1), KEYS[0])
    first.tell(DeleteInstance(unchanged_since_ms=ended_at_ms), KEYS[1])
    refused, deleted = log.history[-2:]
    assert isinstance(refused.events[0], CommandRejected)
    assert refused.events[0].message == (
        "expected an instance that has ended and sent all its messages, found terminated, "
        "changed at 0, after -1 (Unix milliseconds)"
    )
    assert deleted.events == (InstanceDeleted(),)
    assert first.ended() == {KEYS[0]}


@pytest.mark.parametrize("snapshot", [None, "of another form"])
def test_snapshots_that_nobody_can_read_are_no_reason_to_keep_the_others(
    tmp_path: Path, snapshot: str | None
):
    log = Log()
    first = Owned(log, MemoryStore())
    first.run(*KEYS[:10])
    first.checkpoint()
    if snapshot:
        log.write({"order/x": StoredState("replay", 99, -1, 0, b"?")}, HistoryMark(1, 0, 0))
    else:
        log.snapshots.append((b"order/x", None))
    second = Owned(log, on_disk(tmp_path))
    assert log.starts == [0, 0]
    assert second.ended() == set(KEYS[:10])
    assert second.owner.instances.store.mark() is None


def test_a_store_of_a_longer_history_is_filled_anew(tmp_path: Path):
    store = on_disk(tmp_path)
    store.put({KEYS[5]: a_state()})
    store.set_mark(HistoryMark(1_000, 900, 800))
    log = Log()
    second = Owned(log, store)
    assert (log.starts, second.ended(), second.restored.start) == ([0], set(), 0)


def test_a_takeover_of_many_keeps_few_of_them_in_memory_and_misses_none(tmp_path: Path):
    log = Log()
    first = Owned(log, MemoryStore())
    for key in KEYS[:25]:
        first.run(key)
    first.tell(StartRun("1"), *KEYS[25:])
    second = Owned(log, on_disk(tmp_path), live_max=3)
    assert second.restored.instances.count_in_memory() <= 8
    assert second.ended() == set(KEYS[:25])
    second.checkpoint()
    assert {name.decode() for name, _ in log.snapshots} == {*KEYS, CHECKPOINT.decode()}
    assert Owned(log, MemoryStore()).ended() == set(KEYS[:25])


def test_without_a_folder_instances_rest_in_memory():
    stores = InstanceStores(Cluster("nowhere:1"), ENGINES, None)
    assert isinstance(asyncio.run(stores.open(3)), MemoryStore)


def test_snapshots_of_a_history_that_was_longer_are_not_taken_for_true():
    log = Log()
    first = Owned(log, MemoryStore())
    first.run(*KEYS[:2])
    at = len(log.history)
    first.run(*KEYS[2:4])
    first.checkpoint()
    del log.history[at:]  # The broker has lost its end.
    second = Owned(log, MemoryStore())
    assert second.ended() == set(KEYS[:2])
    assert second.owner.instances.find(KEYS[2]) is None
