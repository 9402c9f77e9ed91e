"""A place in the tree of a run's entries: where they are called, and where they end.

An entry that nobody awaits any more is given up: it is cancelled, as those of a race's losers are.
Left open, a wait would take an event from a later one, and a child would go on for nobody. That is
so where the author's code cancels the task that awaits it, says that it was removed, or leaves it
under way when the code of its scope ends. It happens at the same place on replay, so what was given
up has no result for whoever calls it again, even if one was recorded meanwhile: only the log has
that, not the code.
"""

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, Self

from typing_extensions import override

from headwater.processors.replay.commands import Cancel, Open, OpenCompleted
from headwater.processors.replay.entry_keys import entry_key
from headwater.processors.replay.errors import (
    DuplicateStepError,
    HistoryDivergedError,
    NonDeterministicError,
    NotAwaitedError,
)
from headwater.processors.replay.state import BEGINNING, Entry
from headwater.schemas.statuses import OPEN, EntryKind
from headwater.streams.authoring.arguments import check_length, check_name
from headwater.streams.replay.loop import WorkflowLoop
from headwater.streams.replay.run_context import RunContext


class Suspended(BaseException):
    """The run was let go while its code was running: nothing of it matters any more."""


def _was_awaited(task: asyncio.Task[Any]) -> bool:
    """Whether something has waited for a task, as `gather` does for all, until one of them fails.

    One callback is the loop's own, by which it forgets the task.
    """
    return len(task._callbacks or ()) > 1  # noqa: SLF001


class Scope:
    """The workflow itself, a branch, or an iteration of a loop.

    Shape:  a scope is `lost` when its branch was ended, `ended` when its code has returned or
            raised, and `past` beneath an entry that is over. Its code has begun `since` an event:
            the latest commit of a loop around it, if iterations were passed over.
    """

    def __init__(
        self, run: RunContext, scope: str = "", *, above: "Scope | None" = None, past: bool = False
    ) -> None:
        self.run = run
        self.scope = scope
        self.above = above
        self.lost = False
        self.ended = False
        #: Whether its code has called an entry, or that of a scope beneath it.
        self.has_entries = False
        self.past: bool = past or (above is not None and above.past)
        self.checkpointed: bool = above is not None and above.checkpointed
        self.since: int = BEGINNING if above is None else above.since
        #: The entries that its code has called and that have not come to their end, by key, and
        #: the tasks that they run in.
        self.under_way: dict[str, asyncio.Task[Any]] = {}

    def beneath(self, scope: str, *, past: bool = False) -> Self:
        """A scope in this one."""
        return type(self)(self.run, scope, above=self, past=past)

    @property
    def only_replays(self) -> bool:
        """Whether nothing new is begun here: what is not recorded stays without a result."""
        return self.past or self.run.rolling_back

    def is_lost(self) -> bool:
        """Whether this scope was ended from outside, or one above it has come to its end."""
        if self.lost:
            return True
        at = self.above
        while at is not None:
            if at.lost or at.ended:
                return True
            at = at.above
        return False

    def key(self, name: str) -> str:
        """The key of a name in this scope."""
        return entry_key(self.scope, name)

    # -- an entry, from its call to its end

    def track(
        self, ticket: int, name: str, coroutine: Coroutine[Any, Any, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Remember a call until it is awaited.

        Raises:
            NonDeterministicError: The code of another run makes the call.
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
        loop = asyncio._get_running_loop()  # noqa: SLF001
        if loop is not run.loop and isinstance(loop, WorkflowLoop):
            begin = run.begin
            raise NonDeterministicError(
                f'expected "{name}" to be called with the step of this run, found that of '
                f"{begin.workflow}/{begin.instance_id}, run {begin.run_number}: pass step on as an "
                "argument, and keep it in no global variable"
            )

    def enter(
        self, ticket: int, name: str, kind: EntryKind, *, or_removed: bool = False
    ) -> tuple[str, Entry | None]:
        """Begins a call of an entry: its key, and what is recorded of it."""
        run, journal = self.run, self.run.journal
        run.unawaited.pop(ticket, None)
        self._check_place(name)
        check_name(name)
        key = self.key(name)
        if key in self.under_way:
            raise DuplicateStepError(
                f'expected one entry "{key}" at a time, found a second while the first is under '
                "way: give each its own name"
            )
        if key in journal.given_up and not or_removed:
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
            journal.make_room(key, kind)
        if run.strict and key in journal.visited:
            raise HistoryDivergedError(key, kind.value, f"a second {kind.value} of the same name")
        journal.visit(key, entry, or_removed=or_removed)
        self._note_entry()
        self.under_way[key] = self.current_task()
        return key, entry

    def _note_entry(self) -> None:
        at: Scope | None = self
        while at is not None and not at.has_entries:
            at.has_entries = True
            at = at.above

    def current_task(self) -> asyncio.Task[Any]:
        """The task of the workflow's code that runs now."""
        task = asyncio.current_task(self.run.loop)
        if task is None:
            raise AssertionError("code of a workflow runs in a task")
        return task

    def _check_place(self, name: str) -> None:
        """Checks that an entry may be called here and now."""
        run = self.run
        if run.closed or self.is_lost():
            raise Suspended
        if self.ended:
            raise NotAwaitedError(
                f'expected the entry "{name}" to be called before {self} returns, found it called '
                "later: await all tasks where they begin"
            )
        if asyncio._get_running_loop() is not run.loop:  # noqa: SLF001
            raise NonDeterministicError(
                f'expected the entry "{name}" to be awaited by the workflow\'s own code, found it '
                "inside a step or a thread: call it outside, and pass its result in"
            )

    def open(self, key: str, name: str, kind: EntryKind, **more: Any) -> None:  # noqa: ANN401
        """Opens an entry that is not a step."""
        if not self.only_replays:
            ordinal = self.run.journal.open(key, name, kind)
            self.run.send(Open(key, name, kind, ordinal, **more))

    def mark(self, key: str, name: str, kind: EntryKind, *, awaits: str | None = None) -> None:
        """Records an entry that is over at once."""
        if not self.only_replays:
            ordinal = self.run.journal.open(key, name, kind)
            self.run.send(OpenCompleted(key, name, kind, ordinal), awaits=awaits)

    def result(self, key: str) -> asyncio.Future[Entry]:
        """The result of an entry, when its turn has come."""
        return self.run.results.of(key, self.run.entries.get(key))

    async def result_or_give_up(self, key: str) -> Entry:
        """The result of an entry, which is given up if what awaits it is cancelled first."""
        future = self.result(key)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.give_up(key)
            raise

    def give_up(self, key: str) -> None:
        """Cancels an entry and what is beneath it.

        What ends a whole branch or the run cancels tasks too, and decides itself about entries.
        """
        run = self.run
        if run.closed or self.is_lost():
            return
        run.journal.given_up.add(key)
        entry = run.entries.get(key)
        # A step in its first attempt has no record yet.
        is_open = key in run.calls if entry is None else entry.status in OPEN
        if is_open and not self.only_replays:
            run.send(Cancel(key, run.discard([key])))

    def leave(self, key: str) -> None:
        """Ends a call of an entry."""
        self.under_way.pop(key, None)

    # -- the end of the scope

    def end(self, error: Exception | None) -> Exception | None:
        """Ends a scope whose code has returned or raised; gives the error that it ends with.

        What it has left under way is given up: a gather of which one has failed leaves the others.
        But what nobody ever waited for is an error of code that returns.
        """
        if error is None:
            error = self._not_awaited()
        for key in self.under_way:
            self.give_up(key)
        self.ended = True
        for task in self.under_way.values():
            task.cancel()
        return error

    def _not_awaited(self) -> NotAwaitedError | None:
        """What code that returns now has forgotten, or left in tasks that it never awaited."""
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
