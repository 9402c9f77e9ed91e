"""State of an instance that counts the slots of a limit: holders and waiting runs."""

from typing import Final

import msgspec
from typing_extensions import override

from headwater.processors.runs.state import Run

#: Maximum runs that wait for slots of one limit.
WAITING_MAX: Final = 100_000


class SlotsRun(Run, kw_only=True):
    """The slots of a limit.

    Slots are granted in order of arrival, so all numbers below `first` hold one.

    Attributes:
        limit: Number of slots; None is unlimited.
        tickets: Tickets of all holders and waiting runs, by number of arrival.
        places: Numbers of arrival by ticket.
        first: Number of the first run without a slot.
        arrived: Number of the next arrival.
        waiting: Number of runs that wait.
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
        """Whether no run holds a slot or waits for one: the instance may be deleted."""
        return not self.tickets

    @property
    def held(self) -> int:
        """Number of runs that hold a slot."""
        return len(self.tickets) - self.waiting
