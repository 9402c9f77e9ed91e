"""What a test lists: rows of its database, and the records that steps have published."""

from collections.abc import Generator
from typing import Any, NamedTuple, Self, TypeVar

T = TypeVar("T")


class Published(NamedTuple):
    """A record that a step has published."""

    topic: str
    key: str | None
    value: Any


class Listed(list[T]):
    """A list that may be awaited too, as its like is outside of tests."""

    def __await__(self) -> Generator[None, None, Self]:
        """Gives itself."""
        yield from ()
        return self
