"""The state of an instance that counts the slots of a limit: who has one, and who waits for one."""

from typing import Final

import msgspec
from typing_extensions import override

from headwater.processors.runs.state import Run

#: Runs that may wait for the slots of one limit.
WAITING_MAX: Final = 100_000


class SlotsRun(Run, kw_only=True):
    """The slots of a limit.

    Shape:  tickets are those of all who have a slot or wait for one, by the numbers of their
            places, which count arrivals; places the other way round. Whoever came first has a slot
            first, so all below `first` have one, and `waiting` of the others wait. `arrived` is the
            next number. Without a limit there are slots for all.
    """

    limit: int | None = None
    tickets: dict[int, str] = msgspec.field(default_factory=dict)
    places: dict[str, int] = msgspec.field(default_factory=dict)
    first: int = 0
    arrived: int = 0
    waiting: int = 0

    @property
    @override
    def is_forgotten(self) -> bool:
        """Nobody has a slot or waits for one: the next who asks finds all as it is now."""
        return not self.tickets

    @property
    def held(self) -> int:
        """How many have a slot."""
        return len(self.tickets) - self.waiting
