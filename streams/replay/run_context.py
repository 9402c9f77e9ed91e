"""State that all entries of one run share while its code runs."""

import asyncio
import heapq
from collections.abc import Collection, Iterable, KeysView
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.code.errors import NonDeterministicError
from headwater.processors.code.host_messages import Activate, CodeCommand, Log
from headwater.processors.code.state import BEGINNING, UNRESOLVED, Entry, keys_at_or_under, trim
from headwater.processors.runs.decisions import Reached
from headwater.processors.runs.limits import DEFAULT_LIMITS, LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.schemas.statuses import OPEN, EntryStatus
from headwater.streams.authoring.failures import failure_of
from headwater.streams.replay.host_port import Call, Handler, HostPort
from headwater.streams.replay.journal import Journal
from headwater.streams.replay.loop import WorkflowLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine


class LoggedLines:
    """How far the code had come when it logged last, and how far it is now.

    Progress is measured by the latest event that the code has seen. Lines logged before the code
    reaches its former progress are repeated, lines logged after it are new. At exactly the same
    progress, a known number of lines are repeated.

    A loop resumes at its latest commit, so its code is ahead of concurrent code, which catches up
    as results are delivered. The scopes within the loop state their progress.

    Attributes:
        seen: Sequence of the latest event that the code has seen.
    """

    def __init__(self, entries: Iterable[Entry], logged_at: int, lines: int) -> None:
        # A retried run keeps the lines of the run before it up to the last result that it kept.
        kept_until = max(
            (
                entry.sequence
                for entry in entries
                if entry.sequence < UNRESOLVED and entry.status is not EntryStatus.CANCELLED
            ),
            default=BEGINNING,
        )
        self.seen = BEGINNING
        self._logged_at = max(kept_until, logged_at)
        self._repeats_left = lines if logged_at >= kept_until else 0

    def see(self, sequence: int) -> None:
        """Record an event that the code sees. During a replay it may be an old one."""
        self.seen = max(self.seen, sequence)

    def next_is_new(self, since: int) -> int | None:
        """Return the progress of the code if its next line is new, else None.

        Args:
            since: Progress at which the code of the line's scope begins.
        """
        seen = max(self.seen, since)
        if seen < self._logged_at:
            return None
        if seen == self._logged_at and self._repeats_left:
            self._repeats_left -= 1
            return None
        return seen


class Results:
    """The results that the code of one run awaits.

    A recorded result is not delivered as soon as the code awaits it. When the code rests, the
    recorded result with the lowest sequence among those awaited is delivered, and so on. The code
    thus sees results in the order of the log, now as before a crash, and gather, races and branches
    execute in the same order.
    """

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._awaited: dict[str, asyncio.Future[Entry]] = {}
        self._recorded: list[tuple[int, int, asyncio.Future[Entry], Entry]] = []
        #: Orders several waiters of the same entry by their arrival.
        self._numbers = count()
        self._commits: dict[str, asyncio.Future[None]] = {}

    def future_of(self, key: str, entry: Entry | None) -> asyncio.Future[Entry]:
        """Return a future for the result of an entry.

        A recorded result is delivered in the order of the log, any other when it is recorded.
        """
        future: asyncio.Future[Entry] = self._loop.create_future()
        if entry is None or entry.status in OPEN or entry.sequence == UNRESOLVED:
            self._awaited[key] = future
        elif entry.status is not EntryStatus.CANCELLED:
            recorded = (entry.sequence, next(self._numbers), future, entry)
            heapq.heappush(self._recorded, recorded)
        # A cancelled entry has no result; its future stays pending.
        return future

    def next_recorded(
        self, before: int | None = None
    ) -> tuple[asyncio.Future[Entry], Entry] | None:
        """Return the next recorded result, optionally only one before a sequence."""
        if not self._recorded or (before is not None and self._recorded[0][0] > before):
            return None
        _, _, future, entry = heapq.heappop(self._recorded)
        return future, entry

    def resolve(self, key: str, entry: Entry) -> None:
        """Deliver a result that has just been recorded."""
        future = self._awaited.pop(key, None)
        if future is not None and not future.done():
            future.set_result(entry)

    def awaited_commits(self) -> KeysView[str]:
        """Return the keys of loops that wait until their commits are durable."""
        return self._commits.keys()

    def commit_future(self, key: str) -> asyncio.Future[None]:
        """Return a future for the durability of a loop's commit."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._commits[key] = future
        return future

    def resolve_commit(self, key: str) -> None:
        """Record that the commit of a loop is durable."""
        future = self._commits.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)

    def forget(self) -> None:
        """Drop all waiters."""
        self._awaited.clear()
        self._recorded.clear()
        self._commits.clear()


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
        """Add a call; the owner starts its next attempt."""
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


#: Calls of `step` without waiting: more than any run has entries, and than log lines that a host
#: should buffer.
CALLS_MAX: Final = 100_000
#: Characters of a warning that identify it when it is repeated.
_ONCE_MAX: Final = 256


class RunContext:
    """One execution of the code of a run, as its entries see it.

    Attributes:
        rolling_back: Whether the code only runs to collect rollback handlers.
        pending: Keys of entries with results that arrive when a command that was sent is durable.
        cancelled_at: Sequence of the run's cancellation, if any. The code receives it after it has
            seen all events before it.
        cancel_delivered: Whether the code has received the cancellation.
    """

    def __init__(
        self,
        begin: Activate,
        host: HostPort,
        *,
        strict: bool,
        replayed_lines: bool,
        rolling_back: bool,
    ) -> None:
        self.begin = begin
        self.host = host
        self.strict = strict
        self.replayed_lines = replayed_lines
        self.rolling_back = rolling_back
        self.closed = False
        self.cancelled_at = begin.cancelled_at
        self.cancel_delivered = False
        # Methods that are not implemented raise, because they need the outside world.
        self.loop = WorkflowLoop(self.warn)  # type: ignore[abstract]
        self.warned: set[str] = set()
        self.entries = begin.entries
        self.limits = begin.limits or DEFAULT_LIMITS
        self.journal = Journal(
            begin.entries, begin.entries_max, begin.ordinals, begin.first_ordinal
        )
        self.results = Results(self.loop)
        self.calls = StepCalls(host)
        self.lines = LoggedLines(begin.entries.values(), begin.logged_at, begin.lines)
        self.handlers: dict[str, Handler] = {}
        self.pending: set[str] = set()
        #: Calls of entries that are not awaited yet: the object of the called method, the name
        #: of the call for messages, and its coroutine.
        self.unawaited: dict[int, tuple[object, str, Coroutine[Any, Any, Any]]] = {}
        self._ticket = 0
        self._tickets_until = CALLS_MAX
        #: Number of results that were delivered to the code.
        self.results_delivered = 0

    def ticket(self) -> int:
        """Return the number of the next call of an entry.

        Raises:
            NonDeterministicError: The code has made CALLS_MAX calls without awaiting any.
        """
        self._ticket += 1
        if self._ticket > self._tickets_until:
            raise NonDeterministicError(
                f"the workflow spins: {CALLS_MAX:,} calls of step without waiting for an entry"
            )
        return self._ticket

    def begin_turn(self) -> None:
        """Record that the code starts to run until it waits for an entry."""
        self._tickets_until = self._ticket + CALLS_MAX

    def send(self, command: CodeCommand, *, awaits: str | None = None) -> None:
        """Send a command to the owner, unless the run has ended or is being rolled back.

        During a rollback, only log lines of handlers are sent.

        Args:
            command: The command.
            awaits: Key of the entry with the result that arrives when this command is durable. If
                the entry was cancelled, the command is not sent: code in an inner scope runs once
                more after an outer scope has cancelled its entries, and the owner would neither
                accept the command nor answer it.
        """
        if self.closed:
            return
        if self.rolling_back and not (isinstance(command, Log) and command.attempt is not None):
            return
        if awaits is not None:
            if self.entries[awaits].status is EntryStatus.CANCELLED:
                return
            self.pending.add(awaits)
        self.host.send(command)

    def warn(self, key: str, text: str) -> None:
        """Log a warning of the engine, once in a run.

        Args:
            key: Identifies the warning; the run remembers it.
            text: The line.
        """
        if key not in self.warned:
            self.warned.add(key)
            line = bounded(text, LOG_MESSAGE_MAX)
            self.send(Log("warn", SYSTEM, line, None, None, None, is_replay=False, once=key))

    def log_failed(self, tasks: "Iterable[asyncio.Task[Any]]") -> None:
        """Log failures of tasks that no code has retrieved, once per run and text.

        They are logged when the code has returned. Tasks of a loop's iterations do not fail again
        in a replay that begins after these: they are logged when the loop commits, or, if they
        still run then, when they fail.
        """
        for task in tasks:
            failure = failure_of(task.exception() or asyncio.CancelledError())
            # Task names differ on a replay.
            name = getattr(task.get_coro(), "__qualname__", "a coroutine")
            text = f"the task of {name} failed unseen: {failure.name}: {failure.message}"
            self.warn(bounded(text, _ONCE_MAX), text)

    def discard(self, scopes: list[str]) -> tuple[Reached, ...]:
        """End the attempts at some keys and below them, which nothing awaits any more.

        Returns:
            The steps among them that are not recorded yet.
        """
        calls = self.calls.discard(scopes)
        self.pending.difference_update(call.reached.key for call in calls if not call.returned)
        self.journal.cancel(scopes)
        return tuple(call.reached for call in calls if call.reached.key not in self.entries)

    def forget_iterations(self, key: str, before: int) -> None:
        """Drop entries of a loop's old iterations, as the owner does."""
        for entry_key in trim(self.entries, key, before) if before else ():
            self.handlers.pop(entry_key, None)

    def resolve(self, key: str, entry: Entry) -> None:
        """Deliver the result of an entry."""
        self.results_delivered += 1
        self.entries[key] = entry
        self.calls.resolved(key)
        self.pending.discard(key)
        self.results.resolve(key, entry)

    def close(self) -> None:
        """End the execution. Its code never runs again, not even to clean up."""
        self.closed = True
        # Breaks a reference cycle, see `close_task`.
        self.loop.warn = _ignore
        for _, _, coroutine in self.unawaited.values():
            coroutine.close()
        self.unawaited.clear()
        self.loop.close_tasks()
        self.results.forget()


def _ignore(key: str, text: str) -> None:
    """Ignore a warning after the end of the execution."""
