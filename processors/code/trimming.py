"""Drop old iterations of loops, so that histories stay short.

Iterations can only be repeated from a known state: to roll back kept iterations, or to retry from
them. If no state is known at that iteration, because a replay started after it, older iterations
are kept from the latest known state on. They are not shown and not rolled back.
"""

from typing import Final

from headwater.processors.code.entry_keys import keys_of_iterations
from headwater.processors.code.state import Entry
from headwater.schemas.statuses import EntryStatus

#: Only entries with results lead from one state to the next.
_RESULTS: Final = frozenset({EntryStatus.COMPLETED, EntryStatus.ERRORED})


def trim(entries: dict[str, Entry], key: str, before: int) -> list[str]:
    """Drop a loop's iterations before one, in place, and return the keys of their entries."""
    loop = entries[key]
    earliest = max((number for number in loop.commits if number <= before), default=0)
    for number in [number for number in loop.commits if number < earliest]:
        del loop.commits[number]
    loop.trimmed = max(loop.trimmed, before)
    dropped = [
        (entry, number) for entry, number in keys_of_iterations(entries, key) if number < before
    ]
    for entry, number in dropped:
        if number < earliest or entries[entry].status not in _RESULTS:
            del entries[entry]
        else:
            entries[entry].rollback = False
    return [entry for entry, _ in dropped]


def trimmed(entries: dict[str, Entry]) -> set[str]:
    """Return the keys of entries that are kept only to repeat other entries."""
    return {
        entry
        for key, loop in entries.items()
        if loop.trimmed
        for entry, number in keys_of_iterations(entries, key)
        if number < loop.trimmed
    }
