"""The grammar of entry keys: the path of names that leads to an entry in the author's code.

    key   = part *("/" part)
    part  = name | "~" number

A name is the author's, with `/` written as `%2F`; a `%` before `2F` or `25` is written as `%25`, so
that every name has one spelling and no two names share one. `~n` is iteration n of the loop
before it, counted from 0. So `pages/~3/fetch` is the entry "fetch" in iteration 3 of the loop
"pages". A scope contains entries: the workflow itself (the empty scope), a branch of a join
or a race (`fetch/user`), or an iteration of a loop (`pages/~3`).

Only the kind of the entry above decides whether a part that looks like an iteration is one: a
branch may be named `~3` as well.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

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
    """Yield the scopes that contain a key, outermost first, each with the key part after it."""
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
    """Yield the keys that are in iterations of a loop, each with the iteration's number."""
    prefix = f"{loop}{_SEPARATOR}{_ITERATION}"
    for key in keys:
        if key.startswith(prefix):
            part, separator, _ = key[len(loop) + 1 :].partition(_SEPARATOR)
            number = iteration_of(part)
            if separator and number is not None:
                yield key, number
