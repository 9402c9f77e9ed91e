"""A partition's store, with what is decided and not yet acknowledged on top.

What a batch changes may not reach the store before the broker has acknowledged it, and the batch
itself has to see it: so changes are staged, and written when the owner says that they are durable.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from headwater.processors.epochs import UNCLAIMED
from headwater.streams.kafka.state_store import Changes, Family

_PAGE = 500


class Mark(msgspec.Struct, frozen=True):
    """How far topics are in a store.

    Shape:  positions are the next offsets, epochs those of the newest writers before them, by
            topic; unseen as a claim says it.
    """

    positions: dict[str, int] = {}
    epochs: dict[str, int] = {}
    unseen: tuple[int, int] = (0, UNCLAIMED)


class Store(Protocol):
    """Where the state of a partition lies; see `StateStore`."""

    def positions(self) -> dict[str, int]: ...  # noqa: D102
    def get(self, family: Family, key: bytes) -> bytes | None: ...  # noqa: D102
    def multi_get(  # noqa: D102
        self, family: Family, keys: Sequence[bytes]
    ) -> list[bytes | None]: ...
    def scan(  # noqa: D102
        self, family: Family, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]: ...
    def families(self) -> list[Family]: ...  # noqa: D102
    def write(self, changes: Changes, positions: Mapping[str, int]) -> None: ...  # noqa: D102
    def drop(self, family: Family) -> None: ...  # noqa: D102
    def clear(self) -> None: ...  # noqa: D102
    def purge(  # noqa: D102
        self, family: Family, prefixes: Iterable[bytes] = (b"",)
    ) -> None: ...
    def close(self) -> None: ...  # noqa: D102


class Staged:
    """A store and what is to be written to it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._changes: defaultdict[Family, dict[bytes, bytes | None]] = defaultdict(dict)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key, as it will be."""
        changes = self._changes[family]
        return changes[key] if key in changes else self.store.get(family, key)

    def put(self, family: Family, key: bytes, value: bytes | None) -> None:
        """Changes a key; None deletes it."""
        self._changes[family][key] = value

    def put_all(self, family: Family, values: Mapping[bytes, bytes | None]) -> None:
        """Changes many keys, which costs less than one by one."""
        self._changes[family].update(values)

    def scan(
        self, family: Family, prefix: bytes = b"", *, until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin so, up to one, without it; with their values, in no order."""
        changes = dict(self._changes[family])
        for key, value in changes.items():
            if value is not None and key.startswith(prefix) and (until is None or key < until):
                yield key, value
        after: bytes | None = None
        while found := self.store.scan(family, prefix, after=after, limit=_PAGE):
            for key, value in found:
                if until is not None and key >= until:
                    return
                if key not in changes:
                    yield key, value
            after = found[-1][0]

    def write(self, positions: Mapping[str, int]) -> None:
        """Writes what is staged, all of which is durable, and how far the topics are in it."""
        self.store.write(self._changes, positions)
        self._changes.clear()
