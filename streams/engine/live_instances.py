"""Instances of a partition: active ones are objects in memory, the others are encoded in a store.

An instance that sleeps for a month, or has ended, only costs its encoding and a timer. The same
encoding is used as its snapshot.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headwater.processors.runs.engine import Engine, Engines, engine_of
from headwater.processors.runs.state import Run
from headwater.schemas.statuses import RunStatus
from headwater.streams.engine import quarantine
from headwater.streams.engine.instance_store import DELETED, InstanceStore, MemoryStore, StoredState

if TYPE_CHECKING:
    from headwater.processors.runs.host_messages import AttemptStarted, HostMessage
    from headwater.processors.runs.step_commits import StepId

#: Bytes of a state in one Kafka record; the limit is 11 MiB. A larger state has several records.
PART_BYTES: Final = 8 * 1024 * 1024


class LiveInstance:
    """Data of an instance in memory, besides the state of its run."""

    __slots__ = (
        "activation",
        "attempts",
        "batch",
        "bytes_most",
        "committing",
        "damaged",
        "engine",
        "held",
        "held_behind_sql",
        "host",
        "key",
        "parts",
        "position",
        "ready",
        "resting",
        "run",
        "since_ms",
        "tail",
        "tail_bytes",
        "trying",
    )

    def __init__(self, key: str, engine: Engine[Any], run: Run, position: int = 0) -> None:
        self.key = key
        self.engine = engine
        self.run = run
        #: Offset in the history; all events before it were in the state that was loaded.
        self.position = position
        #: Largest number of records of its snapshots: records no longer needed must be deleted.
        self.parts = 1
        self.activation: int | None = None
        #: Number of its host, if it has an activation.
        self.host = 0
        #: Running attempts by the key of their step; None until the host reports that one is long.
        self.attempts: dict[str, AttemptStarted | None] = {}
        #: Steps with SQL that is being committed, even if their host was lost.
        self.committing: set[StepId] = set()
        #: Those of them with SQL that was sent to Postgres: it may have taken effect.
        self.trying: set[StepId] = set()
        #: Requests of its code since then: the first would undo one of them, the rest follow it.
        self.held_behind_sql: list[HostMessage] = []
        #: Messages for code that is paused or rests, to be sent when it continues.
        self.held: list[HostMessage] = []
        self.resting = False
        self.ready = False
        #: Index in the batch of a record that further events may be added to.
        self.tail: int | None = None
        self.tail_bytes = 0
        #: Number of the latest batch that has events of it.
        self.batch = 0
        #: Upper bound of the size of its state in bytes; None if it was not measured.
        self.bytes_most: int | None = None
        #: Time of its latest change, in Unix milliseconds.
        self.since_ms = 0
        #: Whether its state is inconsistent with the log, so that nothing may be decided.
        self.damaged = False

    def restore(self, run: Run, engine: Engine[Any]) -> None:
        """Replace a damaged state by that of the log. No host may hold the instance."""
        self.run, self.engine = run, engine
        self.damaged = self.ready = self.resting = False
        self.bytes_most = self.tail = None

    def may_be_evicted(self) -> bool:
        """Whether it can be reduced to its encoding."""
        run = self.run
        if self.ready or self.held or self.attempts or self.committing or run.unsent:
            return False
        if self.damaged:
            return False
        return run.ended or run.status is not RunStatus.ACTIVE

    def may_be_deleted(self, since_ms: int | None) -> bool:
        """Whether it has nothing left to do or to send.

        With `since_ms`, it must not have changed since, either.
        """
        run = self.run
        is_over = run.ended and not (run.unsent or self.attempts or self.committing)
        return is_over and (since_ms is None or run.updated_at_ms <= since_ms)

    def stored(self, position: int) -> StoredState:
        """Return its encoding, as of an offset in the history.

        Of a run that has ended, only what a restart or a retry needs is kept.
        """
        run, engine = self.run, self.engine
        if run.ended:
            engine.drop_finished(run)
        if run.unsent or run.is_forgotten or engine.is_runnable(run, 0):
            wake_at_ms = 0
        else:
            wake = engine.next_wake_ms(run)
            wake_at_ms = -1 if wake is None else wake
        state = engine.encode(run)
        self.parts = max(self.parts, -(-len(state) // PART_BYTES))
        return StoredState(engine.kind, engine.format, wake_at_ms, position, state, self.parts)


class Quarantined(NamedTuple):
    """A quarantined instance: the reason, its object if it was in memory, and the error."""

    key: str
    reason: str
    live: LiveInstance | None
    error: BaseException | None


class LiveInstances:
    """The instances of a partition, by key."""

    def __init__(self, engines: Engines, store: InstanceStore | None = None) -> None:
        self.engines = engines
        self._live: dict[str, LiveInstance] = {}
        self.store = MemoryStore() if store is None else store
        self._loaded: list[LiveInstance] = []
        #: Instances that have changed since their snapshot.
        self.changed: set[str] = set()
        #: Instances deleted since the last checkpoint: the store may still have them.
        self._deleted: set[str] = set()
        #: Largest number of records of snapshots, for those that had more than one.
        self.parts: dict[str, int] = {}
        #: Bytes of the states that were loaded since the last `evict_restored`.
        self.loaded_bytes = 0
        #: Instances with a history that does not begin with their start. A deletion must follow.
        self.incomplete: set[str] = set()
        #: Reasons of quarantined instances, by key.
        self.quarantined: dict[str, str] = {}
        self._newly_quarantined: list[Quarantined] = []

    def find(self, key: str) -> LiveInstance | None:
        """Return an instance, loading it from the store if necessary."""
        live = self._live.get(key)
        if live is None and key not in self._deleted and key not in self.quarantined:
            stored = self.store.get(key)
            if stored is not None:
                live = self._load(key, stored)
        return live

    def _load(self, key: str, stored: StoredState) -> LiveInstance | None:
        if stored.kind == quarantine.KIND:
            reason = self.quarantined[key] = quarantine.reason_of(stored)
            self._newly_quarantined.append(Quarantined(key, reason, None, None))
            return None
        engine = engine_of(self.engines, stored.kind)
        try:
            run = engine.decode(stored.state)
        except Exception as error:  # noqa: BLE001, one state costs its instance alone
            self.quarantine(
                key, f"its state cannot be read: {quarantine.describe_error(error)}", error
            )
            return None
        live = self._live[key] = LiveInstance(key, engine, run, stored.position)
        live.parts = max(stored.parts, self.parts.get(key, 1))
        self.loaded_bytes += len(stored.state)
        self._loaded.append(live)
        return live

    # -- quarantine

    def quarantine(self, key: str, reason: str, error: BaseException | None = None) -> None:
        """Take an instance out of use, until it is deleted or another release takes over."""
        live = self._live.pop(key, None)
        if live is not None:
            live.damaged = True
            if live.parts > 1:
                self.parts[key] = live.parts
        self.incomplete.discard(key)
        self._deleted.discard(key)
        self.quarantined[key] = reason
        self.changed.add(key)
        self._newly_quarantined.append(Quarantined(key, reason, live, error))

    def take_quarantined(self) -> list[Quarantined]:
        """Return the instances that were quarantined, or loaded as such, since the last call."""
        newly, self._newly_quarantined = self._newly_quarantined, []
        return newly

    def has_failed(self) -> bool:
        """Return whether an instance was newly quarantined by this owner since then."""
        return any(item.error is not None for item in self._newly_quarantined)

    def was_quarantined_by_another_release(self) -> bool:
        """Return whether the store has instances that this release may be able to continue."""
        states = (self.store.get(key) for at_ms, key in self.store.wakes() if not at_ms)
        return any(
            state is not None
            and state.kind == quarantine.KIND
            and state.format != quarantine.RELEASE
            for state in states
        )

    def drop(self, key: str) -> None:
        """Remove an instance of which nothing was recorded."""
        self._live.pop(key, None)

    # -- iteration

    def count_in_memory(self) -> int:
        """Return the number of instances in memory."""
        return len(self._live)

    def in_memory(self, key: str) -> LiveInstance | None:
        """Return an instance if it is in memory."""
        return self._live.get(key)

    def all_in_memory(self) -> Iterator[LiveInstance]:
        """Iterate over the instances in memory."""
        return iter(list(self._live.values()))

    def open_runs(self) -> Iterator[tuple[Engine[Any], Run]]:
        """Yield the runs that have not ended and have code or a timer, without loading them."""
        for live in self.all_in_memory():
            if not live.run.ended:
                yield live.engine, live.run
        for _, key in self.store.wakes():
            stored = None if key in self._live or key in self._deleted else self.store.get(key)
            if stored is not None and stored.kind != quarantine.KIND:
                engine = engine_of(self.engines, stored.kind)
                yield engine, engine.decode(stored.state)

    def take_loaded(self) -> list[LiveInstance]:
        """Return the instances that were loaded from the store since the last call."""
        loaded, self._loaded = self._loaded, []
        return loaded

    def add(self, key: str, run: Run) -> LiveInstance:
        """Add an instance."""
        live = self._live[key] = LiveInstance(key, engine_of(self.engines, run.kind), run)
        live.parts = self.parts.get(key, 1)
        self._deleted.discard(key)
        return live

    def clear(self) -> None:
        """Remove everything."""
        self._live.clear()
        self._loaded.clear()
        self._deleted.clear()
        self.incomplete.clear()
        self.quarantined.clear()
        self._newly_quarantined.clear()
        self.store.clear()

    def delete(self, key: str) -> None:
        """Delete an instance. Its encoding is removed with the next checkpoint."""
        live = self._live.pop(key, None)
        if live is not None and live.parts > 1:
            self.parts[key] = live.parts
        self.incomplete.discard(key)
        self.quarantined.pop(key, None)
        self._deleted.add(key)
        self.changed.add(key)

    def has_deleted(self) -> bool:
        """Whether the store may still have deleted instances."""
        return bool(self._deleted)

    def evict(self, resting: Sequence[LiveInstance], position: int) -> None:
        """Move instances to the store. Their events before this offset must be durable."""
        states = self._stored((live, position) for live in resting)
        self.store.put(states)
        for key in states:
            del self._live[key]

    def _stored(self, lives: Iterable[tuple[LiveInstance, int]]) -> dict[str, StoredState]:
        """Encode instances. Those that cannot be encoded are quarantined."""
        states: dict[str, StoredState] = {}
        for live, position in lives:
            try:
                states[live.key] = live.stored(position)
            except Exception as error:  # noqa: BLE001, one state costs its instance alone
                reason = f"its state cannot be encoded: {quarantine.describe_error(error)}"
                self.quarantine(live.key, reason, error)
        return states

    def evict_restored(self, position: int) -> int:
        """Move instances that rest to the store, and return how many stay in memory.

        For use while a partition is restored: no host holds an instance, and no snapshot has the
        events that were read.
        """
        resting = [live for live in self._live.values() if live.may_be_evicted()]
        self.changed.update(live.key for live in resting)
        # A loaded state may be newer than the events that were read so far.
        states = self._stored((live, max(position, live.position)) for live in resting)
        self.store.put(states)
        for key in states:
            del self._live[key]
        self._loaded.clear()
        self.loaded_bytes = 0
        return len(self._live)

    def take_keys(self) -> set[str]:
        """Return the keys of instances that have changed since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    def take_snapshots(
        self, keys: list[str], position: int, bytes_max: int = sys.maxsize
    ) -> dict[str, StoredState]:
        """Encode instances, put them into the store, and return them.

        Args:
            keys: Keys of the instances. Those that are handled are removed.
            position: As in `evict`, for all instances.
            bytes_max: Stop when this many bytes are reached.

        Returns:
            States by key; `DELETED` for deleted instances.
        """
        self.store.remove(self._deleted)
        self._deleted.clear()
        taken: dict[str, StoredState] = {}
        live: dict[str, StoredState] = {}
        while keys and bytes_max > 0:
            key = keys.pop()
            instance = self._live.get(key)
            states = {} if instance is None else self._stored([(instance, position)])
            if key in states:
                state = live[key] = states[key]
            elif key in self.quarantined:
                reason, parts = self.quarantined[key], self.parts.get(key, 1)
                state = live[key] = quarantine.marker(reason, position, parts)
            else:
                # Evicted since it changed, so the store has it already.
                state = self.store.get(key) or _deleted_state(self.parts.get(key, 1))
            taken[key] = state
            bytes_max -= len(state.state)
        self.store.put(live)
        return taken


def _deleted_state(parts: int) -> StoredState:
    return DELETED if parts == 1 else msgspec.structs.replace(DELETED, parts=parts)
