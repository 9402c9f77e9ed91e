"""Markers of a workflow's code: checkpoints, and places of removed entries."""

from collections.abc import Coroutine
from typing import Any, Final

from headwater.schemas.statuses import EntryKind
from headwater.streams.replay.scope import DeterministicValues

_KINDS: Final = {
    "step": EntryKind.DO,
    "loop": EntryKind.LOOP,
    "sleep": EntryKind.SLEEP,
    "message": EntryKind.WAIT,
    "join": EntryKind.JOIN,
    "race": EntryKind.RACE,
    "child": EntryKind.CHILD,
    "checkpoint": EntryKind.CHECKPOINT,
}


class Markers(DeterministicValues):
    """A scope with markers, which complete at once."""

    def checkpoint(self, name: str) -> Coroutine[Any, Any, None]:
        """Permit rollbacks in steps after this point."""
        ticket = self.run.ticket()
        return self.track(ticket, name, self._checkpoint(ticket, name))

    async def _checkpoint(self, ticket: int, name: str) -> None:
        key, entry = self.enter(ticket, name, EntryKind.CHECKPOINT)
        self.leave(key)
        self.checkpointed = True
        if entry is None:
            self.mark(key, name, EntryKind.CHECKPOINT)

    def removed(self, name: str, *, kind: str) -> Coroutine[Any, Any, None]:
        """Mark where an entry was removed; its kind is a key of `_KINDS`, such as `step`."""
        ticket = self.run.ticket()
        return self.track(ticket, name, self._removed(ticket, name, kind))

    async def _removed(self, ticket: int, name: str, kind: str) -> None:
        # A tuple, because an argument of another type may not be hashable.
        if kind not in tuple(_KINDS):
            self.run.unawaited.pop(ticket, None)
            raise ValueError(f"expected kind to be one of {', '.join(_KINDS)}, found {kind!r}")
        key, entry = self.enter(ticket, name, _KINDS[kind], or_removed=True)
        self.leave(key)
        self.run.journal.skip(key)
        if entry is None:
            self.mark(key, name, EntryKind.REMOVED)
        elif entry.kind is not EntryKind.REMOVED:
            self.abandon(key)
