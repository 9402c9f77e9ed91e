"""Which log lines of a run were logged before, by an execution that its code replays."""

from collections.abc import Iterable

from headwater.processors.replay.state import BEGINNING, UNRESOLVED, Entry
from headwater.schemas.statuses import EntryStatus


class LoggedLines:
    """How far the code had come when it logged last, and how far it is now.

    How far it is says the latest event that it has seen. What it logs before it has seen the one
    that it had seen then was logged before, what it logs later is new, and so many lines between.

    A loop begins at its latest commit, so its code is further from the beginning than the code
    beside it, which comes there with the results. How far is what the scopes in it say.

    Shape:  `seen` is the latest event that the code has seen.
    """

    def __init__(self, entries: Iterable[Entry], logged_at: int, lines: int) -> None:
        # A run that was retried has the lines of the one before up to the last result that it kept.
        kept = max(
            (
                each.sequence
                for each in entries
                if each.sequence < UNRESOLVED and each.status is not EntryStatus.CANCELLED
            ),
            default=BEGINNING,
        )
        self.seen = BEGINNING
        self._logged_at = max(kept, logged_at)
        self._left = lines if logged_at >= kept else 0

    def see(self, sequence: int) -> None:
        """The code sees an event, perhaps one of long ago: the result of an entry, once more."""
        self.seen = max(self.seen, sequence)

    def next_is_new(self, since: int) -> int | None:
        """Looks at a line of code that has begun somewhere: what it has seen, if it is new."""
        seen = max(self.seen, since)
        if seen < self._logged_at:
            return None
        if seen == self._logged_at and self._left:
            self._left -= 1
            return None
        return seen
