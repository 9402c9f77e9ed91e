"""Which log lines of a run were logged before, by the execution that is being replayed."""

from collections.abc import Iterable

from headwater.processors.replay.state import UNRESOLVED, Entry
from headwater.schemas.statuses import EntryStatus


class LoggedLines:
    """How far the code had come when it logged last, and how far it is now.

    Until the code has come that far, every line was logged before. Where that is ends with the
    latest result that it had then, or else when the code rests first. Then come the lines that were
    logged after that result, which are only counted.

    A loop begins at its latest commit, so its code is further from the beginning than the code
    beside it, which comes there with the results. How far is what the scopes in it say.
    """

    def __init__(
        self, entries: Iterable[Entry], cancelled_at: int | None, logged_at: int, lines: int
    ) -> None:
        # What was cancelled is never given. A loop that is open has the sequence of its commit.
        resolved = [
            each.sequence
            for each in entries
            if each.status is not EntryStatus.CANCELLED
            and each.sequence != UNRESOLVED
            and each.sequence <= logged_at
        ]
        if cancelled_at is not None and cancelled_at <= logged_at:
            resolved.append(cancelled_at)
        self._logged_at = logged_at
        self._replay_until = max(resolved, default=0)
        self._replaying = bool(resolved)
        self._left = lines

    def reach(self, sequence: int) -> None:
        """The code has come to where an entry was resolved."""
        if sequence >= self._replay_until:
            self._replaying = False
        if sequence > self._logged_at:
            # Lines that were logged before belong to iterations that do not run again.
            self._left = 0

    def rest(self) -> None:
        """The code rests: what it logs from now on is new."""
        self._replaying = False
        self._left = 0

    def next_is_logged(self, since: int) -> bool:
        """Whether the line was logged before that code is about to log which began at a place."""
        if since > self._logged_at:
            return False
        if self._replaying and since < self._replay_until:
            return True
        if not self._left:
            return False
        self._left -= 1
        return True
