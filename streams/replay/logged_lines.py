"""Tells log lines that are new from lines that a replay repeats."""

from collections.abc import Iterable

from headwater.processors.code.state import BEGINNING, UNRESOLVED, Entry
from headwater.schemas.statuses import EntryStatus


class LoggedLines:
    """How far the code had come when it logged last, and how far it is now.

    Progress is measured by the latest event that the code has seen. Lines logged before the code
    reaches its former progress are repeated, lines logged after it are new. At exactly the same
    progress, a known number of lines are repeated.

    A loop resumes at its latest commit, so its code is ahead of concurrent code, which catches up
    as results are delivered. The scopes within the loop state their progress.

    Attributes:
        seen: Sequence of the latest event that the code has seen.
    """

    def __init__(self, entries: Iterable[Entry], logged_at: int, lines: int) -> None:
        # A retried run keeps the lines of the run before it up to the last result that it kept.
        kept_until = max(
            (
                entry.sequence
                for entry in entries
                if entry.sequence < UNRESOLVED and entry.status is not EntryStatus.CANCELLED
            ),
            default=BEGINNING,
        )
        self.seen = BEGINNING
        self._logged_at = max(kept_until, logged_at)
        self._repeats_left = lines if logged_at >= kept_until else 0

    def see(self, sequence: int) -> None:
        """Record an event that the code sees. During a replay it may be an old one."""
        self.seen = max(self.seen, sequence)

    def next_is_new(self, since: int) -> int | None:
        """Return the progress of the code if its next line is new, else None.

        Args:
            since: Progress at which the code of the line's scope begins.
        """
        seen = max(self.seen, since)
        if seen < self._logged_at:
            return None
        if seen == self._logged_at and self._repeats_left:
            self._repeats_left -= 1
            return None
        return seen
