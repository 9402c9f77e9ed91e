"""A partition's store with staged changes that the broker has not acknowledged yet.

Changes of a batch must not reach the store before the broker has acknowledged them, but the batch
itself has to see them. So they are staged, and written when their owner reports them as durable.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from headwater.processors.epochs import UNCLAIMED
from headwater.streams.kafka.state_store import Changes, Family

_PAGE = 500


class PartitionCheckpoint(msgspec.Struct, frozen=True):
    """Position of topics in a store.

    Attributes:
        positions: Next offset by topic.
        epochs: Epoch of the newest writer before it, by topic.
        unseen: See `Fold.unseen`.
    """

    positions: dict[str, int] = {}
    epochs: dict[str, int] = {}
    unseen: tuple[int, int] = (0, UNCLAIMED)


class Store(Protocol):
    """Store of a partition's state; see `StateStore`."""

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
    """A store and the changes to be written to it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._changes: defaultdict[Family, dict[bytes, bytes | None]] = defaultdict(dict)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of a key, with staged changes."""
        changes = self._changes[family]
        return changes[key] if key in changes else self.store.get(family, key)

    def put(self, family: Family, key: bytes, value: bytes | None) -> None:
        """Stage the change of a key; None deletes it."""
        self._changes[family][key] = value

    def put_all(self, family: Family, values: Mapping[bytes, bytes | None]) -> None:
        """Stage changes of many keys, which costs less than one by one."""
        self._changes[family].update(values)

    def scan(
        self, family: Family, prefix: bytes = b"", *, until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys with a prefix and their values, unordered; `until` is exclusive."""
        changes = dict(self._changes[family])
        for key, value in changes.items():
            if value is not None and key.startswith(prefix) and (until is None or key < until):
                yield key, value
        after: bytes | None = None
        while page := self.store.scan(family, prefix, after=after, limit=_PAGE):
            for key, value in page:
                if until is not None and key >= until:
                    return
                if key not in changes:
                    yield key, value
            after = page[-1][0]

    def write(self, positions: Mapping[str, int]) -> None:
        """Write the staged changes, all of them durable, and the positions of topics."""
        self.store.write(self._changes, positions)
        self._changes.clear()
