"""State of a code workflow's run: its entries, the grammar of their keys, and their trimming.

An entry is a recorded call of `step.<something>`. Its key is the path of names that leads to it:

    key   = part *("/" part)
    part  = name | "~" number

A name is the author's, with `/` written as `%2F`; a `%` before `2F` or `25` is written as `%25`, so
that every name has one spelling and no two names share one. `~n` is iteration n of the loop before
it, counted from 0. So `pages/~3/fetch` is the entry "fetch" in iteration 3 of the loop "pages".

A scope contains entries: the workflow itself (the empty scope), a branch of a join or a race
(`fetch/user`), or an iteration of a loop (`pages/~3`). Only the kind of the entry above decides
whether a part that looks like an iteration is one: a branch may be named `~3` as well.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from headwater.processors.runs.state import BEGINNING, UNRESOLVED, Entry, Run
from headwater.schemas.history import Failure
from headwater.schemas.statuses import EntryKind, EntryStatus

__all__ = [
    "BEGINNING",
    "CONTAINERS",
    "UNRESOLVED",
    "Cancelling",
    "CodeRun",
    "Entry",
    "entry_key",
    "escaped",
    "iteration_of",
    "iteration_scope",
    "keys_at_or_under",
    "keys_of_iterations",
    "keys_under",
    "scopes_above",
    "trim",
    "trimmed",
]

_SEPARATOR: Final = "/"
_ITERATION: Final = "~"
#: A `%` that would be read as the start of an escape.
_AMBIGUOUS: Final = re.compile("%(?=2F|25)")
#: Digits of an iteration that also fit Postgres's bigint.
_DIGITS_MAX: Final = 18


def escaped(name: str) -> str:
    """Return a name as one part of a key."""
    if "/" not in name and "%" not in name:
        return name
    return _AMBIGUOUS.sub("%25", name).replace(_SEPARATOR, "%2F")


def entry_key(scope: str, name: str) -> str:
    """Return the key of a name in a scope; it is also the scope of a branch of that name."""
    return f"{scope}{_SEPARATOR}{escaped(name)}" if scope else escaped(name)


def iteration_scope(loop: str, number: int) -> str:
    """Return the scope of an iteration of a loop."""
    return f"{loop}{_SEPARATOR}{_ITERATION}{number}"


def iteration_of(part: str) -> int | None:
    """Return the number of a key part that looks like an iteration, or None."""
    digits = part[1:]
    if part[:1] != _ITERATION or len(digits) > _DIGITS_MAX:
        return None
    return int(digits) if digits.isascii() and digits.isdigit() else None


def scopes_above(key: str) -> Iterator[tuple[str, str]]:
    """Yield the scopes that contain a key, outermost first, with the part of the key after them."""
    parts = key.split(_SEPARATOR)
    for depth in range(1, len(parts)):
        yield _SEPARATOR.join(parts[:depth]), parts[depth]


def keys_under(keys: Iterable[str], scope: str) -> Iterator[str]:
    """Yield the keys under a scope; all keys are under the empty scope."""
    prefix = f"{scope}{_SEPARATOR}" if scope else ""
    return (key for key in keys if key.startswith(prefix))


def keys_at_or_under(keys: Iterable[str], scopes: Collection[str]) -> list[str]:
    """Return the keys that are one of the scopes or under one."""
    prefixes = tuple(f"{scope}{_SEPARATOR}" for scope in scopes)
    return [key for key in keys if key in scopes or key.startswith(prefixes)]


def keys_of_iterations(keys: Iterable[str], loop: str) -> Iterator[tuple[str, int]]:
    """Yield the keys that are in iterations of a loop, with the numbers of the iterations."""
    prefix = f"{loop}{_SEPARATOR}{_ITERATION}"
    for key in keys:
        if key.startswith(prefix):
            part, separator, _ = key[len(loop) + 1 :].partition(_SEPARATOR)
            number = iteration_of(part)
            if separator and number is not None:
                yield key, number


# -- state

#: Kinds that contain other entries. Their keys begin with the key of the container.
CONTAINERS = frozenset({EntryKind.JOIN, EntryKind.RACE, EntryKind.LOOP})


class Cancelling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Cancellation of a run: the sequence of its event, the reason, and the end of the cleanup."""

    sequence: int
    reason: str
    until_ms: int


class CodeRun(Run, kw_only=True):
    """A run of a code workflow.

    Attributes:
        entries: Entries that the code has reached, by key.
        open: Keys of the entries without a result, in the order of opening.
        resolved: Sequence of the latest event that the code has to see.
        retried: Sequence of the latest event that started attempts.
        rollback: Why the run is being rolled back.
        hosts_lost: How often in a row its code crashed its host process.
        back_at_ms: When it is retried after that.
        cancelling: Its cancellation, if it was canceled.
        logged_at: Sequence of the latest event that its code had seen when it last logged.
        lines: Number of lines that it has logged since that event.
        logged_once: Names of the one-time warnings that were written.
        left: Keys of the entries that were open when the code ended.
        ordinals: Ordinals in the previous run of entries that a retry executes again.
        first_ordinal: Ordinal of the first entry that the previous run does not have.
    """

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    open: dict[str, None] = msgspec.field(default_factory=dict)
    resolved: int = 0
    retried: int = 0
    rollback: Failure | None = None
    hosts_lost: int = 0
    back_at_ms: int = 0
    logged_at: int = BEGINNING
    lines: int = 0
    cancelling: Cancelling | None = None
    logged_once: dict[str, None] = msgspec.field(default_factory=dict)
    left: dict[str, None] = msgspec.field(default_factory=dict)
    ordinals: dict[str, int] = msgspec.field(default_factory=dict)
    first_ordinal: int = 0


# -- trimming

#: Only entries with results lead from one state to the next.
_RESULTS: Final = frozenset({EntryStatus.COMPLETED, EntryStatus.ERRORED})


def trim(entries: dict[str, Entry], key: str, before: int) -> list[str]:
    """Drop a loop's iterations before one, in place, and return the keys of their entries.

    Iterations can only be repeated from a known state: to roll back kept iterations, or to retry
    from them. If no state is known at that iteration, because a replay started after it, older
    iterations are kept from the latest known state on. They are not shown and not rolled back.
    """
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
