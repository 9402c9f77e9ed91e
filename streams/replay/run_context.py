"""State that all entries of one run share while its code runs."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.code.commands import CodeCommand, Log
from headwater.processors.code.errors import NonDeterministicError
from headwater.processors.code.host_messages import Activate
from headwater.processors.code.state import Entry
from headwater.processors.code.trimming import trim
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

#: Calls of `step` without waiting: more than any run has entries, and than log lines that a host
#: should buffer.
CALLS_MAX: Final = 100_000
#: Characters of a warning that identify it when it is repeated.
_ONCE_MAX: Final = 256


class RunContext:
    """One execution of the code of a run, as its entries see it.

    Attributes:
        rolling_back: Whether the code only runs to collect rollback handlers.
        pending: Keys of entries whose results arrive when a command that was sent is durable.
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
        #: Calls of entries that are not awaited yet: the object whose method was called, the name
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
            awaits: Key of the entry whose result arrives when this command is durable. If the entry
                was cancelled, the command is not sent: code in an inner scope runs once more after
                an outer scope has cancelled its entries, and the owner would neither accept the
                command nor answer it.
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
        """Log failures of tasks that no code has retrieved, once in a run for each text.

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
