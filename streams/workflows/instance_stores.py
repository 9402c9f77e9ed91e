"""Stores on disk for resting and ended instances of a worker's partitions."""

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
from headwater.streams.kafka.cluster import Cluster, cluster_id
from headwater.streams.kafka.state_store import Family, StateStore, StoreIdentity
from headwater.streams.kafka.state_stores import StateStores

GROUP: Final = "workflows"
#: Version of the key layout. Engines have separate versions of their states.
_FORM: Final = 1
_STATES: Final = Family("i")
#: Wake-up times of instances with a timer, so that restoring need not read all others.
_WAKES: Final = Family("w")
_MARK: Final = Family("m")
_TIME_BYTES: Final = 8

_encode: Final = msgspec.msgpack.Encoder().encode
_state: Final = msgspec.msgpack.Decoder(StoredState).decode
_mark: Final = msgspec.msgpack.Decoder(HistoryMark).decode


class DiskStore:
    """The instances of a partition in a store on disk; see `InstanceStore`.

    All methods raise StoreTorn if the store is damaged.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def mark(self) -> HistoryMark | None:
        """Return from where the history has to be read."""
        data = self._store.get(_MARK, b"")
        return None if data is None else _mark(data)

    def set_mark(self, mark: HistoryMark) -> None:
        """Store a mark."""
        self._store.write({_MARK: {b"": _encode(mark)}}, {WORKFLOW_HISTORY: mark.position})

    def get(self, key: str) -> StoredState | None:
        """Return the state of an instance."""
        data = self._store.get(_STATES, key.encode())
        return None if data is None else _state(data)

    def put(self, states: Mapping[str, StoredState]) -> None:
        """Replace states."""
        if not states:
            return
        encoded: dict[bytes, bytes | None] = {}
        wakes: dict[bytes, bytes | None] = {}
        for key, state in states.items():
            name, at_ms = key.encode(), state.wake_at_ms
            encoded[name] = _encode(state)
            wakes[name] = at_ms.to_bytes(_TIME_BYTES, "big") if at_ms >= 0 else None
        self._store.write({_STATES: encoded, _WAKES: wakes}, {})

    def remove(self, keys: Collection[str]) -> None:
        """Remove states, also from the files on disk."""
        if not keys:
            return
        deleted: dict[bytes, bytes | None] = dict.fromkeys(key.encode() for key in keys)
        self._store.write({_STATES: deleted, _WAKES: deleted}, {})
        for family in (_STATES, _WAKES):
            self._store.purge(family, deleted)

    def wakes(self) -> Iterator[tuple[int, str]]:
        """Yield times and keys of the instances with a timer."""
        rows = self._store.scan(_WAKES)
        while rows:
            yield from ((int.from_bytes(at_ms, "big"), key.decode()) for key, at_ms in rows)
            rows = self._store.scan(_WAKES, after=rows[-1][0])

    def clear(self) -> None:
        """Remove everything."""
        self._store.clear()

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class InstanceStores:
    """Opens the stores of partitions, on disk or in memory."""

    def __init__(self, cluster: Cluster, engines: Engines, stores: StateStores | None) -> None:
        self._cluster = cluster
        self._stores = stores
        forms = [f"{kind} {engine.format}" for kind, engine in sorted(engines.items())]
        self._form = f"{_FORM}, {', '.join(forms)}"
        self._cluster_id = ""

    async def open(self, partition: int) -> InstanceStore:
        """Open the store of a partition.

        Raises:
            BrokerUnavailable: The id of the cluster is not known yet.
            StoreLocked: Another process has the store.
            StoreTorn: The store is damaged.
        """
        if self._stores is None:
            return MemoryStore()
        if not self._cluster_id:
            self._cluster_id = await cluster_id(self._cluster)
        identity = StoreIdentity(
            cluster=self._cluster_id,
            group=GROUP,
            topics=(WORKFLOW_HISTORY,),
            partition=partition,
            form=self._form,
        )
        return DiskStore(await self._stores.open_when_closed(identity))
