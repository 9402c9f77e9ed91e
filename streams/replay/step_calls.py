"""The steps that the code of a run has called, from their first attempt to their result."""

from collections.abc import Collection

from headwater.processors.replay.entry_keys import keys_at_or_under
from headwater.streams.replay.host_port import Call, HostPort


class StepCalls:
    """The calls that have no result yet."""

    def __init__(self, host: HostPort) -> None:
        self._host = host
        self._calls: dict[str, Call] = {}
        self._deferred: list[tuple[int, int, Call]] = []

    def __contains__(self, key: str) -> bool:
        return key in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, key: str) -> Call | None:
        """The call of a key."""
        return self._calls.get(key)

    def add(self, call: Call) -> None:
        """Adds a call whose next attempt the owner will begin."""
        self._calls[call.reached.key] = call

    def start(self, call: Call) -> None:
        """Begins an attempt."""
        self._calls[call.reached.key] = call
        call.started = True
        self._host.call(call)

    def start_after_replay(self, call: Call, began_ms: int) -> None:
        """Begins an attempt that was under way once all that was recorded before it is given.

        Args:
            call: The call of its step.
            began_ms: When the attempt had begun: so attempts begin in the order of before.
        """
        self.add(call)
        self._deferred.append((began_ms, call.reached.ordinal, call))

    def start_deferred(self) -> None:
        """Begins the attempts that were to begin after the replay, if they still are."""
        deferred, self._deferred = self._deferred, []
        for *_, call in sorted(deferred, key=lambda each: each[:2]):
            if self._calls.get(call.reached.key) is call:
                self.start(call)

    def retry(self, key: str, attempt: int) -> None:
        """Begins the next attempt of a step, if the code has come to it."""
        call = self._calls.get(key)
        if call is not None and not call.started:
            call.attempt = attempt
            self.start(call)

    def timed_out(self, key: str) -> None:
        """An attempt has failed, whatever its code still returns."""
        self._host.cancel(key)
        call = self._calls.get(key)
        if call is not None:
            call.started = call.returned = False

    def resolved(self, key: str) -> None:
        """A step has its result, which may be that of an attempt in a host that is gone."""
        call = self._calls.pop(key, None)
        if call is not None and call.started:
            self._host.cancel(key)

    def discard(self, scopes: Collection[str]) -> list[Call]:
        """Ends the calls at some keys and beneath them, and gives them."""
        discarded = [self._calls.pop(key) for key in keys_at_or_under(self._calls, scopes)]
        for call in discarded:
            self._host.cancel(call.reached.key)
        return discarded
