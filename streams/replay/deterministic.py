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
    """A scope with the time and random values.

    They are named, or numbered by their order within the scope.
    """

    @override
    def __init__(
        self, run: RunContext, scope: str = "", *, above: Scope | None = None, past: bool = False
    ) -> None:
        super().__init__(run, scope, above=above, past=past)
        self._values: dict[str, int] = {}

    def now(self, name: str | None = None) -> Coroutine[Any, Any, datetime]:
        """The time, recorded once."""
        ticket = self.run.ticket()
        return self.track(ticket, "now", self._now(ticket, name))

    async def _now(self, ticket: int, name: str | None) -> datetime:
        shown = self._value_name("now", name)
        key, entry = self.enter(ticket, shown, EntryKind.NOW)
        try:
            if entry is None:
                self.mark(key, shown, EntryKind.NOW, awaits=key)
            entry = await self.result(key)
        finally:
            self.leave(key)
        return utc_datetime(int(entry.result or "0"))

    def random(self, name: str | None = None) -> Coroutine[Any, Any, float]:
        """A number in [0, 1), the same on every replay of this run."""
        ticket = self.run.ticket()
        return self.track(ticket, "random", self._random(ticket, name))

    async def _random(self, ticket: int, name: str | None) -> float:
        # The 53 bits that a float has room for.
        return (
            int.from_bytes(self._random_bytes(ticket, "random", name)[:8], "big") >> 11
        ) / 2.0**53

    def uuid(self, name: str | None = None) -> Coroutine[Any, Any, str]:
        """A random UUID as text, the same on every replay of this run."""
        ticket = self.run.ticket()
        return self.track(ticket, "uuid", self._uuid(ticket, name))

    async def _uuid(self, ticket: int, name: str | None) -> str:
        return str(uuid.UUID(bytes=self._random_bytes(ticket, "uuid", name), version=4))

    def _random_bytes(self, ticket: int, what: str, name: str | None) -> bytes:
        """16 bytes from the run's recorded seed and this call's place, not recorded."""
        self.run.unawaited.pop(ticket, None)
        place = self.key(self._value_name(what, name))
        return blake2b(f"{self.run.begin.seed}/{place}".encode(), digest_size=16).digest()

    def _value_name(self, what: str, name: str | None) -> str:
        if name is not None:
            check_name(name, f"the name of a call of step.{what}")
            return f"@{what}:{name}"
        number = self._values[what] = self._values.get(what, 0) + 1
        return f"@{what}#{number}"
