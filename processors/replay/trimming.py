"""Loops forget old iterations, so that a history stays short.

Iterations can be run again only from a state that is known: to roll back what is kept, or to retry
from it. If none is known where that begins, because a replay began behind it, iterations before it
stay from the latest known state on. Nobody sees them, and nothing of them is rolled back.
"""

from typing import Final

from headwater.processors.replay.entry_keys import keys_of_iterations
from headwater.processors.replay.state import Entry
from headwater.schemas.statuses import EntryStatus

#: Only results lead from one state to the next.
_RESULTS: Final = frozenset({EntryStatus.COMPLETED, EntryStatus.ERRORED})


def trim(entries: dict[str, Entry], key: str, before: int) -> list[str]:
    """Forgets a loop's iterations before one, in place, and names their entries."""
    loop = entries[key]
    earliest = max((number for number in loop.commits if number <= before), default=0)
    for number in [number for number in loop.commits if number < earliest]:
        del loop.commits[number]
    loop.trimmed = max(loop.trimmed, before)
    gone = [(each, number) for each, number in keys_of_iterations(entries, key) if number < before]
    for each, number in gone:
        if number < earliest or entries[each].status not in _RESULTS:
            del entries[each]
        else:
            entries[each].rollback = False
    return [each for each, _ in gone]


def trimmed(entries: dict[str, Entry]) -> set[str]:
    """The keys of entries that are only there to run others again."""
    return {
        each
        for key, loop in entries.items()
        if loop.trimmed
        for each, number in keys_of_iterations(entries, key)
        if number < loop.trimmed
    }
