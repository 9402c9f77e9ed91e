"""What is recorded of a run, and what of it the code has visited since its beginning."""

from collections.abc import Collection, Iterable, Iterator

from headwater.processors.replay.errors import TooManyEntriesError
from headwater.processors.replay.state import OPEN, Entry, EntryStatus
from headwater.processors.runs.limits import key_fault, too_many_entries
from headwater.schemas.history import EntryKind


class Record:
    """The entries of a run in hand.

    Shape:  `through` has the joins, races and loops whose code has run to their end since the
            beginning: the same name again gives the same result, and runs nothing.
    """

    def __init__(self, entries: dict[str, Entry], entries_max: int) -> None:
        self.entries = entries
        self._entries_max = entries_max
        self.visited: set[str] = set()
        self.through: set[str] = set()
        #: What the code no longer waits for, though it once asked for it (see `giving_up.py`).
        self.given_up: set[str] = set()
        #: The place of the next new entry among all, in the order in which they are first reached.
        self.ordinal = 0
        self._passed_over: set[str] = set()

    def visit(self, key: str, entry: Entry | None) -> None:
        """Takes note that the code has come to an entry."""
        self.visited.add(key)
        if entry is not None:
            self.ordinal = max(self.ordinal, entry.ordinal + 1)

    def new_ordinal(self) -> int:
        """The place of an entry that is reached for the first time."""
        self.ordinal += 1
        return self.ordinal - 1

    def make_room(self, key: str, kind: EntryKind) -> None:
        """Sees that the run may have one more entry.

        Errors: TooManyEntriesError; sleeps do not count. ValueError for a key that is too long.
        """
        fault = key_fault(key)
        if fault:
            raise ValueError(fault)
        if len(self.entries) >= self._entries_max and kind is not EntryKind.SLEEP:
            counted = sum(entry.kind is not EntryKind.SLEEP for entry in self.entries.values())
            if counted >= self._entries_max:
                raise TooManyEntriesError(too_many_entries(key, self._entries_max))

    def opened(self, key: str, name: str, kind: EntryKind, ordinal: int) -> None:
        """Takes note of an entry that the owner is being told of."""
        self.entries[key] = Entry(
            name=name,
            kind=kind,
            status=EntryStatus.PENDING,
            ordinal=ordinal,
            created_at_ms=0,
            updated_at_ms=0,
        )

    def cancel_beneath(self, scopes: Collection[str]) -> None:
        """Takes note that the owner cancels what is open in some branches, or some entries."""
        prefixes = tuple(f"{scope}/" for scope in scopes)
        for key, entry in self.entries.items():
            if entry.status in OPEN and (key in scopes or key.startswith(prefixes)):
                entry.status = EntryStatus.CANCELLED

    # -- what is not visited

    def unvisited(self, scope: str = "") -> Iterator[str]:
        """Keys beneath a scope that the code has not come to, though it might have."""
        prefix = f"{scope}/" if scope else ""
        for key in self.entries:
            if key.startswith(prefix) and key not in self.visited and key not in self._passed_over:
                yield key

    def pass_over(self, key: str) -> None:
        """Takes note that the code means to visit nothing beneath a key."""
        self._pass_over([each for each in self.entries if each.startswith(f"{key}/")])

    def pass_over_iterations(self, key: str, before: int) -> None:
        """Takes note that a loop begins at a later iteration."""
        if before:
            self._pass_over([each for each, number in self._iterations(key) if number < before])

    def _pass_over(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._passed_over.add(key)
            # What is new comes after what is passed over, too.
            self.ordinal = max(self.ordinal, self.entries[key].ordinal + 1)

    # -- iterations

    def last_iteration(self, key: str) -> int:
        """The latest iteration of a loop of which something is recorded."""
        return max((number for _, number in self._iterations(key)), default=0)

    def _iterations(self, key: str) -> Iterator[tuple[str, int]]:
        prefix = f"{key}/~"
        for each in self.entries:
            if each.startswith(prefix):
                yield each, int(each[len(prefix) :].split("/", 1)[0])
