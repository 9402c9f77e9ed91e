"""Time and chance for users' code that is no workflow: given to it, so that a test decides them."""

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random  # noqa: TID251, for tests, from their seed
from secrets import randbits
from typing import Self
from uuid import UUID


def _drawn(bits: int) -> int:
    # A function, because the web framework copies what its guards hold, and nobody can copy chance.
    return randbits(bits)


class Runtime:
    """Time and chance: what was decided with the same ones is decided so again."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        draw_bits: Callable[[int], int] = _drawn,
    ) -> None:
        """Makes one of a clock, Unix milliseconds, and a source of so many random bits."""
        self._now_ms = now_ms
        self._draw_bits = draw_bits

    @classmethod
    def seeded(cls, seed: int = 0, at: str = "2026-01-01T00:00:00Z") -> Self:
        """One for a test: its clock stands still, and the same seed draws the same."""
        moment = round(datetime.fromisoformat(at).timestamp() * 1_000)
        return cls(lambda: moment, Random(seed).getrandbits)  # noqa: S311, no secrets

    def now(self) -> datetime:
        """The time, as an aware datetime."""
        return datetime.fromtimestamp(self._now_ms() / 1_000, UTC)

    def random(self) -> float:
        """A number from 0 on, below 1."""
        return self._draw_bits(53) / 2**53

    def uuid(self) -> str:
        """A random UUID (version 4)."""
        return str(UUID(int=self._draw_bits(128), version=4))
