"""Rolling back: the handlers of completed steps, from the last one to the first.

The author's code is replayed first, with nothing new asked for: what has no result stays without.
When all rests, every handler that belongs to a completed step is known.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headwater.processors.replay.commands import Raise, RollbackRaised, RolledBack
from headwater.processors.replay.state import Entry, EntryStatus
from headwater.schemas.history import Failure
from headwater.streams.authoring.values import decode
from headwater.streams.replay.host_port import failure_of

if TYPE_CHECKING:
    from headwater.streams.replay.activation import Activation


def to_roll_back(entries: Mapping[str, Entry]) -> list[str]:
    """The steps whose handlers have not run yet, in the order of completion."""
    done = [
        (entry.sequence, key)
        for key, entry in entries.items()
        if entry.rollback and entry.status is EntryStatus.COMPLETED and not entry.rolled_back
    ]
    return [key for _, key in sorted(done)]


class Rollback:
    """The rollback of a run in hand."""

    def __init__(self, run: "Activation", failure: Failure) -> None:
        self._run = run
        self._failure = failure
        self._left: list[str] | None = None

    def rests(self) -> None:
        """All handlers are known: begins with the last, if it has not begun yet."""
        if self._left is None:
            self._left = to_roll_back(self._run.entries)
            self._next()

    def again(self, key: str) -> None:
        """Tries a handler again that has failed."""
        if self._is_next(key):
            self._call(key)

    def ended(self, key: str, error: BaseException | None) -> None:
        """A handler is through."""
        say = self._run.outside.say
        if error is None:
            say(self._run, RolledBack(key))
        else:
            say(self._run, RollbackRaised(key, failure_of(error)))

    def done(self, key: str) -> None:
        """That an entry is rolled back is durable."""
        if self._left and self._is_next(key):
            self._left.pop()
            self._next()

    def _is_next(self, key: str) -> bool:
        return bool(self._left and self._left[-1] == key)

    def _next(self) -> None:
        run = self._run
        if not self._left:
            run.outside.say(run, Raise(self._failure))
            run.close()
        elif not run.entries[self._left[-1]].rollback_at_ms:
            self._call(self._left[-1])
        # Otherwise it has failed before: the owner says when it is tried again.

    def _call(self, key: str) -> None:
        run = self._run
        handler: Callable[[Any], Any] = run.handlers.get(key, _gone)
        output = decode(run.entries[key].result or "null")
        run.outside.call_handler(run, key, handler, output)


def _gone(_: object) -> None:
    """Stands for a handler that the code no longer has."""
