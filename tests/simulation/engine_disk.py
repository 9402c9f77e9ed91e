"""The disk of a partition: stores of instances that lose what was written last when they crash."""

import random
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from typing_extensions import override

from headwater.streams.engine.instance_store import HistoryMark, MemoryStore, StoredState

_Write: TypeAlias = Callable[[MemoryStore], None]


class Place(MemoryStore):
    """A store on disk, which one process has at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = False
        self._writes: list[_Write] = []

    def release(self, draw: random.Random) -> None:
        """Its process has crashed, sometimes with the machine: then the last writes are lost.

        Sometimes it is another machine that the next one runs on, and everything is.
        """
        self.taken = False
        if draw.random() < 0.4:
            kept = draw.choice([0, draw.randint(0, len(self._writes))])
            writes, self._writes = self._writes[:kept], []
            super().clear()
            for write in writes:
                write(self)
            self._writes = writes

    @override
    def set_mark(self, mark: HistoryMark) -> None:
        self._writes.append(lambda store: MemoryStore.set_mark(store, mark))
        super().set_mark(mark)

    @override
    def put(self, states: Mapping[str, StoredState]) -> None:
        self._writes.append(lambda store: MemoryStore.put(store, states))
        super().put(states)

    @override
    def remove(self, keys: Collection[str]) -> None:
        removed = tuple(keys)
        self._writes.append(lambda store: MemoryStore.remove(store, removed))
        super().remove(removed)

    @override
    def clear(self) -> None:
        self._writes.append(MemoryStore.clear)
        super().clear()


class Disk:
    """The places of one partition: the first, and those that are used while others hold it."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def take(self) -> Place:
        """The first place that is free."""
        free = next((position for position in self._places if not position.taken), None)
        if free is None:
            free = Place()
            self._places.append(free)
        free.taken = True
        return free
