"""A place in the tree of a run's entries, where they are entered and asked for."""

import asyncio
import inspect
import re
from collections.abc import Coroutine
from typing import Any, Final, Self

from typing_extensions import override

from headwater.processors.replay.commands import Mark, Open
from headwater.processors.replay.errors import (
    DuplicateStepError,
    NonDeterministicError,
    NotAwaitedError,
)
from headwater.processors.replay.state import Entry
from headwater.schemas.history import EntryKind
from headwater.streams.replay.activation import Activation
from headwater.streams.replay.arguments import check_name

#: Where a name has what would stand for another character in a key.
_ESCAPED: Final = re.compile("%(?=2F|25)")


class Suspended(BaseException):
    """The run was let go while its code was running: nothing of it matters any more."""


def escaped(name: str) -> str:
    """A name as a part of a key: nothing in it stands for a place in the tree."""
    return _ESCAPED.sub("%25", name).replace("/", "%2F")


def _was_awaited(task: asyncio.Task[Any] | None) -> bool:
    """Whether something has waited for a task, as `gather` does for all, until one of them fails.

    One callback is the loop's own, by which it forgets the task.
    """
    return task is not None and len(task._callbacks or ()) > 1  # noqa: SLF001


class Scope:
    """The workflow itself, a branch, or an iteration of a loop.

    Shape:  a scope is `lost` when its branch was ended, `through` when its code has come to its
            end, and `past` beneath an entry that is over.
    """

    def __init__(
        self, run: Activation, scope: str = "", *, above: "Scope | None" = None, past: bool = False
    ) -> None:
        self.run = run
        self.scope = scope
        self.above = above
        self.lost = False
        self.through = False
        self.past: bool = past or (above is not None and above.past)
        self.checkpointed: bool = above is not None and above.checkpointed
        #: The entries that its code has called and that have not come to their end, by key, and
        #: the tasks that they run in.
        self.under_way: dict[str, asyncio.Task[Any] | None] = {}

    def beneath(self, scope: str, *, past: bool = False) -> Self:
        """A scope in this one."""
        return type(self)(self.run, scope, above=self, past=past)

    @property
    def retold(self) -> bool:
        """Whether nothing asked here is news: what is not recorded stays without a result."""
        return self.past or self.run.rolling_back

    def is_lost(self) -> bool:
        """Whether this scope was ended, or one above it has come to its end."""
        if self.lost:
            return True
        at = self.above
        while at is not None:
            if at.lost or at.through:
                return True
            at = at.above
        return False

    def key(self, name: str) -> str:
        """The key of a name in this scope."""
        return f"{self.scope}/{escaped(name)}" if self.scope else escaped(name)

    # -- entries

    def track(
        self, ticket: int, name: str, coroutine: Coroutine[Any, Any, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Remembers a call until it is awaited."""
        self.run.unawaited[ticket] = (self, repr(name), coroutine)
        return coroutine

    def enter(
        self, ticket: int, name: str, kind: EntryKind, *, or_removed: bool = False
    ) -> tuple[str, Entry | None]:
        """Begins a call of an entry: its key, and what is recorded of it."""
        run = self.run
        run.unawaited.pop(ticket, None)
        if run.closed or self.is_lost():
            raise Suspended
        if self.through:
            raise NotAwaitedError(
                f'expected the entry "{name}" to be called before {self} returns, found it called '
                "later: await all tasks where they begin"
            )
        if asyncio._get_running_loop() is not run.loop:  # noqa: SLF001
            raise NonDeterministicError(
                f'expected the entry "{name}" to be awaited by the workflow\'s own code, found it '
                "inside a step or a thread: call it outside, and pass its result in"
            )
        check_name(name)
        key = self.key(name)
        if key in self.under_way:
            raise DuplicateStepError(
                f'expected one entry "{key}" at a time, found a second while the first is under '
                "way: give each its own name"
            )
        if key in run.record.given_up and not or_removed:
            raise DuplicateStepError(
                f'expected another name than "{key}", found the name of an entry that was removed, '
                "or cancelled with the task that awaited it: give each its own name"
            )
        entry = run.entries.get(key)
        kinds = (kind, EntryKind.REMOVED) if or_removed else (kind,)
        if entry is not None and entry.kind not in kinds:
            raise run.diverged(key, entry.kind.value, kind.value)
        if entry is None and not self.retold:
            run.record.make_room(key, kind)
        if run.workflow.strict and key in run.record.visited:
            raise run.diverged(key, kind.value, f"a second {kind.value} of the same name")
        run.record.visit(key, entry)
        self.under_way[key] = asyncio.current_task(run.loop)
        return key, entry

    def leave(self, key: str) -> None:
        """Ends a call of an entry."""
        self.under_way.pop(key, None)

    def left_undone(self) -> NotAwaitedError | None:
        """What code that returns now has forgotten, or what runs in tasks that it never awaited."""
        forgotten = [
            what
            for scope, what, coroutine in self.run.unawaited.values()
            if scope is self and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        ]
        if forgotten:
            return NotAwaitedError(
                f"expected every entry to be awaited, found {self} returning without awaiting "
                f"{', '.join(sorted(forgotten))}: write `await step...`"
            )
        leaked = [key for key, task in self.under_way.items() if not _was_awaited(task)]
        if leaked:
            return NotAwaitedError(
                f"expected no entry under way when {self} returns, found "
                f"{', '.join(sorted(leaked))}: await the task that it runs in before you return"
            )
        return None

    @override
    def __str__(self) -> str:
        return f'"{self.scope}"' if self.scope else "the workflow"

    def open(self, key: str, name: str, kind: EntryKind, **more: Any) -> None:  # noqa: ANN401
        """Asks for an entry that is not a step."""
        if not self.retold:
            self.run.say(Open(key, name, kind, self._opened(key, name, kind), **more))

    def mark(self, key: str, name: str, kind: EntryKind, *, owed: str | None = None) -> None:
        """Asks for an entry that is over at once."""
        if not self.retold:
            self.run.say(Mark(key, name, kind, self._opened(key, name, kind)), owed=owed)

    def _opened(self, key: str, name: str, kind: EntryKind) -> int:
        record = self.run.record
        ordinal = record.new_ordinal()
        record.opened(key, name, kind, ordinal)
        return ordinal
