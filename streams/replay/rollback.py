"""Rolling back: the handlers of completed steps, from the last one to the first.

The author's code is replayed first, and nothing new is begun: what has no result stays without.
When it rests, every handler that belongs to a completed step is known.
"""

from collections.abc import Mapping
from typing import Final

from headwater.processors.replay.commands import RolledBack
from headwater.processors.replay.rolling_back import is_to_roll_back
from headwater.processors.replay.state import Entry
from headwater.processors.runs.requests import RollbackRaised
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.result_types import result_of_step
from headwater.streams.replay.host_port import Handler, HostPort


def to_roll_back(entries: Mapping[str, Entry]) -> list[str]:
    """The steps whose handlers have not run yet, in the order of completion."""
    done = [(entry.sequence, key) for key, entry in entries.items() if is_to_roll_back(entry)]
    return [key for _, key in sorted(done)]


class Rollback:
    """The rollback of a run.

    Shape:  handlers, by key, are those that the replay finds; they are looked at when one runs.
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
        #: The keys of what is to be rolled back, the next one last; None before the code rests.
        self._left: list[str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether everything is rolled back."""
        return self._left is not None and not self._left

    def begin(self) -> None:
        """Begins with the last handler, unless it has begun: all handlers are known."""
        if self._left is None:
            self._left = to_roll_back(self._entries)
            self._call_next()

    def retry(self, key: str, attempt: int) -> None:
        """Tries a handler again that has failed."""
        self._entries[key].rollback_attempts = attempt - 1
        if self._is_next(key):
            self._call(key)

    def handler_ended(self, key: str, error: BaseException | None) -> None:
        """A handler has returned or raised."""
        if error is None:
            self._host.send(RolledBack(key))
        else:
            attempt = self._entries[key].rollback_attempts + 1
            self._host.send(RollbackRaised(key, attempt, failure_of(error)))

    def handled(self, key: str) -> None:
        """It is durable that an entry is rolled back, or that its handler is given up."""
        if self._left and self._is_next(key):
            self._left.pop()
            self._call_next()

    def _is_next(self, key: str) -> bool:
        return bool(self._left and self._left[-1] == key)

    def _call_next(self) -> None:
        # When one that has failed is tried again, the owner decides.
        if self._left and not self._entries[self._left[-1]].rollback_at_ms:
            self._call(self._left[-1])

    def _call(self, key: str) -> None:
        entry = self._entries[key]
        handler = self._handlers.get(key, _NO_LONGER_IN_THE_CODE)
        try:
            output = result_of_step(entry.name, entry.result, handler.declared)
        except TypeError as error:
            self.handler_ended(key, error)
            return
        self._host.call_handler(key, entry.rollback_attempts + 1, handler, output)


#: Does nothing, for a step whose handler the code no longer has.
_NO_LONGER_IN_THE_CODE: Final = Handler(lambda _: None, 0)
