"""The instances of a partition: those at work as objects in memory, the others as bytes in a store.

An instance that sleeps for a month, or has ended, costs its bytes and a timer. The same bytes are
its snapshot.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headwater.processors.runs.engine import Engine, Engines, engine_of
from headwater.processors.runs.state import Run
from headwater.schemas.statuses import RunStatus
from headwater.streams.engine import quarantine
from headwater.streams.engine.instance_store import GONE, InstanceStore, MemoryStore, StoredState

if TYPE_CHECKING:
    from headwater.processors.runs.host_messages import AttemptStarted, HostMessage
    from headwater.processors.runs.step_commits import StepId

#: Bytes of a state that one record of Kafka's holds, which takes 11 MiB: a larger one has several.
PART_BYTES: Final = 8 * 1024 * 1024


class LiveInstance:
    """What the owner holds of an instance at work, besides its state."""

    __slots__ = (
        "activation",
        "attempts",
        "batch",
        "behind_sql",
        "bytes_most",
        "committing",
        "damaged",
        "engine",
        "held",
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
        #: The offset in the history before which all was in the bytes that it comes from.
        self.position = position
        #: In how many records its snapshots have been: those that it no longer needs are to go.
        self.parts = 1
        self.activation: int | None = None
        #: The number of the host that has it in hand, while there is an activation.
        self.host = 0
        #: Attempts under way, by the key of their step; None until their host says they take long.
        self.attempts: dict[str, AttemptStarted | None] = {}
        #: Steps whose SQL takes effect right now, whether or not their host is there to hear of it.
        self.committing: set[StepId] = set()
        #: Those of them whose SQL is with Postgres at this moment: it may have taken effect.
        self.trying: set[StepId] = set()
        #: What its code has asked for since then that would undo one of them, and all after that.
        self.behind_sql: list[HostMessage] = []
        #: What the code of a run that is paused, or rests, sees when it goes on.
        self.held: list[HostMessage] = []
        self.resting = False
        self.ready = False
        #: The place in the batch of the record that more events may join.
        self.tail: int | None = None
        self.tail_bytes = 0
        #: The number of the latest batch that has events of it.
        self.batch = 0
        #: How many bytes its state has at most; None if nobody has measured it.
        self.bytes_most: int | None = None
        #: Since when nothing has happened to it.
        self.since_ms = 0
        #: Whether its state is not what the log says: nothing may be decided with it.
        self.damaged = False

    def restore(self, run: Run, engine: Engine[Any]) -> None:
        """Replace a damaged state by that of the log; no host has the instance."""
        self.run, self.engine = run, engine
        self.damaged = self.ready = self.resting = False
        self.bytes_most = self.tail = None

    def may_be_evicted(self) -> bool:
        """Whether its bytes are all there is to keep of it."""
        run = self.run
        if self.ready or self.held or self.attempts or self.committing or run.unsent:
            return False
        if self.damaged:
            return False
        return run.ended or run.status is not RunStatus.ACTIVE

    def may_be_deleted(self, since_ms: int | None) -> bool:
        """Whether nothing is left for it to do, and nobody has to hear of it.

        Shape:  with a time, nothing has happened to it since, either.
        """
        run = self.run
        is_over = run.ended and not (run.unsent or self.attempts or self.committing)
        return is_over and (since_ms is None or run.updated_at_ms <= since_ms)

    def stored(self, position: int) -> StoredState:
        """Its bytes, as of an offset in the history.

        Of a run that is over, only what a restart or a retry needs is kept.
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
    """An instance that was quarantined: why, what there was of it in memory, and the error."""

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
        #: Deleted since the last checkpoint: the store may have them still.
        self._deleted: set[str] = set()
        #: In how many records snapshots are, or were, of those that have more than one.
        self.parts: dict[str, int] = {}
        #: Bytes of the states that were loaded since `evict_restored`.
        self.loaded_bytes = 0
        #: Found in the history without their beginning: it says further on that they are deleted.
        self.torn: set[str] = set()
        #: Why instances are quarantined, by key.
        self.quarantined: dict[str, str] = {}
        self._newly_quarantined: list[Quarantined] = []

    def find(self, key: str) -> LiveInstance | None:
        """The instance of a key, loaded from its bytes if need be."""
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
            self.quarantine(key, f"its state cannot be read: {quarantine.described(error)}", error)
            return None
        live = self._live[key] = LiveInstance(key, engine, run, stored.position)
        live.parts = max(stored.parts, self.parts.get(key, 1))
        self.loaded_bytes += len(stored.state)
        self._loaded.append(live)
        return live

    # -- what nothing can be decided of

    def quarantine(self, key: str, reason: str, error: BaseException | None = None) -> None:
        """Take an instance out of use, until it is deleted or another release takes over."""
        live = self._live.pop(key, None)
        if live is not None:
            live.damaged = True
            if live.parts > 1:
                self.parts[key] = live.parts
        self.torn.discard(key)
        self._deleted.discard(key)
        self.quarantined[key] = reason
        self.changed.add(key)
        self._newly_quarantined.append(Quarantined(key, reason, live, error))

    def take_quarantined(self) -> list[Quarantined]:
        """Return the instances that were quarantined, or found so, since the last call."""
        newly, self._newly_quarantined = self._newly_quarantined, []
        return newly

    def has_failed(self) -> bool:
        """Return whether an instance was quarantined, not by an earlier owner, since then."""
        return any(each.error is not None for each in self._newly_quarantined)

    def was_quarantined_by_another_release(self) -> bool:
        """Return whether the store has instances that this release may be able to go on with."""
        states = (self.store.get(key) for at_ms, key in self.store.wakes() if not at_ms)
        return any(
            each is not None and each.kind == quarantine.KIND and each.format != quarantine.RELEASE
            for each in states
        )

    def drop(self, key: str) -> None:
        """Take out an instance of which nothing was recorded."""
        self._live.pop(key, None)

    # -- all of them

    def count_at_work(self) -> int:
        """How many instances are objects in memory."""
        return len(self._live)

    def at_work(self, key: str) -> LiveInstance | None:
        """The instance of a key, if it is at work."""
        return self._live.get(key)

    def all_at_work(self) -> Iterator[LiveInstance]:
        """The instances that are at work."""
        return iter(list(self._live.values()))

    def open_runs(self) -> Iterator[tuple[Engine[Any], Run]]:
        """The runs that have not ended, and that time or their code moves; loads none of them."""
        for live in self.all_at_work():
            if not live.run.ended:
                yield live.engine, live.run
        for _, key in self.store.wakes():
            stored = None if key in self._live or key in self._deleted else self.store.get(key)
            if stored is not None and stored.kind != quarantine.KIND:
                engine = engine_of(self.engines, stored.kind)
                yield engine, engine.decode(stored.state)

    def take_loaded(self) -> list[LiveInstance]:
        """The instances that were loaded from their bytes since the last call."""
        loaded, self._loaded = self._loaded, []
        return loaded

    def add(self, key: str, run: Run) -> LiveInstance:
        """Takes an instance in."""
        live = self._live[key] = LiveInstance(key, engine_of(self.engines, run.kind), run)
        live.parts = self.parts.get(key, 1)
        self._deleted.discard(key)
        return live

    def clear(self) -> None:
        """Forgets everything."""
        self._live.clear()
        self._loaded.clear()
        self._deleted.clear()
        self.torn.clear()
        self.quarantined.clear()
        self._newly_quarantined.clear()
        self.store.clear()

    def delete(self, key: str) -> None:
        """Takes an instance out; its bytes go with the next checkpoint."""
        live = self._live.pop(key, None)
        if live is not None and live.parts > 1:
            self.parts[key] = live.parts
        self.torn.discard(key)
        self.quarantined.pop(key, None)
        self._deleted.add(key)
        self.changed.add(key)

    def has_deleted(self) -> bool:
        """Whether the store may have bytes of deleted instances still."""
        return bool(self._deleted)

    def evict(self, resting: Sequence[LiveInstance], position: int) -> None:
        """Keeps only the bytes of instances, whose events before this offset are all durable."""
        states = self._stored((live, position) for live in resting)
        self.store.put(states)
        for key in states:
            del self._live[key]

    def _stored(self, lives: Iterable[tuple[LiveInstance, int]]) -> dict[str, StoredState]:
        """Return the bytes of instances; those that have none are quarantined."""
        states: dict[str, StoredState] = {}
        for live, position in lives:
            try:
                states[live.key] = live.stored(position)
            except Exception as error:  # noqa: BLE001, one state costs its instance alone
                reason = f"its state cannot be encoded: {quarantine.described(error)}"
                self.quarantine(live.key, reason, error)
        return states

    def evict_restored(self, position: int) -> int:
        """Keeps only the bytes of what rests as the history says; gives how many do not.

        For a takeover: no host has any of them, and no snapshot has what was read of them.
        """
        resting = [live for live in self._live.values() if live.may_be_evicted()]
        self.changed.update(live.key for live in resting)
        # What was loaded may have more in it than was read so far.
        states = self._stored((live, max(position, live.position)) for live in resting)
        self.store.put(states)
        for key in states:
            del self._live[key]
        self._loaded.clear()
        self.loaded_bytes = 0
        return len(self._live)

    def take_keys(self) -> set[str]:
        """The keys of what has changed since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    def take(
        self, keys: list[str], position: int, room: int = sys.maxsize
    ) -> dict[str, StoredState]:
        """The bytes of instances, which the store has from now on, too; takes their keys out.

        Shape:  position as in `evict`, for all instances; `GONE` for those that are deleted. Until
                there are so many bytes.
        """
        self.store.remove(self._deleted)
        self._deleted.clear()
        taken: dict[str, StoredState] = {}
        live: dict[str, StoredState] = {}
        while keys and room > 0:
            key = keys.pop()
            found = self._live.get(key)
            states = {} if found is None else self._stored([(found, position)])
            if key in states:
                state = live[key] = states[key]
            elif key in self.quarantined:
                reason, parts = self.quarantined[key], self.parts.get(key, 1)
                state = live[key] = quarantine.marker(reason, position, parts)
            else:
                # What was evicted since it changed is in the store already.
                state = self.store.get(key) or _gone(self.parts.get(key, 1))
            taken[key] = state
            room -= len(state.state)
        self.store.put(live)
        return taken


def _gone(parts: int) -> StoredState:
    return GONE if parts == 1 else msgspec.structs.replace(GONE, parts=parts)
