"""Results in tests: rows of the database, and records that steps have published."""

from collections.abc import Generator
from typing import Any, NamedTuple, Self, TypeVar

T = TypeVar("T")


class Published(NamedTuple):
    """A record that a step has published."""

    topic: str
    key: str | None
    value: Any


class Listed(list[T]):
    """A list that may also be awaited, like the corresponding results outside of tests."""

    def __await__(self) -> Generator[None, None, Self]:
        """Return the list."""
        yield from ()
        return self
