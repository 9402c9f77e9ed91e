"""Time and randomness that are the same on every replay."""

import uuid
from collections.abc import Coroutine
from datetime import datetime
from hashlib import blake2b
from typing import Any

from typing_extensions import override

from headwater.schemas.statuses import EntryKind
from headwater.streams.authoring.arguments import check_name, utc_datetime
from headwater.streams.replay.run_context import RunContext
from headwater.streams.replay.scope import Scope


class DeterministicValues(Scope):
    """A scope with time and random values.

    Values are identified by a name, or by their order within the scope.
    """

    @override
    def __init__(
        self, run: RunContext, scope: str = "", *, parent: Scope | None = None, past: bool = False
    ) -> None:
        super().__init__(run, scope, parent=parent, past=past)
        self._values: dict[str, int] = {}

    def now(self, name: str | None = None) -> Coroutine[Any, Any, datetime]:
        """Return the current time, which is recorded once."""
        ticket = self.run.ticket()
        return self.track(ticket, "now", self._now(ticket, name))

    async def _now(self, ticket: int, name: str | None) -> datetime:
        value_name = self._value_name("now", name)
        key, entry = self.enter(ticket, value_name, EntryKind.NOW)
        try:
            if entry is None:
                self.mark(key, value_name, EntryKind.NOW, awaits=key)
            entry = await self.result(key)
        finally:
            self.leave(key)
        return utc_datetime(int(entry.result or "0"))

    def random(self, name: str | None = None) -> Coroutine[Any, Any, float]:
        """Return a number in [0, 1), the same on every replay of this run."""
        ticket = self.run.ticket()
        return self.track(ticket, "random", self._random(ticket, name))

    async def _random(self, ticket: int, name: str | None) -> float:
        # The precision of a float.
        return (
            int.from_bytes(self._random_bytes(ticket, "random", name)[:8], "big") >> 11
        ) / 2.0**53

    def uuid(self, name: str | None = None) -> Coroutine[Any, Any, str]:
        """Return a random UUID as text, the same on every replay of this run."""
        ticket = self.run.ticket()
        return self.track(ticket, "uuid", self._uuid(ticket, name))

    async def _uuid(self, ticket: int, name: str | None) -> str:
        return str(uuid.UUID(bytes=self._random_bytes(ticket, "uuid", name), version=4))

    def _random_bytes(self, ticket: int, what: str, name: str | None) -> bytes:
        """Derive 16 bytes from the recorded seed of the run and the key of the call."""
        self.run.unawaited.pop(ticket, None)
        key = self.key(self._value_name(what, name))
        return blake2b(f"{self.run.begin.seed}/{key}".encode(), digest_size=16).digest()

    def _value_name(self, what: str, name: str | None) -> str:
        if name is not None:
            check_name(name, f"the name of a call of step.{what}")
            return f"@{what}:{name}"
        number = self._values[what] = self._values.get(what, 0) + 1
        return f"@{what}#{number}"
