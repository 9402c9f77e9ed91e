"""Step calls of a run's code, from their first attempt to their result."""

from collections.abc import Collection

from headwater.processors.code.entry_keys import keys_at_or_under
from headwater.streams.replay.host_port import Call, HostPort


class StepCalls:
    """Calls without a result."""

    def __init__(self, host: HostPort) -> None:
        self._host = host
        self._calls: dict[str, Call] = {}
        self._deferred: list[tuple[int, int, Call]] = []

    def __contains__(self, key: str) -> bool:
        return key in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, key: str) -> Call | None:
        """Return the call of a key."""
        return self._calls.get(key)

    def add(self, call: Call) -> None:
        """Add a call whose next attempt is started by the owner."""
        self._calls[call.reached.key] = call

    def start(self, call: Call) -> None:
        """Start an attempt."""
        self._calls[call.reached.key] = call
        call.started = True
        self._host.call(call)

    def start_after_replay(self, call: Call, began_ms: int) -> None:
        """Defer an attempt that was running, until everything recorded before it is delivered.

        Args:
            call: Call of its step.
            began_ms: When the attempt began, in Unix milliseconds. Attempts start in this order.
        """
        self.add(call)
        self._deferred.append((began_ms, call.reached.ordinal, call))

    def start_deferred(self) -> None:
        """Start the deferred attempts that are still current."""
        deferred, self._deferred = self._deferred, []
        for *_, call in sorted(deferred, key=lambda deferred_call: deferred_call[:2]):
            if self._calls.get(call.reached.key) is call:
                self.start(call)

    def retry(self, key: str, attempt: int) -> None:
        """Start the next attempt of a step, if the code has reached it."""
        call = self._calls.get(key)
        if call is not None and not call.started:
            call.attempt = attempt
            self.start(call)

    def timed_out(self, key: str) -> None:
        """Time out an attempt, ignoring what its code still returns."""
        self._host.cancel(key)
        call = self._calls.get(key)
        if call is not None:
            call.started = call.returned = False

    def resolved(self, key: str) -> None:
        """End the call of a step with a result, possibly from an attempt in a lost host."""
        call = self._calls.pop(key, None)
        if call is not None and call.started:
            self._host.cancel(key)

    def discard(self, scopes: Collection[str]) -> list[Call]:
        """Remove, cancel and return the calls at some keys and below them."""
        discarded = [self._calls.pop(key) for key in keys_at_or_under(self._calls, scopes)]
        for call in discarded:
            self._host.cancel(call.reached.key)
        return discarded
