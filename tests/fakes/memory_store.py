"""A store in memory: what `StateStore` is, for tests that open many."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from headwater.streams.kafka.state_store import Changes, Family


class MemoryStore:
    def __init__(self) -> None:
        self._values: defaultdict[Family, dict[bytes, bytes]] = defaultdict(dict)
        self._positions: dict[str, int] = {}

    def positions(self) -> dict[str, int]:
        return dict(self._positions)

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._values[family].get(key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._values[family].get(key) for key in keys]

    def scan(
        self, family: Family, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        result = sorted(
            value for value in self._values[family].items() if value[0].startswith(prefix)
        )
        return [item for item in result if after is None or item[0] > after][:limit]

    def families(self) -> list[Family]:
        return [family for family, values in self._values.items() if values]

    def write(self, changes: Changes, positions: Mapping[str, int]) -> None:
        for family, values in changes.items():
            for key, value in values.items():
                if value is None:
                    self._values[family].pop(key, None)
                else:
                    self._values[family][key] = value
        self._positions.update(positions)

    def drop(self, family: Family) -> None:
        self._values.pop(family, None)

    def clear(self) -> None:
        self._values.clear()
        self._positions.clear()

    def purge(self, family: Family, prefixes: Iterable[bytes] = (b"",)) -> None:
        """What is deleted here, is gone."""

    def close(self) -> None:
        """Nobody else waits for it."""
