"""Scopes: the nodes of the tree of a run's entries, with deterministic time and randomness.

An entry that nothing awaits any more is abandoned, that is cancelled like the entries of a race's
losers. Otherwise a wait could take an event from a later wait, and a child would run for nothing.
This happens when the author's code cancels the task that awaits the entry, marks it as removed, or
leaves it running when the code of its scope ends. A replay abandons it at the same point, so
another call of the entry gets no result, even if one was recorded meanwhile.
"""

import asyncio
import inspect
import uuid
from collections.abc import Coroutine
from datetime import datetime
from hashlib import blake2b
from typing import Any, Self

from typing_extensions import override

from headwater.processors.code.errors import (
    DuplicateStepError,
    HistoryDivergedError,
    NonDeterministicError,
    NotAwaitedError,
)
from headwater.processors.code.host_messages import Cancel, Open, OpenCompleted
from headwater.processors.code.state import BEGINNING, Entry, entry_key
from headwater.schemas.statuses import OPEN, EntryKind
from headwater.streams.authoring.arguments import check_length, check_name, utc_datetime
from headwater.streams.replay.loop import WorkflowLoop
from headwater.streams.replay.run_context import RunContext


class Suspended(BaseException):
    """The run was closed while its code was running. Nothing of it matters any more."""


def _was_awaited(task: asyncio.Task[Any]) -> bool:
    """Whether something has awaited a task, as `gather` does for all until one of them fails.

    One callback belongs to the loop itself.
    """
    return len(task._callbacks or ()) > 1  # noqa: SLF001


class Scope:
    """The workflow itself, a branch, or an iteration of a loop.

    Attributes:
        lost: Whether its branch was ended.
        ended: Whether its code has returned or raised.
        past: Whether it is within an entry that has ended.
        since: Progress of the run (see `LoggedLines`) when its code began: the latest commit of a
            surrounding loop, if iterations were skipped.
    """

    def __init__(
        self, run: RunContext, scope: str = "", *, parent: "Scope | None" = None, past: bool = False
    ) -> None:
        self.run = run
        self.scope = scope
        self.parent = parent
        self.lost = False
        self.ended = False
        #: Whether its code, or that of a scope below it, has called an entry.
        self.has_entries = False
        self.past: bool = past or (parent is not None and parent.past)
        self.checkpointed: bool = parent is not None and parent.checkpointed
        self.since: int = BEGINNING if parent is None else parent.since
        #: Entries that its code has called and that have not ended, by key, and the tasks that
        #: called them.
        self.open_calls: dict[str, asyncio.Task[Any]] = {}

    def child_scope(self, scope: str, *, past: bool = False) -> Self:
        """Create a scope within this one."""
        return type(self)(self.run, scope, parent=self, past=past)

    @property
    def only_replays(self) -> bool:
        """Whether nothing new is started here: entries that are not recorded stay pending."""
        return self.past or self.run.rolling_back

    def is_lost(self) -> bool:
        """Whether this scope was ended from outside, or one above it has ended."""
        if self.lost:
            return True
        ancestor = self.parent
        while ancestor is not None:
            if ancestor.lost or ancestor.ended:
                return True
            ancestor = ancestor.parent
        return False

    def key(self, name: str) -> str:
        """Return the key of a name in this scope."""
        return entry_key(self.scope, name)

    # -- an entry, from its call to its end

    def track(
        self, ticket: int, name: str, coroutine: Coroutine[Any, Any, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Remember a call until it is awaited.

        Raises:
            NonDeterministicError: The call is made by the code of another run.
        """
        try:
            self.check_run(name)
        except NonDeterministicError:
            coroutine.close()
            raise
        self.run.unawaited[ticket] = (self, repr(name), coroutine)
        return coroutine

    def check_run(self, name: str) -> None:
        """Check that this scope is not used by the code of another run.

        Raises:
            NonDeterministicError: It is.
        """
        run = self.run
        if run.loop.is_executing():
            return
        if isinstance(asyncio._get_running_loop(), WorkflowLoop):  # noqa: SLF001
            begin = run.begin
            raise NonDeterministicError(
                f'expected "{name}" to be called with the step of this run, found that of '
                f"{begin.workflow}/{begin.instance_id}, run {begin.run_number}: pass step on as an "
                "argument, and keep it in no global variable"
            )

    def enter(
        self, ticket: int, name: str, kind: EntryKind, *, or_removed: bool = False
    ) -> tuple[str, Entry | None]:
        """Begin a call of an entry. Return its key, and the recorded entry if there is one."""
        run, journal = self.run, self.run.journal
        run.unawaited.pop(ticket, None)
        self._check_call(name)
        check_name(name)
        key = self.key(name)
        if key in self.open_calls:
            raise DuplicateStepError(
                f'expected one entry "{key}" at a time, found a second while the first is '
                "running: give each its own name"
            )
        if key in journal.abandoned and not or_removed:
            raise DuplicateStepError(
                f'expected another name than "{key}", found the name of an entry that was removed, '
                "or cancelled with the task that awaited it: give each its own name"
            )
        entry = run.entries.get(key)
        kinds = (kind, EntryKind.REMOVED) if or_removed else (kind,)
        if entry is not None and entry.kind not in kinds:
            raise HistoryDivergedError(key, entry.kind.value, kind.value)
        if entry is None and not self.only_replays:
            check_length(name, run.limits)
            journal.check_capacity(key, kind)
        if run.strict and key in journal.visited:
            raise HistoryDivergedError(key, kind.value, f"a second {kind.value} of the same name")
        journal.visit(key, entry, or_removed=or_removed)
        self._note_entry()
        self.open_calls[key] = self.current_task()
        return key, entry

    def _note_entry(self) -> None:
        scope: Scope | None = self
        while scope is not None and not scope.has_entries:
            scope.has_entries = True
            scope = scope.parent

    def current_task(self) -> asyncio.Task[Any]:
        """Return the task of the workflow's code that is executing."""
        task = asyncio.current_task(self.run.loop)
        if task is None:
            raise AssertionError("code of a workflow runs in a task")
        return task

    def _check_call(self, name: str) -> None:
        """Check that an entry may be called now, by the code that is executing."""
        run = self.run
        if run.closed or self.is_lost():
            raise Suspended
        if self.ended:
            raise NotAwaitedError(
                f'expected the entry "{name}" to be called before {self} returns, found it called '
                "later: await all tasks where they begin"
            )
        if not run.loop.is_executing():
            raise NonDeterministicError(
                f'expected the entry "{name}" to be awaited by the workflow\'s own code, found it '
                "inside a step or a thread: call it outside, and pass its result in"
            )

    def open(self, key: str, name: str, kind: EntryKind, **options: Any) -> None:  # noqa: ANN401
        """Open an entry that is not a step."""
        if not self.only_replays:
            ordinal = self.run.journal.open(key, name, kind)
            self.run.send(Open(key, name, kind, ordinal, **options))

    def mark(self, key: str, name: str, kind: EntryKind, *, awaits: str | None = None) -> None:
        """Record an entry that ends at once."""
        if not self.only_replays:
            ordinal = self.run.journal.open(key, name, kind)
            self.run.send(OpenCompleted(key, name, kind, ordinal), awaits=awaits)

    def result(self, key: str) -> asyncio.Future[Entry]:
        """Return a future for the result of an entry."""
        return self.run.results.future_of(key, self.run.entries.get(key))

    async def result_or_abandon(self, key: str) -> Entry:
        """Await the result of an entry, and abandon the entry if the wait is cancelled."""
        future = self.result(key)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.abandon(key)
            raise

    def abandon(self, key: str) -> None:
        """Cancel an entry and all entries below it.

        If a whole branch or the run is ended, its tasks are cancelled too. In that case this does
        nothing, because the owner decides about the entries.
        """
        run = self.run
        if run.closed or self.is_lost():
            return
        run.journal.abandoned.add(key)
        entry = run.entries.get(key)
        # A step is not recorded during its first attempt.
        is_open = key in run.calls if entry is None else entry.status in OPEN
        if is_open and not self.only_replays:
            run.send(Cancel(key, run.discard([key])))

    def leave(self, key: str) -> None:
        """End a call of an entry."""
        self.open_calls.pop(key, None)

    # -- the end of the scope

    def end(self, error: Exception | None) -> Exception | None:
        """End a scope after its code returned or raised, and return its error.

        Entries that it has left running are abandoned: a gather of which one fails leaves the
        others. Entries that were never awaited are an error if the code returns.
        """
        if error is None:
            error = self._not_awaited()
        for key in self.open_calls:
            self.abandon(key)
        self.ended = True
        for task in self.open_calls.values():
            task.cancel()
        return error

    def _not_awaited(self) -> NotAwaitedError | None:
        """Return the error of code that returns with entries that it never awaited."""
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
        leaked = [key for key, task in self.open_calls.items() if not _was_awaited(task)]
        if leaked:
            return NotAwaitedError(
                f"expected no running entry when {self} returns, found "
                f"{', '.join(sorted(leaked))}: await the task that it runs in before you return"
            )
        return None

    @override
    def __str__(self) -> str:
        return f'"{self.scope}"' if self.scope else "the workflow"


# -- time and randomness


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
