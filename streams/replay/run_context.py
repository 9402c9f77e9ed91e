"""What all entries of one run share while its code runs."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.replay.commands import CodeCommand, Log
from headwater.processors.replay.errors import NonDeterministicError
from headwater.processors.replay.host_messages import Activate
from headwater.processors.replay.state import Entry
from headwater.processors.replay.trimming import trim
from headwater.processors.runs.limits import DEFAULT_LIMITS, LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.processors.runs.requests import Reached
from headwater.schemas.statuses import EntryStatus
from headwater.streams.authoring.failures import failure_of
from headwater.streams.replay.host_port import Handler, HostPort
from headwater.streams.replay.journal import Journal
from headwater.streams.replay.logged_lines import LoggedLines
from headwater.streams.replay.loop import WorkflowLoop
from headwater.streams.replay.results import Results
from headwater.streams.replay.step_calls import StepCalls

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

#: Calls of `step` without waiting: more than the entries of any run, and log lines that a host has
#: in memory until they are sent.
CALLS_MAX: Final = 100_000
#: Characters of a warning by which it is recognized when it comes again.
_ONCE_MAX: Final = 256


class RunContext:
    """One execution of the code of a run, seen from its entries.

    Shape:  while `rolling_back`, the code only runs to find rollback handlers. `pending` has the
            keys of entries whose results come as soon as a command that was sent is durable. The
            code is told of what happened at `cancelled_at`, if anything did, when it has seen all
            that was before; `told` says whether it was.
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
        self.told = False
        # What is not implemented raises: it needs the world outside.
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
        #: Calls of entries that are not awaited yet: the object whose method was called, for the
        #: message what was called, and its coroutine.
        self.unawaited: dict[int, tuple[object, str, Coroutine[Any, Any, Any]]] = {}
        self._ticket = 0
        self._tickets_until = CALLS_MAX
        #: How many results the code was given.
        self.results_given = 0

    def ticket(self) -> int:
        """Return the number of the next call of an entry.

        Raises:
            NonDeterministicError: The code has made CALLS_MAX calls and waited for none.
        """
        self._ticket += 1
        if self._ticket > self._tickets_until:
            raise NonDeterministicError(
                f"the workflow spins: {CALLS_MAX:,} calls of step without waiting for an entry"
            )
        return self._ticket

    def begin_turn(self) -> None:
        """Note that the code runs until it waits for an entry."""
        self._tickets_until = self._ticket + CALLS_MAX

    def send(self, command: CodeCommand, *, awaits: str | None = None) -> None:
        """Send a command to the owner, unless the run is over or is being rolled back.

        While a run is rolled back, only log lines of its handlers are sent.

        Args:
            command: The command.
            awaits: Key of the entry whose result comes as soon as this command is durable. When
                the entry was cancelled, the command is not sent: code in an inner scope runs for
                one more turn after an outer scope has cancelled its entries, and the owner would
                neither accept the command nor answer it.
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

    def warn(self, place: str, text: str) -> None:
        """Log a warning of the engine, once in a run.

        Args:
            place: Names the warning; the run remembers it.
            text: The line.
        """
        if place not in self.warned:
            self.warned.add(place)
            line = bounded(text, LOG_MESSAGE_MAX)
            self.send(Log("warn", SYSTEM, line, None, None, None, is_replay=False, once=place))

    def log_failed(self, tasks: "Iterable[asyncio.Task[Any]]") -> None:
        """Log failures of tasks that no code has retrieved, each once in a run.

        They are logged when the code has returned. Tasks of a loop's iterations do not fail again
        in a replay that begins behind these: they are logged when the loop commits, or, if they
        still run then, when they fail.
        """
        for task in tasks:
            failure = failure_of(task.exception() or asyncio.CancelledError())
            # Names of tasks are not the same on a replay.
            name = getattr(task.get_coro(), "__qualname__", "a coroutine")
            text = f"the task of {name} failed unseen: {failure.name}: {failure.message}"
            self.warn(bounded(text, _ONCE_MAX), text)

    def discard(self, scopes: list[str]) -> tuple[Reached, ...]:
        """Ends what runs at some keys and beneath them, which nobody awaits any more.

        Shape:  gives the steps among them that nothing is recorded of yet.
        """
        calls = self.calls.discard(scopes)
        self.pending.difference_update(each.reached.key for each in calls if not each.returned)
        self.journal.cancel(scopes)
        return tuple(each.reached for each in calls if each.reached.key not in self.entries)

    def forget_iterations(self, key: str, before: int) -> None:
        """Forgets entries of a loop's old iterations, as the owner does."""
        for each in trim(self.entries, key, before) if before else ():
            self.handlers.pop(each, None)

    def resolve(self, key: str, entry: Entry) -> None:
        """An entry has its result."""
        self.results_given += 1
        self.entries[key] = entry
        self.calls.resolved(key)
        self.pending.discard(key)
        self.results.resolve(key, entry)

    def close(self) -> None:
        """Ends the execution: its code never runs again, not even to clean up."""
        self.closed = True
        # They hold each other: see `close_task`.
        self.loop.warn = _nobody
        for _, _, coroutine in self.unawaited.values():
            coroutine.close()
        self.unawaited.clear()
        self.loop.close_tasks()
        self.results.forget()


def _nobody(place: str, text: str) -> None:
    """Tells nobody: the execution is over."""
