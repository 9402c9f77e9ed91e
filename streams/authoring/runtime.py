"""Clock and random numbers for users' code outside of workflows, injected so tests control them."""

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random  # noqa: TID251, for tests, from their seed
from secrets import randbits
from typing import Self
from uuid import UUID


def _drawn(bits: int) -> int:
    # A function, because the web framework deep-copies guards, and SystemRandom cannot be copied.
    return randbits(bits)


class Runtime:
    """Clock and random numbers."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        draw_bits: Callable[[int], int] = _drawn,
    ) -> None:
        """Create a runtime.

        Args:
            now_ms: Returns the current time in Unix milliseconds.
            draw_bits: Returns an integer of this many random bits.
        """
        self._now_ms = now_ms
        self._draw_bits = draw_bits

    @classmethod
    def seeded(cls, seed: int = 0, at: str = "2026-01-01T00:00:00Z") -> Self:
        """Return a deterministic runtime for tests: its clock does not advance."""
        moment = round(datetime.fromisoformat(at).timestamp() * 1_000)
        return cls(lambda: moment, Random(seed).getrandbits)  # noqa: S311, no secrets

    def now(self) -> datetime:
        """Return the current time as an aware datetime."""
        return datetime.fromtimestamp(self._now_ms() / 1_000, UTC)

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return self._draw_bits(53) / 2**53

    def uuid(self) -> str:
        """Return a random UUID (version 4)."""
        return str(UUID(int=self._draw_bits(128), version=4))
