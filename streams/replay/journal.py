"""What is recorded of a run, and what of it the code has visited since it began."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from headwater.processors.replay.entry_keys import (
    keys_at_or_under,
    keys_of_iterations,
    keys_under,
)
from headwater.processors.replay.errors import TooManyEntriesError
from headwater.processors.replay.state import Entry
from headwater.processors.runs.limits import key_problem, too_many_entries
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus


class Journal:
    """The entries of a run.

    Args:
        entries: The entries that are recorded, by key.
        entries_max: How many the run may have.
        ordinals: Ordinals of entries that are not recorded and have a place among all, because an
            earlier run has reached them.
        first_ordinal: That of the first entry without such a place.

    Attributes:
        finished: Keys of the joins, races and loops whose code has run to its end since the
            beginning: the same name again gives the same result, and runs nothing.
    """

    def __init__(
        self,
        entries: dict[str, Entry],
        entries_max: int,
        ordinals: Mapping[str, int],
        first_ordinal: int,
    ) -> None:
        self.entries = entries
        self._ordinals = ordinals
        self._entries_max = entries_max
        self.visited: set[str] = set()
        self.finished: set[str] = set()
        #: What the code no longer waits for, though it once did (see `Scope.give_up`).
        self.given_up: set[str] = set()
        #: The place of the next new entry among all, in the order in which they are first reached.
        self.ordinal = first_ordinal
        self._passed_over: set[str] = set()
        #: The first entry that the code has come to and of which nothing was recorded.
        self.first_new: str | None = None

    def visit(self, key: str, entry: Entry | None, *, or_removed: bool = False) -> None:
        """Notes that the code has come to an entry, or to where one was that is removed."""
        self.visited.add(key)
        if entry is not None:
            self.ordinal = max(self.ordinal, entry.ordinal + 1)
        elif not or_removed:
            self.first_new = self.first_new or key

    def new_ordinal(self, key: str) -> int:
        """Return the place of an entry that this run reaches for the first time."""
        known = self._ordinals.get(key)
        if known is not None:
            return known
        self.ordinal += 1
        return self.ordinal - 1

    def make_room(self, key: str, kind: EntryKind) -> None:
        """Checks that the run may have one more entry.

        Errors: TooManyEntriesError; sleeps do not count. ValueError for a key that is too long.
        """
        fault = key_problem(key)
        if fault:
            raise ValueError(fault)
        if len(self.entries) >= self._entries_max and kind is not EntryKind.SLEEP:
            counted = sum(entry.kind is not EntryKind.SLEEP for entry in self.entries.values())
            if counted >= self._entries_max:
                raise TooManyEntriesError(too_many_entries(key, self._entries_max))

    def open(self, key: str, name: str, kind: EntryKind) -> int:
        """Adds an entry that the owner is about to record; gives its place among all."""
        ordinal = self.new_ordinal(key)
        self.entries[key] = Entry(
            name=name,
            kind=kind,
            status=EntryStatus.PENDING,
            ordinal=ordinal,
            created_at_ms=0,
            updated_at_ms=0,
        )
        return ordinal

    def cancel(self, scopes: Collection[str]) -> None:
        """Notes that the owner cancels what is open at some keys and beneath them."""
        for key in keys_at_or_under(self.entries, scopes):
            entry = self.entries[key]
            if entry.status in OPEN:
                entry.status = EntryStatus.CANCELLED

    # -- what is not visited

    def unvisited(self, scope: str = "") -> Iterator[str]:
        """Keys beneath a scope that the code has not come to, though it might have."""
        for key in keys_under(self.entries, scope):
            if key not in self.visited and key not in self._passed_over:
                yield key

    def pass_over(self, key: str) -> None:
        """Notes that the code will visit nothing beneath a key."""
        self._pass_over(list(keys_under(self.entries, key)))

    def pass_over_iterations(self, key: str, before: int) -> None:
        """Notes that a loop begins at a later iteration.

        A replay comes to that at once, and to much that was reached before it only later: what is
        new there comes behind all that is recorded.
        """
        if before:
            iterations = keys_of_iterations(self.entries, key)
            self._pass_over([each for each, number in iterations if number < before])
            ordinals = (entry.ordinal for entry in self.entries.values())
            self.ordinal = max(self.ordinal, *(each + 1 for each in ordinals))

    def _pass_over(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._passed_over.add(key)
            # What is new comes after what is passed over, too.
            self.ordinal = max(self.ordinal, self.entries[key].ordinal + 1)

    def last_iteration(self, key: str) -> int:
        """The latest iteration of a loop of which something is recorded."""
        return max((number for _, number in keys_of_iterations(self.entries, key)), default=0)
