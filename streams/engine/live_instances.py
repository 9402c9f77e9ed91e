"""The instances of a partition: those at work as objects in memory, the others as bytes in a store.

An instance that sleeps for a month, or has ended, costs its bytes and a timer. The same bytes are
its snapshot.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headwater.processors.runs.engine import Engine, Engines, engine_of
from headwater.processors.runs.state import Run
from headwater.schemas.statuses import RunStatus
from headwater.streams.engine.instance_store import InstanceStore, MemoryStore, StoredState

if TYPE_CHECKING:
    from headwater.processors.runs.host_messages import HostMessage, Started


class LiveInstance:
    """What the owner holds of an instance at work, besides its state."""

    __slots__ = (
        "activation",
        "attempts",
        "batch",
        "engine",
        "held",
        "key",
        "ready",
        "resting",
        "run",
        "since_ms",
        "tail",
        "tail_bytes",
    )

    def __init__(self, key: str, engine: Engine[Any], run: Run) -> None:
        self.key = key
        self.engine = engine
        self.run = run
        self.activation: int | None = None
        #: Attempts under way, by the key of their step; None until their host says they take long.
        self.attempts: dict[str, Started | None] = {}
        #: What the code of a run that is paused, or rests, sees when it goes on.
        self.held: list[HostMessage] = []
        self.resting = False
        self.ready = False
        #: The place in the batch of the record that more events may join.
        self.tail: int | None = None
        self.tail_bytes = 0
        #: The number of the latest batch that has events of it.
        self.batch = 0
        #: Since when nothing has happened to it.
        self.since_ms = 0

    def may_be_evicted(self) -> bool:
        """Whether its bytes are all there is to keep of it."""
        run = self.run
        if self.ready or self.held or self.attempts or run.unsent:
            return False
        return run.ended or run.status is not RunStatus.ACTIVE

    def stored(self) -> StoredState:
        """Its bytes. Of a run that is over, only what a restart or a retry needs is kept."""
        run, engine = self.run, self.engine
        if run.ended:
            engine.drop_finished(run)
        if run.unsent or engine.is_runnable(run, 0):
            wake_at_ms = 0
        else:
            wake = engine.next_wake_ms(run)
            wake_at_ms = -1 if wake is None else wake
        return StoredState(engine.kind, engine.format, wake_at_ms, engine.encode(run))


class LiveInstances:
    """The instances of a partition, by key."""

    def __init__(self, engines: Engines, store: InstanceStore | None = None) -> None:
        self.engines = engines
        self._live: dict[str, LiveInstance] = {}
        self._store = MemoryStore() if store is None else store
        self._loaded: list[LiveInstance] = []
        #: Instances that have changed since their snapshot.
        self.changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._live) + len(self._store)

    def counts(self) -> tuple[int, int]:
        """How many are at work, and how many are bytes."""
        return len(self._live), len(self._store)

    def find(self, key: str) -> LiveInstance | None:
        """The instance of a key, loaded from its bytes if need be."""
        live = self._live.get(key)
        if live is None:
            stored = self._store.take(key)
            if stored is not None:
                engine = engine_of(self.engines, stored.kind)
                live = self._live[key] = LiveInstance(key, engine, engine.decode(stored.state))
                self._loaded.append(live)
        return live

    def at_work(self, key: str) -> LiveInstance | None:
        """The instance of a key, if it is at work."""
        return self._live.get(key)

    def all_at_work(self) -> Iterator[LiveInstance]:
        """The instances that are at work."""
        return iter(list(self._live.values()))

    def take_loaded(self) -> list[LiveInstance]:
        """The instances that were loaded from their bytes since the last call."""
        loaded, self._loaded = self._loaded, []
        return loaded

    def take_changed(self) -> set[str]:
        """The keys of the instances that have changed since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    def add(self, key: str, run: Run) -> LiveInstance:
        """Takes an instance in."""
        live = self._live[key] = LiveInstance(key, engine_of(self.engines, run.kind), run)
        return live

    def add_stored(self, key: str, state: StoredState) -> None:
        """Takes an instance in as its bytes."""
        self._live.pop(key, None)
        self._store.put(key, state)

    def evict(self, live: LiveInstance) -> None:
        """Keeps only the bytes of an instance."""
        del self._live[live.key]
        self._store.put(live.key, live.stored())

    def stored(self, key: str) -> StoredState:
        """The bytes of an instance.

        Errors: KeyError, if there is none.
        """
        live = self._live.get(key)
        return self._store.get(key) if live is None else live.stored()
