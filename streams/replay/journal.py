"""The recorded entries of a run, and which of them the code has visited."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from headwater.processors.code.errors import TooManyEntriesError
from headwater.processors.code.state import Entry, keys_at_or_under, keys_of_iterations, keys_under
from headwater.processors.runs.limits import key_problem, too_many_entries
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus


class Journal:
    """The entries of a run.

    Args:
        entries: Recorded entries by key.
        entries_max: Largest number of entries.
        ordinals: Ordinals of entries that are not recorded in this run but were reached by an
            earlier one.
        first_ordinal: Ordinal of the first entry that is not in `ordinals`.

    Attributes:
        finished: Keys of joins, races and loops with code that has run to its end. Another call
            with the same name returns the same result and runs nothing.
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
        #: Entries that the code no longer waits for, see `Scope.abandon`.
        self.abandoned: set[str] = set()
        #: Ordinal of the next new entry, in the order in which entries are first reached.
        self.ordinal = first_ordinal
        self._skipped: set[str] = set()
        #: First entry that the code has reached and that was not recorded.
        self.first_new: str | None = None

    def visit(self, key: str, entry: Entry | None, *, or_removed: bool = False) -> None:
        """Record that the code has reached an entry, or the location of a removed one."""
        self.visited.add(key)
        if entry is not None:
            self.ordinal = max(self.ordinal, entry.ordinal + 1)
        elif not or_removed:
            self.first_new = self.first_new or key

    def new_ordinal(self, key: str) -> int:
        """Return the ordinal of an entry that this run reaches for the first time."""
        known = self._ordinals.get(key)
        if known is not None:
            return known
        self.ordinal += 1
        return self.ordinal - 1

    def check_capacity(self, key: str, kind: EntryKind) -> None:
        """Check that the run may have another entry.

        Raises:
            TooManyEntriesError: It has too many. Sleeps do not count.
            ValueError: The key is too long.
        """
        problem = key_problem(key)
        if problem:
            raise ValueError(problem)
        if len(self.entries) >= self._entries_max and kind is not EntryKind.SLEEP:
            counted = sum(entry.kind is not EntryKind.SLEEP for entry in self.entries.values())
            if counted >= self._entries_max:
                raise TooManyEntriesError(too_many_entries(key, self._entries_max))

    def open(self, key: str, name: str, kind: EntryKind) -> int:
        """Add an entry that the owner is about to record. Return its ordinal."""
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
        """Mark open entries at some keys and below them as cancelled, as the owner does."""
        for key in keys_at_or_under(self.entries, scopes):
            entry = self.entries[key]
            if entry.status in OPEN:
                entry.status = EntryStatus.CANCELLED

    # -- entries that are not visited

    def unvisited(self, scope: str = "") -> Iterator[str]:
        """Yield keys below a scope that the code has not reached, although it could have."""
        for key in keys_under(self.entries, scope):
            if key not in self.visited and key not in self._skipped:
                yield key

    def skip(self, key: str) -> None:
        """Record that the code will visit nothing below a key."""
        self._skip(list(keys_under(self.entries, key)))

    def skip_iterations(self, key: str, before: int) -> None:
        """Record that a loop begins at a later iteration.

        A replay reaches that iteration before much that originally came first. New entries in it
        are therefore ordered after all recorded ones.
        """
        if before:
            iterations = keys_of_iterations(self.entries, key)
            self._skip([entry_key for entry_key, number in iterations if number < before])
            ordinals = (entry.ordinal for entry in self.entries.values())
            self.ordinal = max(self.ordinal, *(ordinal + 1 for ordinal in ordinals))

    def _skip(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._skipped.add(key)
            # New entries come after skipped ones, too.
            self.ordinal = max(self.ordinal, self.entries[key].ordinal + 1)

    def last_iteration(self, key: str) -> int:
        """Return the latest iteration of a loop with a recorded entry."""
        return max((number for _, number in keys_of_iterations(self.entries, key)), default=0)
