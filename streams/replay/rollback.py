"""Rollback: the handlers of completed steps run from the last one to the first.

The author's code is replayed first, without starting anything new: entries without a result stay
pending. When it rests, every handler that belongs to a completed step is known.
"""

from collections.abc import Mapping
from typing import Final

from headwater.processors.code.commands import RolledBack
from headwater.processors.code.rolling_back import is_to_roll_back
from headwater.processors.code.state import Entry
from headwater.processors.runs.requests import RollbackRaised
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.result_types import result_of_step
from headwater.streams.replay.host_port import Handler, HostPort


def to_roll_back(entries: Mapping[str, Entry]) -> list[str]:
    """Return the steps whose handlers have not run yet, in the order of completion."""
    done = [(entry.sequence, key) for key, entry in entries.items() if is_to_roll_back(entry)]
    return [key for _, key in sorted(done)]


class Rollback:
    """The rollback of a run.

    Args:
        entries: Entries of the run, by key.
        handlers: Handlers by key. The replay adds to them; they are read when one runs.
        host: Host of the run.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        handlers: Mapping[str, Handler],
        host: HostPort,
    ) -> None:
        self._entries = entries
        self._handlers = handlers
        self._host = host
        #: Keys of the entries to roll back, the next one last; None until the code rests.
        self._pending: list[str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether everything is rolled back."""
        return self._pending is not None and not self._pending

    def begin(self) -> None:
        """Start with the last handler, unless started before. All handlers must be known."""
        if self._pending is None:
            self._pending = to_roll_back(self._entries)
            self._call_next()

    def retry(self, key: str, attempt: int) -> None:
        """Call a handler that has failed again."""
        self._entries[key].rollback_attempts = attempt - 1
        if self._is_next(key):
            self._call(key)

    def handler_ended(self, key: str, error: BaseException | None) -> None:
        """Handle a handler that has returned or raised."""
        if error is None:
            self._host.send(RolledBack(key))
        else:
            attempt = self._entries[key].rollback_attempts + 1
            self._host.send(RollbackRaised(key, attempt, failure_of(error)))

    def handled(self, key: str) -> None:
        """Record that the rollback of an entry is durable, or its handler has finally failed."""
        if self._pending and self._is_next(key):
            self._pending.pop()
            self._call_next()

    def _is_next(self, key: str) -> bool:
        return bool(self._pending and self._pending[-1] == key)

    def _call_next(self) -> None:
        # The owner decides when a failed handler is called again.
        if self._pending and not self._entries[self._pending[-1]].rollback_at_ms:
            self._call(self._pending[-1])

    def _call(self, key: str) -> None:
        entry = self._entries[key]
        handler = self._handlers.get(key, _NO_LONGER_IN_THE_CODE)
        try:
            output = result_of_step(entry.name, entry.result, handler.declared)
        except TypeError as error:
            self.handler_ended(key, error)
            return
        self._host.call_handler(key, entry.rollback_attempts + 1, handler, output)


#: For a step whose handler the code no longer has.
_NO_LONGER_IN_THE_CODE: Final = Handler(lambda _: None, 0)
