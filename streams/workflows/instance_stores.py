"""The instances of a worker's partitions, on disk: those that rest, and those that have ended."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from headwater.processors.runs.engine import Engines
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.engine.instance_store import (
    HistoryMark,
    InstanceStore,
    MemoryStore,
    StoredState,
)
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.cluster_id import cluster_id
from headwater.streams.kafka.state_store import Family, Identity, StateStore
from headwater.streams.kafka.state_stores import StateStores

GROUP: Final = "workflows"
#: Version of what is kept under which key; states have versions of their engines besides.
_FORM: Final = 1
_STATES: Final = Family("i")
#: When time moves an instance, for those that it does: a takeover must not look at all others.
_WAKES: Final = Family("w")
_MARK: Final = Family("m")
_TIME_BYTES: Final = 8

_encode: Final = msgspec.msgpack.Encoder().encode
_state: Final = msgspec.msgpack.Decoder(StoredState).decode
_mark: Final = msgspec.msgpack.Decoder(HistoryMark).decode


class DiskStore:
    """The instances of a partition in a store on disk; see `InstanceStore`.

    Errors: StoreTorn, from everything.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def mark(self) -> HistoryMark | None:
        """From where the history has to be read."""
        data = self._store.get(_MARK, b"")
        return None if data is None else _mark(data)

    def set_mark(self, mark: HistoryMark) -> None:
        """Keeps a mark."""
        self._store.write({_MARK: {b"": _encode(mark)}}, {WORKFLOW_HISTORY: mark.position})

    def get(self, key: str) -> StoredState | None:
        """The state of an instance."""
        data = self._store.get(_STATES, key.encode())
        return None if data is None else _state(data)

    def put(self, states: Mapping[str, StoredState]) -> None:
        """Keeps states."""
        if not states:
            return
        kept: dict[bytes, bytes | None] = {}
        wakes: dict[bytes, bytes | None] = {}
        for key, state in states.items():
            name, at_ms = key.encode(), state.wake_at_ms
            kept[name] = _encode(state)
            wakes[name] = at_ms.to_bytes(_TIME_BYTES, "big") if at_ms >= 0 else None
        self._store.write({_STATES: kept, _WAKES: wakes}, {})

    def remove(self, keys: Collection[str]) -> None:
        """Forgets the states of instances, and has their bytes leave the disk."""
        if not keys:
            return
        gone: dict[bytes, bytes | None] = dict.fromkeys(key.encode() for key in keys)
        self._store.write({_STATES: gone, _WAKES: gone}, {})
        for family in (_STATES, _WAKES):
            self._store.purge(family, gone)

    def wakes(self) -> Iterator[tuple[int, str]]:
        """Times and keys of the instances that time moves."""
        found = self._store.scan(_WAKES)
        while found:
            yield from ((int.from_bytes(at_ms, "big"), key.decode()) for key, at_ms in found)
            found = self._store.scan(_WAKES, after=found[-1][0])

    def clear(self) -> None:
        """Forgets everything."""
        self._store.clear()

    def close(self) -> None:
        """Lets others have it."""
        self._store.close()


class InstanceStores:
    """Opens the stores of partitions: on disk, or in memory where there is none for them."""

    def __init__(self, cluster: Cluster, engines: Engines, stores: StateStores | None) -> None:
        self._cluster = cluster
        self._stores = stores
        forms = [f"{kind} {engine.format}" for kind, engine in sorted(engines.items())]
        self._form = f"{_FORM}, {', '.join(forms)}"
        self._cluster_id = ""

    async def open(self, partition: int) -> InstanceStore:
        """Opens the store of a partition.

        Errors: BrokerUnavailable; StoreLocked, StoreTorn.
        """
        if self._stores is None:
            return MemoryStore()
        if not self._cluster_id:
            self._cluster_id = await cluster_id(self._cluster)
        identity = Identity(
            cluster=self._cluster_id,
            group=GROUP,
            topics=(WORKFLOW_HISTORY,),
            partition=partition,
            form=self._form,
        )
        return DiskStore(self._stores.open(identity))
